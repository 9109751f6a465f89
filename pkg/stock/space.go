package stock

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/fault"
)

// A space is a place of its own on a shop's Redis, for what is measured or rehearsed there: its keys begin with
// drop:<space>:{ instead of drop:{. So the shop, which looks for the latter, sees nothing of it, while rights to drop:*
// cover it, and the tags, and with them the slots, are the same.

// prefix is what all keys begin with.
func (o Options) prefix() string {
	if o.Space == "" {
		return "drop"
	}
	return "drop:" + o.Space
}

// Erase deletes everything in this space, and is refused where there is none: the shop's keys are nobody's to delete. Calls
// under way find every door gone, so that nothing comes after it.
func (s *Stock) Erase(ctx context.Context) error {
	if s.opt.Space == "" {
		return fault.New(fault.Conflict, "the keys at %s are those of the shop itself, and stay", s.target)
	}
	pipe := s.server.Pipeline()
	for _, sh := range s.shards {
		pipe.Unlink(ctx, sh.keys.meta)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return wireFault(s.target, err, false)
	}
	for { // slots that move hide keys from a look
		keys, err := s.keys(ctx)
		if err != nil || len(keys) == 0 {
			return wireFault(s.target, err, false)
		}
		for some := range slices.Chunk(keys, 500) {
			for _, key := range some {
				pipe.Unlink(ctx, key)
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return wireFault(s.target, err, false)
			}
		}
	}
}

// keys lists what every server has of this space. It goes through the whole key space.
func (s *Stock) keys(ctx context.Context) (all []string, err error) {
	var mu sync.Mutex
	err = s.server.eachNode(ctx, func(n *redis.Client) error {
		it := n.Scan(ctx, 0, s.opt.prefix()+":{*", 1000).Iterator()
		for it.Next(ctx) {
			mu.Lock()
			all = append(all, it.Val())
			mu.Unlock()
		}
		return it.Err()
	})
	return all, err
}
