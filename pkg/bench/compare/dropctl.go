package compare

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/stock"
)

// dropctl is the engine with everything on: limit, deadlines, idempotency keys, and the outbox from which PostgreSQL is
// written afterwards (what that costs is measured by bench bars). It gathers the requests of all callers and sends one
// script call for many.
var dropctl = Model{Name: "dropctl", Does: "this engine: one script call for many requests, with an outbox", place: onRedis,
	open: func(_ context.Context, c client) (shop, error) { return openEngine(c, "memory") }}

// dropctlFsync answers only what is on the disk.
var dropctlFsync = Model{Name: "dropctl-fsync", Does: "the same, and every answer waits for the disk (appendfsync always)", place: onRedisSynced,
	open: func(_ context.Context, c client) (shop, error) { return openEngine(c, "disk") }}

type engine struct {
	stock *stock.Stock
	name  string       // of this process, unlike any other's
	asked atomic.Int64 // requests: each has a key of its own, as those of different clicks have
}

func openEngine(c client, durability string) (shop, error) {
	// No worker empties the outbox here, so its ceiling is out of the way.
	s, err := stock.Open(stock.Options{URL: c.url, Installation: "compare", OutboxMaxBytes: 1 << 40, Timeout: 10 * time.Second, Durability: durability})
	if err != nil {
		return nil, err
	}
	return &engine{stock: s, name: rand.Text()[:8]}, nil
}

func (s *engine) Close() error { return s.stock.Close() }

func (s *engine) Stock(ctx context.Context, lots []drop.LotID, units int64) error {
	for _, lot := range lots {
		d := drop.Definition{Lot: lot, Stock: units, Limit: 1}
		if err := s.stock.Load(ctx, stock.LoadRequest{Definition: d.WithDefaults(), Epoch: 1, Actor: "bench", Reason: "compare"}); err != nil {
			return err
		}
	}
	return nil
}

func (s *engine) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	key := s.name + strconv.FormatInt(s.asked.Add(1), 36)
	out, err := s.stock.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: user, Key: key, Qty: 1, Hold: hold})
	if fault.Is(err, fault.HoldExists) {
		err = overLimit(user)
	}
	return claim{lot: lot, user: user, id: out.Reservation.ID}, err
}

func (s *engine) Confirm(ctx context.Context, c claim) error {
	_, err := s.stock.Settle(ctx, drop.SettleRequest{ID: c.id, Action: drop.ActConfirm, Actor: "bench"})
	return err
}

func (s *engine) Sweep(ctx context.Context) error {
	var errs []error
	for shard := range s.stock.Shards() {
		for more := true; more; {
			out, err := s.stock.Sweep(ctx, shard, 1000)
			errs = append(errs, err)
			more = err == nil && out.More
		}
	}
	return errors.Join(errs...)
}

func (s *engine) Knows(ctx context.Context, c claim) (bool, error) {
	known, err := s.stock.RecordsOf(ctx, c.lot, []string{c.id.Attempt})
	_, ok := known[c.id.Attempt]
	return ok, err
}
