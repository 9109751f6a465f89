package wire_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/seed"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// key is a lot's key in Redis.
func (s shop) key(t *testing.T, lot drop.LotID) string {
	t.Helper()
	key, err := s.redis.Do(t.Context(), "KEYS", "drop:{*}:lot:"+string(lot))
	if err != nil || key == "" {
		t.Fatalf("the key of %s: %q, %v", lot, key, err)
	}
	return key
}

// copyNewest writes the newest entry of an outbox again.
const copyNewest = `local e = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][2]
return redis.call('XADD', KEYS[1], '*', unpack(e))`

// Each kind of fault, made by hand in a lot of its own, is found in that lot and counted, and none where there is none.
func TestTheAuditFindsPlantedFaults(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := openShop(t)
	faults := map[drop.LotID]struct {
		before, after func(lot drop.LotID, last drop.ReservationID) // the sales; after: everything is recorded
		want          bench.Audit                                   // what it adds to the counts
		says          string
	}{
		"sound": {},
		"oversold": {before: func(lot drop.LotID, _ drop.ReservationID) {
			testkit.Plant(t, s.redis, s.key(t, lot), "available", 2) // as if a bug had given units back twice
		}, want: bench.Audit{Oversold: 2}, says: "2 units were sold beyond its capacity"},
		"oversold-recorded": {after: func(lot drop.LotID, _ drop.ReservationID) {
			testkit.Forge(t, s.db, fmt.Sprintf(`INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref) VALUES ('%s', 99, 1, 'sale', 3, 'a', 'eve', '')`, lot))
		}, want: bench.Audit{Oversold: 2}, says: "2 units were sold beyond its capacity"},
		"leaked": {after: func(lot drop.LotID, _ drop.ReservationID) {
			testkit.Plant(t, s.redis, s.key(t, lot), "available", -1)
		}, want: bench.Audit{Leaked: 1}, says: "1 units are neither available, nor held, nor sold"},
		"leaked-record": {after: func(lot drop.LotID, last drop.ReservationID) {
			if _, err := s.redis.Do(t.Context(), "HDEL", s.key(t, lot), last.Attempt); err != nil {
				t.Fatal(err)
			}
		}, want: bench.Audit{Leaked: 1}, says: "record"},
		"doubled-in-redis": {after: func(lot drop.LotID, _ drop.ReservationID) {
			outbox := strings.Replace(s.key(t, lot), ":lot:"+string(lot), ":outbox", 1)
			if _, err := s.redis.Do(t.Context(), "EVAL", copyNewest, "1", outbox); err != nil {
				t.Fatal(err)
			}
		}, want: bench.Audit{Doubled: 1}, says: "twice"},
		"doubled-event": {after: func(lot drop.LotID, last drop.ReservationID) {
			testkit.Forge(t, s.db, fmt.Sprintf(`INSERT INTO reservation_events SELECT lot, epoch, seq + 100, kind, reservation, event_at, line, hash FROM reservation_events
				WHERE lot = '%s' AND reservation = %d AND kind = 'confirmed'`, lot, last.N))
		}, want: bench.Audit{Doubled: 1}, says: "recorded twice"},
		"broken-chain": {after: func(lot drop.LotID, _ drop.ReservationID) {
			testkit.Forge(t, s.db, fmt.Sprintf(`UPDATE reservation_events SET hash = hash || '\x00' WHERE lot = '%s' AND seq = 2`, lot))
		}, says: "its history at 1/2: its hash does not follow"},
	}
	list, want := "lot,stock\n", bench.Audit{Verdict: bench.AuditBroken}
	for lot, f := range faults {
		list += string(lot) + ",3\n"
		want.Oversold, want.Leaked, want.Doubled = want.Oversold+f.want.Oversold, want.Leaked+f.want.Leaked, want.Doubled+f.want.Doubled
	}
	s.mustSeed(t, list, seed.Options{})
	last := map[drop.LotID]drop.ReservationID{}
	for lot := range faults {
		last[lot] = s.sell(t, lot, 2)
	}
	drain := func() {
		t.Helper()
		if err := wire.Drain(t.Context(), s.stock, s.ledger, time.Minute, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	drain()
	o := wire.AuditOptions{Wait: 20 * time.Second, Actor: "test"}
	if a, err := wire.AuditShop(t.Context(), s.stock, s.ledger, o); err != nil || a.Verdict != bench.AuditOK || len(a.Findings) > 0 {
		t.Fatalf("a sound shop: %+v, %v", a, err)
	}

	for lot, f := range faults {
		if f.before != nil {
			f.before(lot, last[lot])
			for _, user := range []string{"ann", "bob", "cy"} { // of whom one finds a unit that there is
				out, err := s.stock.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 1})
				if err == nil {
					_, err = s.stock.Settle(t.Context(), drop.SettleRequest{ID: out.Reservation.ID, Action: drop.ActConfirm, Ref: "paid"})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	drain()
	for lot, f := range faults {
		if f.after != nil {
			f.after(lot, last[lot])
		}
	}
	a, err := wire.AuditShop(t.Context(), s.stock, s.ledger, wire.AuditOptions{Actor: "test"})
	if err != nil || a.Verdict != want.Verdict || a.Oversold != want.Oversold || a.Leaked != want.Leaked || a.Doubled != want.Doubled {
		t.Errorf("found %+v, %v; want %+v", a, err, want)
	}
	for lot, f := range faults {
		var about []string
		for _, text := range a.Findings {
			if strings.HasPrefix(text, string(lot)+": ") {
				about = append(about, text)
			}
		}
		if all := strings.Join(about, "\n"); f.says == "" && all != "" || !strings.Contains(all, f.says) {
			t.Errorf("of %s: %q, want %q", lot, all, f.says)
		}
	}
}

// What is not recorded yet can be judged by nobody: that is no broken promise, and no good one.
func TestTheAuditSaysWhatItCouldNotSee(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	s := openShop(t)
	s.mustSeed(t, "lot,stock\nhat,3\n", seed.Options{})
	s.sell(t, "hat", 2)
	a, err := wire.AuditShop(t.Context(), s.stock, s.ledger, wire.AuditOptions{Actor: "test"})
	if err != nil || a.Verdict != bench.AuditNone || len(a.Findings) != 1 {
		t.Errorf("%+v, %v", a, err)
	}
}
