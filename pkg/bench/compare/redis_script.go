package compare

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/bench/bars"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// redisScript is the usual pattern: one EVALSHA a request decides and writes, and the hold is a key with a TTL. When that
// key goes its unit goes with it: nobody is left who knows that it has to be given back.
var redisScript = Model{Name: "redis-script", Does: "one EVALSHA a request; the hold is a key with a TTL", place: onRedis, pool: 16,
	open: func(_ context.Context, c client) (shop, error) {
		s, err := openRedis(c)
		return scripting{s}, err
	}}

type scripting struct{ redisShop }

func (s scripting) Stock(ctx context.Context, lots []drop.LotID, units int64) error {
	if err := s.redisShop.Stock(ctx, lots, units); err != nil {
		return err
	}
	return bars.PlainScript.Load(ctx, s.client).Err()
}

func (s scripting) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	c := claim{lot: lot, user: user}
	left, err := s.client.EvalSha(ctx, bars.PlainScript.Hash(), []string{holdKey(lot, user), stockKey(lot)}, 1, user, max(1, int(hold.Seconds()))).Int64()
	switch {
	case err != nil:
		return c, err
	case left == -1:
		return c, overLimit(user)
	case left == -2:
		return c, soldOut(lot)
	case left < 0:
		return c, fault.New(fault.Failed, "the script answers %d", left)
	}
	return c, nil
}

var confirmScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'state', 'sold')
redis.call('PERSIST', KEYS[1])
return 1
`)

func (s scripting) Confirm(ctx context.Context, c claim) error {
	done, err := confirmScript.Run(ctx, s.client, []string{holdKey(c.lot, c.user)}).Int64()
	if err == nil && done == 0 {
		return tooLate(c)
	}
	return err
}

// Sweep has nothing to do: Redis removes what is due.
func (s scripting) Sweep(context.Context) error { return nil }
