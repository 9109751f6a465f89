package stock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// TestAMisplacedKeyIsNamed puts something else into each key of a shard. Whoever meets it is told which key it is, what is
// there, and what to do; Redis itself says neither.
func TestAMisplacedKeyIsNamed(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 10, Hold: time.Minute})
	reserve(t, s, lot, "ann", "k", 1)
	sh := s.shardOf(lot)
	hold := func(ctx context.Context) error {
		_, err := s.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: "bob", Key: "k", Qty: 1})
		return err
	}
	for _, c := range []struct {
		key, then string
		meet      map[string]func(ctx context.Context) error
	}{
		{sh.keys.due, "dropctl reconcile --deep --repair", map[string]func(ctx context.Context) error{
			"reserve": hold,
			"due entries": func(ctx context.Context) error {
				return s.DueEntries(ctx, lot, func([]drop.DueEntry) error { return nil })
			},
			"next look": func(ctx context.Context) error { _, _, err := s.NextLook(ctx, lot); return err },
		}},
		{sh.keys.next, "dropctl reconcile --deep --repair", map[string]func(ctx context.Context) error{
			"sweep":     func(ctx context.Context) error { _, err := s.Sweep(ctx, sh.number, 10); return err },
			"next look": func(ctx context.Context) error { _, _, err := s.NextLook(ctx, lot); return err },
		}},
		{sh.keys.outbox, "dropctl reconcile --deep", map[string]func(ctx context.Context) error{
			"reserve": hold,
			"read":    func(ctx context.Context) error { _, err := s.ReadNew(ctx, sh.number, "c", 10, -1); return err },
			"state":   func(ctx context.Context) error { _, err := s.OutboxState(ctx, sh.number); return err },
			"newest":  func(ctx context.Context) error { _, err := s.NewestEvent(ctx, lot); return err },
		}},
		{sh.keys.meta, "dropctl restore --all", map[string]func(ctx context.Context) error{
			"reserve": hold,
			"door":    func(ctx context.Context) error { _, err := s.ShardState(ctx, sh.number); return err },
			"set up":  func(ctx context.Context) error { _, _, err := s.SetUp(ctx); return err },
		}},
		{sh.keys.lot(lot), "dropctl restore l", map[string]func(ctx context.Context) error{
			"reserve": hold,
			"records": func(ctx context.Context) error {
				return s.Records(ctx, lot, func([]drop.Reservation) error { return nil })
			},
			"unknown": func(ctx context.Context) error { _, err := s.Unknown(ctx, lot, "carl", "k"); return err },
		}},
	} {
		if err := rdb.Rename(t.Context(), c.key, "aside").Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Set(t.Context(), c.key, "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		for name, meet := range c.meet {
			err := meet(t.Context())
			if !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "the key "+c.key+" is ") || !strings.HasSuffix(fault.HintOf(err), c.then) || fault.As(err).Details["key"] != c.key {
				t.Errorf("%s with another %s is answered %v (%s)", name, c.key, err, fault.HintOf(err))
			}
		}
		h, err := s.Health(t.Context())
		if err == nil && c.key != sh.keys.lot(lot) && (len(h.Nodes[0].Misplaced) != 1 || h.Nodes[0].Misplaced[0].Key != c.key || !strings.Contains(h.Nodes[0].Misplaced[0].What, "a string")) {
			t.Errorf("with another %s its health is %+v, %v", c.key, h.Nodes[0].Misplaced, err)
		}
		if err := rdb.Rename(t.Context(), "aside", c.key).Err(); err != nil {
			t.Fatal(err)
		}
	}
	reserve(t, s, lot, "bob", "k", 1)
	wantTotals(t, s, lot, 8, 2, 0)
}

// TestAShardWhoseCountersAreGarbageIsLookedAt: a look says where the shard stands; only who would write is refused.
func TestAShardWhoseCountersAreGarbageIsLookedAt(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 10})
	sh := s.shardOf(lot)
	if err := rdb.HSet(t.Context(), sh.keys.meta, "bytes", "x", "trimmed", "").Err(); err != nil {
		t.Fatal(err)
	}
	if st, err := s.ShardState(t.Context(), sh.number); err != nil || !st.Exists || st.Closed() {
		t.Errorf("%+v, %v", st, err)
	}
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "bob", Key: "k", Qty: 1})
	if !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("reserving: %v", err)
	}
}
