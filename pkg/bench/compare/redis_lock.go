package compare

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/retry"
)

// redisLock takes a lock of the lot, looks, writes and lets go. The lock ends by itself after a while, so that a dead
// client does not shut the lot for ever; a client that sleeps for longer than that writes without it, and oversells.
var redisLock = Model{Name: "redis-lock", Does: "SET NX of a lock with a TTL, look, write, unlock", place: onRedis, pool: 16,
	open: func(_ context.Context, c client) (shop, error) {
		s, err := openRedis(c)
		return locking{s}, err
	}}

type locking struct{ redisShop }

const lockTTL = time.Second

// unlock removes the lock if it is still ours.
var unlock = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

func (s locking) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	c := claim{lot: lot, user: user}
	key, token := "lock:"+string(lot), rand.Text()
	if err := s.lock(ctx, key, token); err != nil {
		return c, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTTL)
		defer cancel()
		_ = unlock.Run(ctx, s.client, []string{key}, token).Err() // else it ends by itself
	}()
	if err := look(ctx, s.client, lot, user); err != nil {
		return c, err
	}
	_, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		take(ctx, p, lot, user, hold)
		return nil
	})
	return c, err
}

// lock asks until the lock is ours.
func (s locking) lock(ctx context.Context, key, token string) error {
	begun := time.Now()
	for failures := 1; ; failures++ {
		ok, err := s.client.SetNX(ctx, key, token, lockTTL).Result()
		if failures > 1 && (ok || err != nil) { // somebody else had it
			s.count.waited.Add(int64(time.Since(begun)))
		}
		if ok || err != nil {
			return err
		}
		s.count.retries.Add(1)
		if err := retry.Sleep(ctx, retry.Pause(failures, time.Millisecond, 32*time.Millisecond)); err != nil {
			return err
		}
	}
}
