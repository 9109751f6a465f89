package recovery

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Barrier reports whether everything that a queue was given for a shard before the first call with this mark has come
// through to the ledger. nil: there is no queue.
type Barrier func(ctx context.Context, shard int, mark string) (passed bool, err error)

const askEvery = 200 * time.Millisecond // a queue that is waited for

// Await waits until everything that the queue was given for the shards of these lots has come through to the ledger, for at
// most patience. It returns an error for each shard of which it has not: fault.Conflict if something may still be under way,
// or why the queue does not tell.
func (b Barrier) Await(ctx context.Context, lots []drop.LotID, shards int, patience time.Duration) map[int]error {
	late := map[int]error{}
	if b == nil {
		return late
	}
	asked := map[int]bool{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, lot := range lots {
		shard := lot.Shard(shards)
		if asked[shard] {
			continue
		}
		asked[shard] = true
		all.Go(func() {
			if err := b.await(ctx, shard, patience); err != nil {
				mu.Lock()
				defer mu.Unlock()
				late[shard] = err
			}
		})
	}
	all.Wait()
	return late
}

func (b Barrier) await(ctx context.Context, shard int, patience time.Duration) error {
	mark := rand.Text()
	for deadline := time.Now().Add(patience); ; {
		question, cancel := context.WithTimeout(ctx, min(askLimit, patience))
		passed, err := b(question, shard, mark)
		cancel()
		switch {
		case passed:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return unheard(shard, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(askEvery):
		}
	}
}

// unheard says why a queue was waited for in vain; err is what the last question ended with.
func unheard(shard int, err error) error {
	const anyway = "; if the queue is lost for good, --transport direct does not ask it, and what still comes out of it is a ghost"
	if err != nil {
		return fault.Wrap(fault.CodeOf(err), err, "the queue does not say whether the ledger has every event of shard %d", shard).
			WithHint("%s%s", fault.HintOf(err), anyway)
	}
	return fault.New(fault.Conflict, "the queue still holds events of shard %d that the ledger may not have got", shard).
		WithHint("let a worker apply them (dropctl worker), wait longer with --timeout, and run it again%s", anyway)
}
