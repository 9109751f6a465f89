package stock

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

const installation = "11111111-2222-3333-4444-555555555555"

// openStock returns an engine of the test's installation on a server.
func openStock(t testing.TB, url string, change ...func(*Options)) *Stock {
	t.Helper()
	o := Options{URL: url, Installation: installation}
	for _, c := range change {
		c(&o)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newLot loads a lot for the first time.
func newLot(t testing.TB, s *Stock, d drop.Definition) drop.LotID {
	t.Helper()
	if err := s.Load(t.Context(), LoadRequest{Definition: d, Epoch: 1, Actor: "test", Reason: "seed"}); err != nil {
		t.Fatal(err)
	}
	return d.Lot
}

func reserve(t testing.TB, s *Stock, lot drop.LotID, user, key string, qty int64) drop.Outcome {
	t.Helper()
	out, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: user, Key: key, Qty: qty})
	if err != nil {
		t.Fatalf("reserve %s/%s: %v", user, key, err)
	}
	return out
}

func wantCode(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if fault.CodeOf(err) != code {
		t.Fatalf("got %q (%v), want %q", fault.CodeOf(err), err, code)
	}
}

func wantTotals(t testing.TB, s *Stock, lot drop.LotID, available, held, sold int64) drop.LotState {
	t.Helper()
	state, err := s.Lot(context.Background(), lot)
	if err != nil {
		t.Fatal(err)
	}
	if state.Available != available || state.Held != held || state.Sold != sold || !state.Balanced() {
		t.Fatalf("totals are %+v, want available %d, held %d, sold %d", state.Totals, available, held, sold)
	}
	return state
}

func TestReserveConfirmReleaseRefund(t *testing.T) {
	s := openStock(t, testkit.Redis(t).URL())
	lot := newLot(t, s, drop.Definition{Lot: "g:truffle", Stock: 10, Limit: 4})
	a := reserve(t, s, lot, "ann", "k1", 2)
	if a.Replayed || a.Remaining != 2 || a.Reservation.State != drop.Held {
		t.Fatalf("first answer: %+v", a)
	}
	again := reserve(t, s, lot, "ann", "k1", 2)
	if !again.Replayed || again.Reservation.ID != a.Reservation.ID || again.Remaining != 2 {
		t.Fatalf("replay: %+v", again)
	}
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "k1", Qty: 1})
	wantCode(t, err, fault.KeyReused)
	_, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "k2", Qty: 1})
	wantCode(t, err, fault.HoldExists)

	confirm := drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Ref: "pay-1"}
	for _, replayed := range []bool{false, true} {
		c, err := s.Settle(t.Context(), confirm)
		if err != nil || c.Replayed != replayed || c.Reservation.State != drop.Confirmed || c.Reservation.Ref != "pay-1" {
			t.Fatalf("confirm: %+v, %v", c, err)
		}
	}
	wantTotals(t, s, lot, 8, 0, 2)
	_, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "k3", Qty: 3})
	wantCode(t, err, fault.CustomerLimit)

	b := reserve(t, s, lot, "bob", "k1", 4)
	for _, step := range []struct {
		keep     int64
		replayed bool
		held     int64
	}{{3, false, 3}, {3, true, 3}, {0, false, 0}, {0, true, 0}} {
		r, err := s.Settle(t.Context(), drop.SettleRequest{ID: b.Reservation.ID, Action: drop.ActRelease, Keep: step.keep})
		if err != nil || r.Replayed != step.replayed {
			t.Fatalf("release keep %d: %+v, %v", step.keep, r, err)
		}
		wantTotals(t, s, lot, 8-step.held, step.held, 2)
	}
	_, err = s.Settle(t.Context(), drop.SettleRequest{ID: b.Reservation.ID, Action: drop.ActConfirm})
	wantCode(t, err, fault.AlreadyReleased)

	for _, step := range []struct {
		total     int64
		noRestock bool
		replayed  bool
		capacity  int64
		sold      int64
	}{{1, true, false, 9, 1}, {1, true, true, 9, 1}, {-1, false, false, 9, 0}, {-1, false, true, 9, 0}} {
		r, err := s.Settle(t.Context(), drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActRefund, Total: step.total, NoRestock: step.noRestock})
		if err != nil || r.Replayed != step.replayed {
			t.Fatalf("refund %+v: %+v, %v", step, r, err)
		}
		wantTotals(t, s, lot, step.capacity-step.sold, 0, step.sold)
	}
}

func TestDeadlineDecidesNotTheSweep(t *testing.T) {
	t.Parallel()
	s := openStock(t, testkit.Redis(t).URL())
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 1, Hold: time.Second})
	a := reserve(t, s, lot, "ann", "k", 1)
	waitPast(t, s, lot, a.Reservation.Deadline)
	for _, action := range []drop.Action{drop.ActConfirm, drop.ActRelease, drop.ActExtend} {
		_, err := s.Settle(t.Context(), drop.SettleRequest{ID: a.Reservation.ID, Action: action, By: time.Second})
		wantCode(t, err, fault.HoldExpired)
	}
	b := reserve(t, s, lot, "bob", "k", 1)
	replay := reserve(t, s, lot, "ann", "k", 1)
	if replay.Reservation.State != drop.Expired {
		t.Fatalf("the replay shows %s", replay.Reservation.State)
	}
	waitPast(t, s, lot, b.Reservation.Deadline)
	out, err := s.Settle(t.Context(), drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Late: drop.Reclaim, Ref: "p"})
	if err != nil || out.Reservation.State != drop.Confirmed || out.Reservation.From != a.Reservation.ID.N {
		t.Fatalf("reclaim: %+v, %v", out, err)
	}
	again, err := s.Settle(t.Context(), drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Late: drop.Reclaim, Ref: "p"})
	if err != nil || !again.Replayed || again.Reservation.ID != out.Reservation.ID {
		t.Fatalf("reclaim again: %+v, %v", again, err)
	}
	_, err = s.Settle(t.Context(), drop.SettleRequest{ID: b.Reservation.ID, Action: drop.ActConfirm, Late: drop.Reclaim, Ref: "q"})
	wantCode(t, err, fault.SoldOut)
	wantTotals(t, s, lot, 0, 0, 1)
}

// waitPast waits until Redis' clock has reached a time.
func waitPast(t testing.TB, s *Stock, lot drop.LotID, at time.Time) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		state, err := s.Lot(context.Background(), lot)
		return err == nil && !state.Now.Before(at), "the deadline has not come"
	})
}

func TestOutboxTellsEverything(t *testing.T) {
	s := openStock(t, testkit.Redis(t).URL())
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 3})
	a := reserve(t, s, lot, "ann", "k", 2)
	if _, err := s.Settle(t.Context(), drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Ref: "p", Actor: "op", Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	shard := lot.Shard(s.Shards())
	entries, err := s.ReadNew(t.Context(), shard, "c", 100, -1)
	if err != nil {
		t.Fatal(err)
	}
	var events []drop.Event
	var ids []string
	for _, e := range entries {
		got, poison := e.Decode()
		if len(poison) > 0 {
			t.Fatalf("poison: %+v", poison)
		}
		events, ids = append(events, got...), append(ids, e.ID)
	}
	if len(events) != 3 || events[0].Kind != drop.KindLoaded || events[1].Kind != drop.KindHeld || events[2].Kind != drop.KindConfirmed {
		t.Fatalf("events: %+v", events)
	}
	if c := events[2]; c.Ref != "p" || c.Qty != 2 || c.Actor != "op" || c.Reason != "why" || c.Reservation != a.Reservation.ID || c.Installation != installation {
		t.Fatalf("confirmed: %+v", c)
	}
	if err := s.Ack(t.Context(), shard, ids); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Trim(t.Context(), shard, 0); err != nil || n < 2 {
		t.Fatalf("trimmed %d, %v", n, err)
	}
}

func TestRestartedServerIsShut(t *testing.T) {
	r := testkit.Redis(t, lab.RedisOptions{Fsync: "always"})
	s := openStock(t, r.URL())
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 3})
	reserve(t, s, lot, "ann", "k", 1)
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		_, err := s.Reserve(context.Background(), drop.ReserveRequest{Lot: lot, User: "bob", Key: "k", Qty: 1})
		if err == nil {
			t.Fatal("a restarted server took a hold before anybody had looked")
		}
		return fault.Is(err, fault.LotFrozen), err.Error()
	})
	st, err := s.ShardState(t.Context(), lot.Shard(16))
	if err != nil || !st.Closed() {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := s.Reopen(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	reserve(t, s, lot, "bob", "k", 1)
	wantTotals(t, s, lot, 1, 2, 0)
}

// TestEventsBehindTheMarkCanBeRead: while the clock is behind the marks of several lots, all events of a call carry one
// time, and the ledger can read them.
func TestEventsBehindTheMarkCanBeRead(t *testing.T) {
	s := openStock(t, testkit.Redis(t).URL())
	at := time.Now().Truncate(time.Millisecond)
	lots := []drop.LotID{"g:a", "g:b", "g:c"}
	for i, lot := range lots {
		mark := at.Add(time.Duration(i) * 800 * time.Millisecond)
		if err := s.Load(t.Context(), LoadRequest{Definition: drop.Definition{Lot: lot, Stock: 50}, Epoch: 1, Mark: mark}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			user := fmt.Sprint("user-", i)
			out, err := s.Reserve(context.Background(), drop.ReserveRequest{Lot: lots[i%3], User: user, Key: "k", Qty: 1})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := s.Settle(context.Background(), drop.SettleRequest{ID: out.Reservation.ID, Action: drop.ActConfirm}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	entries, err := s.ReadNew(t.Context(), lots[0].Shard(s.Shards()), "c", 1000, -1)
	if err != nil {
		t.Fatal(err)
	}
	events := 0
	for _, e := range entries {
		good, poison := e.Decode()
		if len(poison) > 0 {
			t.Fatalf("an event cannot be read: %+v", poison)
		}
		events += len(good)
	}
	if events != 3+60+60 {
		t.Fatalf("%d events", events)
	}
}

// TestOnlyTheServerThatWasComparedIsOpened: the guardian's look is of one server; another one in its place stays shut.
func TestOnlyTheServerThatWasComparedIsOpened(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 3})
	meta := s.shardOf(lot).keys.meta
	if err := rdb.HSet(t.Context(), meta, "run", "an earlier server").Err(); err != nil {
		t.Fatal(err)
	}
	seen, err := s.ShardState(t.Context(), lot.Shard(s.Shards()))
	if err != nil || !seen.Closed() {
		t.Fatalf("%+v, %v", seen, err)
	}
	other := seen
	other.Run = "the server that was compared"
	wantCode(t, s.Reopen(t.Context(), other), fault.Conflict)
	wantCode(t, s.Freeze(t.Context(), other, fault.FreezeBehind), fault.Conflict)
	if err := s.Reopen(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
}

// TestAFreezeIsEndedByThoseWhoSawIt: a guardian that stood still since an earlier freeze for the same reason does not end a
// later one.
func TestAFreezeIsEndedByThoseWhoSawIt(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 3})
	look := func() drop.ShardState {
		st, err := s.ShardState(t.Context(), lot.Shard(s.Shards()))
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	freeze := func() drop.ShardState {
		if err := s.Freeze(t.Context(), look(), fault.FreezeClock); err != nil {
			t.Fatal(err)
		}
		return look()
	}
	for range 2 { // the first opening is no special case
		earlier := freeze()
		if err := s.Reopen(t.Context(), earlier); err != nil {
			t.Fatal(err)
		}
		reserve(t, s, lot, "ann", "k", 1)
		later := freeze()
		wantCode(t, s.Reopen(t.Context(), earlier), fault.Conflict)
		_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "bob", Key: "k", Qty: 1})
		wantCode(t, err, fault.LotFrozen)
		if err := s.Reopen(t.Context(), later); err != nil {
			t.Fatal(err)
		}
	}
}

// TestASplitDueEntryForgetsNobody: a sweep that ends in the middle of a batch's entry must not take away the later
// entry of a hold that was extended.
func TestASplitDueEntryForgetsNobody(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 10, Hold: time.Minute, MaxHold: time.Hour})
	holds := make([]drop.Outcome, 8)
	inParallel(len(holds), func(i int) {
		var err error
		if holds[i], err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: fmt.Sprint("user-", i), Key: "k", Qty: 1}); err != nil {
			t.Error(err)
		}
	})
	for _, h := range holds[:4] {
		if _, err := s.Settle(t.Context(), drop.SettleRequest{ID: h.Reservation.ID, Action: drop.ActExtend, By: 10 * time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		pass time.Duration
		held int64
	}{{2 * time.Minute, 4}, {20 * time.Minute, 0}} {
		passTime(t, s, rdb, step.pass, lot)
		for range 40 {
			if _, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 1); err != nil {
				t.Fatal(err)
			}
		}
		wantTotals(t, s, lot, 10-step.held, step.held, 0)
	}
}

// TestADueEntryThatNamesAHoldTwiceGivesItsUnitsBackOnce: whatever is wrong with a due entry, the records count.
func TestADueEntryThatNamesAHoldTwiceGivesItsUnitsBackOnce(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 10, Hold: time.Minute})
	attempt := reserve(t, s, lot, "ann", "k", 3).Reservation.ID.Attempt
	passTime(t, s, rdb, time.Hour, lot)
	members := []redis.Z{{Member: dueMember(lot, 1, attempt+attempt)}, {Member: dueMember(lot, 2, attempt)}}
	if err := rdb.ZAdd(t.Context(), s.shardOf(lot).keys.due, members...).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 100); err != nil {
		t.Fatal(err)
	}
	wantParts(t, s, lot, wantTotals(t, s, lot, 10, 0, 0).Totals)
}

// TestAChangeIsCheckedWhereItIsMade: two changes that each fit what their callers saw must not add up to a lot whose
// event nobody can read.
func TestAChangeIsCheckedWhereItIsMade(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 1, Hold: 5 * time.Minute, MaxHold: 30 * time.Minute})
	at := time.Now().Truncate(time.Second)
	for _, q := range []drop.ChangeRequest{{MaxHold: ptr(10 * time.Minute)}, {Closes: ptr(at)}} {
		q.Lot = lot
		if _, _, err := s.Change(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	for _, stale := range []drop.ChangeRequest{{Hold: ptr(20 * time.Minute)}, {Opens: ptr(at.Add(time.Hour))}} {
		_, _, err := s.change(t.Context(), lot, "op", "", false, changed(stale))
		wantCode(t, err, fault.Conflict)
	}
	state, err := s.Lot(t.Context(), lot)
	if err != nil || state.Hold != 5*time.Minute || !state.Opens.IsZero() || !state.Closes.Equal(at) {
		t.Fatalf("%+v, %v", state, err)
	}
	wantHistory(t, s, rdb, lot)
}

// TestATrialAdjustmentSaysWhatTheRealOneDoes: units of due holds count as free in both.
func TestATrialAdjustmentSaysWhatTheRealOneDoes(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 5, Hold: time.Minute})
	reserve(t, s, lot, "ann", "k", 4)
	passTime(t, s, rdb, 2*time.Minute, lot)
	for _, dryRun := range []bool{true, false} {
		state, same, err := s.Adjust(t.Context(), drop.AdjustRequest{Lot: lot, To: ptr(int64(2)), Expect: 5, DryRun: dryRun})
		if err != nil || same || state.Capacity != 2 || state.Available != 2 {
			t.Fatalf("dry run %v: %+v, %v, %v", dryRun, state.Totals, same, err)
		}
	}
}

// TestMoneyIsDueOnce: a payment that bought units, or was written down as late, is not written down again, whatever is
// asked afterwards; and the old id of a hold taken anew stays good for a repeated refund.
func TestMoneyIsDueOnce(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 5, Hold: time.Minute})
	settle := func(id drop.ReservationID, action drop.Action, ref string, late drop.Late) (drop.Outcome, error) {
		return s.Settle(t.Context(), drop.SettleRequest{ID: id, Action: action, Ref: ref, Late: late, Total: -1})
	}
	old := reserve(t, s, lot, "ann", "k", 1).Reservation.ID
	passTime(t, s, rdb, 2*time.Minute, lot)
	if out, err := settle(old, drop.ActConfirm, "paid", drop.Reclaim); err != nil || out.Reservation.From != old.N {
		t.Fatalf("%+v, %v", out, err)
	}
	for _, replayed := range []bool{false, true} {
		if out, err := settle(old, drop.ActRefund, "", ""); err != nil || out.Replayed != replayed {
			t.Fatalf("refund by the old id: %+v, %v", out, err)
		}
	}
	for range 2 {
		_, err := settle(old, drop.ActConfirm, "paid", "")
		wantCode(t, err, fault.AlreadyRefunded)
		_, err = settle(old, drop.ActConfirm, "another payment", "")
		wantCode(t, err, fault.AlreadyRefunded)
	}
	late := 0
	for _, e := range wantHistory(t, s, rdb, lot) {
		if e.Kind == drop.KindPaidLate {
			late++
		}
	}
	if late != 1 {
		t.Fatalf("%d payments were written down as late, want the other one", late)
	}
}
