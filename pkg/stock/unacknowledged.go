package stock

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Unacknowledged returns the oldest entries of a shard's outbox that the ledger has not acknowledged, at most limit, in
// order. It gives them to nobody and changes nothing.
func (s *Stock) Unacknowledged(ctx context.Context, shard, limit int) ([]drop.OutboxEntry, error) {
	node, k, err := s.nodeOf(ctx, shard)
	if err != nil {
		return nil, err
	}
	last, err := s.readUpTo(ctx, node, k)
	if err != nil {
		return nil, err
	}
	from := "-" // nobody has read anything
	var messages []redis.XMessage
	if last != "" {
		from = "(" + last
		if messages, err = s.delivered(ctx, node, k, limit); err != nil {
			return nil, err
		}
	}
	if rest := limit - len(messages); rest > 0 {
		fresh, err := node.XRangeN(ctx, k.outbox, from, "+", int64(rest)).Result()
		if err != nil {
			return nil, s.commandFault(k.outbox, err)
		}
		messages = append(messages, fresh...)
	}
	entries := make([]drop.OutboxEntry, len(messages))
	for i, m := range messages {
		entries[i] = entryOf(m)
	}
	return entries, nil
}

// delivered returns the oldest entries that were given to a consumer and not acknowledged. One that was deleted meanwhile
// is left out.
func (s *Stock) delivered(ctx context.Context, node *redis.Client, k shardKeys, limit int) ([]redis.XMessage, error) {
	pending, err := node.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: k.outbox, Group: consumerGroup, Start: "-", End: "+", Count: int64(limit)}).Result()
	if err != nil || len(pending) == 0 {
		return nil, s.commandFault(k.outbox, err)
	}
	pipe := node.Pipeline()
	found := make([]*redis.XMessageSliceCmd, len(pending))
	for i, p := range pending {
		found[i] = pipe.XRangeN(ctx, k.outbox, p.ID, p.ID, 1)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, s.commandFault(k.outbox, err)
	}
	var messages []redis.XMessage
	for _, f := range found {
		messages = append(messages, f.Val()...)
	}
	return messages, nil
}
