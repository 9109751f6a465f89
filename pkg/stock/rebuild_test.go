package stock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// records returns n records that were held one after the other: live holds, sales and ended ones in turn.
func records(lot drop.LotID, n int, at time.Time) []drop.Record {
	out := make([]drop.Record, n)
	for i := range out {
		user := fmt.Sprint("user-", i)
		r := drop.Record{Reservation: drop.Reservation{Asked: "1/0", ID: drop.ReservationID{Lot: lot, Attempt: drop.AttemptOf(lot, user, "k"), N: int64(i + 1)},
			User: user, State: []drop.State{drop.Held, drop.Confirmed, drop.Released, drop.Expired, drop.Refunded}[i%5], Qty: 1, LastSeq: int64(i + 1), Created: at,
			Deadline: at.Add(time.Duration(i%600) * time.Second)}}
		if r.State != drop.Held && r.State != drop.Confirmed {
			r.Ended = at.Add(-time.Duration(i%600) * time.Second)
		}
		if r.State == drop.Confirmed {
			r.ConfirmedAt = at
		}
		out[i] = r
	}
	return out
}

// rebuild loads records over what Redis has of a lot.
func rebuild(s *Stock, lot drop.LotID, epoch int64, planned Plan, all []drop.Record) error {
	var held, sold int64
	var users []drop.UserCount
	for _, r := range all {
		u := drop.UserCount{User: r.User}
		switch r.State {
		case drop.Held:
			held, u.Held, u.Live = held+1, 1, r.ID.Attempt
		case drop.Confirmed:
			sold, u.Bought = sold+1, 1
		default:
			continue
		}
		users = append(users, u)
	}
	_, err := s.Rebuild(context.Background(), RebuildRequest{
		LoadRequest: LoadRequest{Definition: drop.Definition{Lot: lot, Stock: int64(len(all))}, Epoch: epoch, Closing: drop.Watermark{Epoch: epoch - 1, Seq: int64(len(all))},
			Held: held, Sold: sold, Planned: planned, Actor: "op", Reason: "why"},
		Records: func(_ context.Context, fn func([]drop.Record) error) error { return fn(all) },
		Users:   func(_ context.Context, fn func([]drop.UserCount) error) error { return fn(users) },
	})
	return err
}

// TestARebuiltLotAppearsAtOnce breaks a rebuild off, looks that nothing of it shows, and does it again. Every hold ends in
// its time and every ended reservation is forgotten in its time, though their due entries were put together.
func TestARebuiltLotAppearsAtOnce(t *testing.T) {
	s, rdb, _ := newShop(t)
	const lot = drop.LotID("hat")
	newLot(t, s, drop.Definition{Lot: lot, Stock: 5})
	reserve(t, s, lot, "old", "k", 2)
	seen, err := s.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	all := records(lot, 3000, seen.Now)
	broken := errors.New("broken off")
	_, err = s.Rebuild(t.Context(), RebuildRequest{LoadRequest: LoadRequest{Definition: seen.Definition, Epoch: 2, Planned: PlanOf(seen)},
		Records: func(_ context.Context, fn func([]drop.Record) error) error {
			if err := fn(all[:2000]); err != nil {
				return err
			}
			return broken
		}})
	if !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if now, err := s.Lot(t.Context(), lot); err != nil || now.Totals != seen.Totals || now.Watermark != seen.Watermark {
		t.Errorf("a rebuild that was broken off left %+v, %v", now, err)
	}
	stale := PlanOf(seen)
	stale.Watermark.Seq--
	wantCode(t, rebuild(s, lot, 3, stale, all), fault.Conflict)
	if err := rebuild(s, lot, 3, PlanOf(seen), all); err != nil {
		t.Fatal(err)
	}
	state := wantTotals(t, s, lot, 3000-1200, 600, 600)
	if state.Watermark != (drop.Watermark{Epoch: 3, Seq: 3001}) {
		t.Errorf("it stands at %+v", state.Watermark)
	}
	wantParts(t, s, lot, state.Totals)
	if left, err := rdb.Keys(t.Context(), "*stage*").Result(); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if gone, err := s.RecordsOf(t.Context(), lot, []string{drop.AttemptOf(lot, "old", "k")}); err != nil || len(gone) > 0 {
		t.Errorf("what was there before still is: %v, %v", gone, err)
	}
	entries := 0
	if err := s.DueEntries(t.Context(), lot, func(page []drop.DueEntry) error { entries += len(page); return nil }); err != nil || entries > 24 {
		t.Errorf("%d due entries of 2400 attempts, %v", entries, err)
	}
	// Half of the deadlines, from 0 to 600 s, have passed; then all; then every retention.
	sweepAll := func() (n int) {
		for {
			out, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 5000)
			if err != nil {
				t.Fatal(err)
			}
			if n += out.Expired; !out.More {
				return n
			}
		}
	}
	passTime(t, s, rdb, 300*time.Second, lot)
	half := 0
	for _, r := range all {
		if r.State == drop.Held && r.Deadline.Sub(seen.Now) <= 300*time.Second {
			half++
		}
	}
	if n := sweepAll(); n < half || n > half+12 { // the clock went on by itself as well
		t.Errorf("%d holds ended of %d", n, half)
	}
	passTime(t, s, rdb, time.Hour, lot)
	sweepAll()
	wantTotals(t, s, lot, 2400, 0, 600)
	passTime(t, s, rdb, 25*time.Hour, lot)
	sweepAll()
	left := 0
	if err := s.Records(t.Context(), lot, func(page []drop.Reservation) error { left += len(page); return nil }); err != nil || left != 600 {
		t.Errorf("%d records are left of 600 sales, %v", left, err)
	}
}

// TestStagingTakesNoOtherSlices gives slices in a wrong order, of another epoch, and to another installation's shard.
func TestStagingTakesNoOtherSlices(t *testing.T) {
	sc := newScene(t, true)
	keys := sc.s.shardOf(sceneLot).keys.staging(sceneLot)
	stage := func(args ...string) string { return sc.run(t, "stage", keys, append(sc.door[:], args...)) }
	for i, step := range []struct{ want, args string }{
		{"conflict", "2 2 0 a b"}, {"ok", "2 1 0"}, {"conflict", "2 3 0 a b"}, {"ok", "2 2 1 due a b"}, {"ok", "2 2 1 due a b"}, {"conflict", "3 3 0 a b"},
		{"ok", "2 3 0"}, {"ok", "2 2 0 a b"}, {"ok", "2 4 0"}, {"invalid", "2 0 0"}, {"invalid", "2 5 0 a"}, {"invalid", "2 5 3 a b"}, {"invalid", "x 5 0"}, {"invalid", "2 5 -1"}, {"invalid", "2"},
	} {
		if status := stage(strings.Fields(step.args)...); status != step.want {
			t.Errorf("step %d, slice %s: %s", i, step.args, status)
		}
	}
	door := sc.door
	sc.door[1] = "other/1"
	if status := stage("2", "5", "0"); status != "foreign_installation" {
		t.Error(status)
	}
	sc.door = door
	// A lot that sells keeps its due entries, whoever stages what.
	if members := sc.dueMembers(t); len(members) == 0 {
		t.Error("due entries are lost")
	}
	seen, err := sc.s.Lot(t.Context(), sceneLot)
	if err != nil {
		t.Fatal(err)
	}
	for _, staged := range []struct {
		epoch  int64
		slices int
	}{{3, 4}, {2, 3}, {2, 5}} {
		_, err := sc.s.load(t.Context(), LoadRequest{Definition: seen.Definition, Epoch: staged.epoch, Planned: PlanOf(seen)}, staged.slices)
		wantCode(t, err, fault.Conflict)
	}
}

// TestALoadOpensOnlyAnEmptyShard: one that has lost nothing but its door has lots that nobody has compared.
func TestALoadOpensOnlyAnEmptyShard(t *testing.T) {
	s, rdb, _ := newShop(t)
	k := s.shardOf("g:one").keys
	if err := rdb.XGroupCreateMkStream(t.Context(), k.outbox, consumerGroup, "0").Err(); err != nil { // a relay came first
		t.Fatal(err)
	}
	for _, lot := range []drop.LotID{"g:one", "g:two"} {
		newLot(t, s, drop.Definition{Lot: lot, Stock: 5})
		reserve(t, s, lot, "ann", "k", 1)
	}
	rdb.XTrimMaxLen(t.Context(), k.outbox, 0) // the ledger has had all of it for long
	rdb.Del(t.Context(), k.meta)
	seen, err := s.Lot(t.Context(), "g:one")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Load(t.Context(), LoadRequest{Definition: seen.Definition, Epoch: 2, Closing: seen.Watermark, Planned: PlanOf(seen)}); err != nil {
		t.Fatal(err)
	}
	for _, lot := range []drop.LotID{"g:one", "g:two"} {
		_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "bob", Key: "k", Qty: 1})
		wantCode(t, err, fault.LotFrozen)
	}
	// The next load was planned while there was no door yet; one that was planned on other contents is refused still.
	second, err := s.Lot(t.Context(), "g:two")
	if err != nil {
		t.Fatal(err)
	}
	second.OpenRun = ""
	stale := PlanOf(second)
	stale.Watermark.Seq--
	load := LoadRequest{Definition: second.Definition, Epoch: 2, Closing: second.Watermark, Planned: stale}
	wantCode(t, s.Load(t.Context(), load), fault.Conflict)
	load.Planned = PlanOf(second)
	if err := s.Load(t.Context(), load); err != nil {
		t.Fatal(err)
	}
}

// TestALateSliceTakesNoDueEntryAway: whoever lost the lock in the middle of a rebuild may stage something after another has
// loaded the lot. A hold without its due entry would never end.
func TestALateSliceTakesNoDueEntryAway(t *testing.T) {
	sc := newScene(t, true)
	seen, err := sc.s.Lot(t.Context(), sceneLot)
	if err != nil {
		t.Fatal(err)
	}
	if err := sc.s.FreezeLot(t.Context(), seen, fault.FreezeAhead); err != nil {
		t.Fatal(err)
	}
	keys := sc.s.shardOf(sceneLot).keys.staging(sceneLot)
	before := len(sc.dueMembers(t))
	for _, step := range []struct {
		epoch int64
		stay  bool
	}{{seen.Epoch - 1, true}, {seen.Epoch, true}, {seen.Epoch + 1, false}} {
		if status := sc.run(t, "stage", keys, append(sc.door[:], itoa(step.epoch), "1", "0")); status != "ok" {
			t.Fatal(status)
		}
		if left := len(sc.dueMembers(t)); (left == before) != step.stay {
			t.Errorf("staged for epoch %d, the lot being of %d: %d due entries of %d are left", step.epoch, seen.Epoch, left, before)
		}
	}
}

// TestRebuildScriptsAreNeverHalfDone runs them with keys of another type, and with arguments that are no arguments.
func TestRebuildScriptsAreNeverHalfDone(t *testing.T) {
	sc := newScene(t, true)
	seen, err := sc.s.Lot(t.Context(), sceneLot)
	if err != nil {
		t.Fatal(err)
	}
	was := PlanOf(seen).text()
	k := sc.s.shardOf(sceneLot).keys
	for _, call := range []struct {
		script string
		keys   []string
		args   []string
	}{
		{"stage", k.staging(sceneLot), []string{"2", "1", "1", "entry", "a", "b"}},
		{"remove", k.staging(sceneLot), []string{string(sceneLot), was}},
		{"freeze", k.gated(sceneLot), []string{string(sceneLot), "freeze", "fork", was}},
	} {
		for i, key := range call.keys {
			sc.reset(t)
			sc.rdb.Del(t.Context(), key)
			if err := sc.rdb.Do(t.Context(), stray(key)...).Err(); err != nil {
				t.Fatal(err)
			}
			before := contents(t, sc.rdb)
			status := sc.run(t, call.script, call.keys, append(sc.door[:], call.args...))
			if status != "ok" && !maps.Equal(before, contents(t, sc.rdb)) {
				t.Errorf("%s with key %d of another type answered %q and changed something", call.script, i, status)
			}
		}
		for n := range call.args {
			sc.reset(t)
			before := contents(t, sc.rdb)
			if status := sc.run(t, call.script, call.keys, append(sc.door[:], call.args[:n]...)); status != "ok" && !maps.Equal(before, contents(t, sc.rdb)) {
				t.Errorf("%s with %d arguments answered %q and changed something", call.script, n, status)
			}
		}
	}
	sc.reset(t)
	later := seen
	later.Seq++
	wantCode(t, sc.s.Remove(t.Context(), later), fault.Conflict)
	if err := sc.s.Remove(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if err := sc.s.Remove(t.Context(), seen); err != nil { // it is gone already
		t.Fatal(err)
	}
	if lots, err := sc.s.Lots(t.Context()); err != nil || !slices.Equal(lots, []drop.LotID{otherLot}) {
		t.Errorf("left are %v, %v", lots, err)
	}
	if out, err := sc.s.Sweep(t.Context(), sceneLot.Shard(sc.s.Shards()), 100); err != nil || out.Expired != 1 || out.More {
		t.Errorf("the other lot is swept %+v, %v", out, err)
	}
}
