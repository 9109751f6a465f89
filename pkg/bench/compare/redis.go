package compare

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// redisShop is what the models have in common that keep a lot's units in one number, a user's hold in a key of its own,
// and the deadlines in a sorted set, from which a sweep gives units back.
type redisShop struct {
	client *redis.Client
	count  *counts
}

func openRedis(c client) (redisShop, error) {
	o, err := redis.ParseURL(c.url)
	if err != nil {
		return redisShop{}, fault.New(fault.Failed, "the private server's address cannot be read") // without it: it has a password
	}
	o.PoolSize = c.pool
	o.MaxRetries = -1 // whether an unanswered call has acted is not known: repeating it could take twice
	o.PoolTimeout, o.ReadTimeout = 30*time.Second, 10*time.Second
	return redisShop{redis.NewClient(o), c.count}, nil
}

func (s redisShop) Close() error { return s.client.Close() }

func stockKey(lot drop.LotID) string             { return "stock:" + string(lot) }
func holdKey(lot drop.LotID, user string) string { return "hold:" + string(lot) + ":" + user }
func dueKey(lot drop.LotID) string               { return "due:" + string(lot) }

const lotsKey = "lots" // a set, for the sweep

// Stock relies on the arena to have emptied the server.
func (s redisShop) Stock(ctx context.Context, lots []drop.LotID, units int64) error {
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, lot := range lots {
			p.Set(ctx, stockKey(lot), units, 0)
			p.SAdd(ctx, lotsKey, string(lot))
		}
		return nil
	})
	return err
}

// look reads what decides on a hold: the units that are left, and whether the user has one.
func look(ctx context.Context, from interface {
	Pipelined(context.Context, func(redis.Pipeliner) error) ([]redis.Cmder, error)
}, lot drop.LotID, user string) error {
	var left *redis.StringCmd
	var has *redis.IntCmd
	if _, err := from.Pipelined(ctx, func(p redis.Pipeliner) error {
		left, has = p.Get(ctx, stockKey(lot)), p.Exists(ctx, holdKey(lot, user))
		return nil
	}); err != nil {
		return err
	}
	units, err := left.Int64()
	switch {
	case err != nil:
		return err
	case has.Val() == 1:
		return overLimit(user)
	case units <= 0:
		return soldOut(lot)
	}
	return nil
}

// take writes the hold, all or nothing.
func take(ctx context.Context, p redis.Pipeliner, lot drop.LotID, user string, hold time.Duration) {
	p.Decr(ctx, stockKey(lot))
	p.Set(ctx, holdKey(lot, user), "held", 0) // no TTL: it would take the unit with it
	p.ZAdd(ctx, dueKey(lot), redis.Z{Score: float64(time.Now().Add(hold).UnixMilli()), Member: user})
}

// settle ends a hold if it is still one: write runs only if nobody else has touched it meanwhile.
func (s redisShop) settle(ctx context.Context, lot drop.LotID, user string, write func(redis.Pipeliner)) (done bool, err error) {
	key := holdKey(lot, user)
	err = s.client.Watch(ctx, func(tx *redis.Tx) error {
		state, err := tx.Get(ctx, key).Result()
		if errors.Is(err, redis.Nil) || err == nil && state != "held" {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			write(p)
			p.ZRem(ctx, dueKey(lot), user)
			return nil
		})
		done = err == nil
		return err
	}, key)
	if errors.Is(err, redis.TxFailedErr) { // somebody else has settled it
		err = nil
	}
	return done, err
}

func (s redisShop) Confirm(ctx context.Context, c claim) error {
	due, err := s.client.ZScore(ctx, dueKey(c.lot), c.user).Result()
	if errors.Is(err, redis.Nil) || err == nil && due <= float64(time.Now().UnixMilli()) {
		return tooLate(c)
	}
	if err != nil {
		return err
	}
	done, err := s.settle(ctx, c.lot, c.user, func(p redis.Pipeliner) { p.Set(ctx, holdKey(c.lot, c.user), "sold", 0) })
	if err == nil && !done {
		return tooLate(c)
	}
	return err
}

func (s redisShop) Sweep(ctx context.Context) error {
	lots, err := s.client.SMembers(ctx, lotsKey).Result()
	if err != nil {
		return err
	}
	for _, name := range lots {
		lot := drop.LotID(name)
		due, err := s.client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: dueKey(lot), Start: "-inf", Stop: strconv.FormatInt(time.Now().UnixMilli(), 10), ByScore: true}).Result()
		if err != nil {
			return err
		}
		for _, user := range due {
			if _, err := s.settle(ctx, lot, user, func(p redis.Pipeliner) {
				p.Del(ctx, holdKey(lot, user))
				p.Incr(ctx, stockKey(lot))
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s redisShop) Knows(ctx context.Context, c claim) (bool, error) {
	n, err := s.client.Exists(ctx, holdKey(c.lot, c.user)).Result()
	return n == 1, err
}
