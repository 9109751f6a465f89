package compare

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
)

// redisWatch looks at the keys it watches and writes in a MULTI that Redis carries out only if nobody has touched them
// since; else it begins again.
var redisWatch = Model{Name: "redis-watch", Does: "WATCH, look, MULTI … EXEC; begins again if somebody was faster", place: onRedis, pool: 4,
	open: func(_ context.Context, c client) (shop, error) {
		s, err := openRedis(c)
		return watching{s}, err
	}}

type watching struct{ redisShop }

func (s watching) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	attempt := func() error {
		return s.client.Watch(ctx, func(tx *redis.Tx) error {
			if err := look(ctx, tx, lot, user); err != nil {
				return err
			}
			_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				take(ctx, p, lot, user, hold)
				return nil
			})
			return err
		}, stockKey(lot), holdKey(lot, user))
	}
	err := s.count.untilDone(ctx, attempt, func(err error) bool { return errors.Is(err, redis.TxFailedErr) })
	return claim{lot: lot, user: user}, err
}
