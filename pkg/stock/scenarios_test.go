package stock

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// answers counts answers by code; "" is a success.
type answers struct {
	mu sync.Mutex
	n  map[fault.Code]int
}

func (a *answers) add(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n == nil {
		a.n = make(map[fault.Code]int)
	}
	a.n[fault.CodeOf(err)]++
}

// TestTheLastUnitIsSoldOnce: 200 buyers want the one unit at once, by every path a request can take.
func TestTheLastUnitIsSoldOnce(t *testing.T) {
	s, rdb, _ := newShop(t)
	paths := map[string]struct {
		definition drop.Definition
		hold       time.Duration
		first      string // what becomes of the unit before: "", "expired", "released"
	}{
		"plain":               {},
		"limited":             {definition: drop.Definition{Limit: 1}},
		"own hold":            {hold: time.Second},
		"longest hold":        {hold: drop.MaxHold, definition: drop.Definition{MaxHold: drop.MaxHold}},
		"in a window":         {definition: drop.Definition{Opens: time.Now().Add(-time.Hour), Closes: time.Now().Add(time.Hour)}},
		"after an expiry":     {first: "expired"},
		"after a release":     {first: "released"},
		"expired and limited": {first: "expired", definition: drop.Definition{Limit: 1, Late: drop.Reclaim}},
	}
	n := 0
	for name, path := range paths {
		n++
		t.Run(name, func(t *testing.T) {
			path.definition.Lot, path.definition.Stock = drop.LotID(fmt.Sprintf("last-%d", n)), 1
			lot := newLot(t, s, path.definition)
			if path.first != "" {
				a := reserve(t, s, lot, "first", "k", 1)
				if path.first == "released" {
					settle(t, s, drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActRelease})
				} else {
					passTime(t, s, rdb, time.Hour, lot)
				}
			}
			var got answers
			inParallel(200, func(i int) {
				_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: fmt.Sprintf("user-%d", i), Key: fmt.Sprintf("key-%d", i), Qty: 1, Hold: path.hold})
				got.add(err)
			})
			if got.n[""] != 1 || got.n[fault.SoldOut] != 199 {
				t.Fatalf("answers: %v", got.n)
			}
			wantTotals(t, s, lot, 0, 1, 0)
			wantHistory(t, s, rdb, lot)
		})
	}
}

func TestExactlyTheStockIsSold(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 100})
	for i := range 99 {
		reserve(t, s, lot, fmt.Sprintf("user-%d", i), "k", 1)
	}
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "none", Key: "k", Qty: 0})
	wantCode(t, err, fault.Invalid)
	_, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "two", Key: "k", Qty: 2})
	wantCode(t, err, fault.SoldOut)
	wantTotals(t, s, lot, 1, 99, 0)
	reserve(t, s, lot, "last", "k", 1)
	_, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "late", Key: "k", Qty: 1})
	wantCode(t, err, fault.SoldOut)
	wantTotals(t, s, lot, 0, 100, 0)
	wantHistory(t, s, rdb, lot)
}

func TestQuantitiesOutOfBoundsAreRefusedByField(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	a := reserve(t, s, lot, "ann", "k", 2)
	before := contents(t, rdb)
	ctx, id := t.Context(), a.Reservation.ID
	refused := func(err error, field string) {
		t.Helper()
		wantCode(t, err, fault.Invalid)
		if got := fault.As(err).Field; got != field {
			t.Errorf("the error names field %q, not %q: %v", got, field, err)
		}
	}
	for _, n := range []int64{-5, -1, 0, drop.MaxUnits + 1, 1 << 31, 1 << 53, math.MaxInt64, math.MinInt64} {
		_, err := s.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: "bob", Key: "k", Qty: n})
		refused(err, "qty")
		if n == 0 {
			continue // all of it, none kept
		}
		_, err = s.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActConfirm, Qty: n})
		refused(err, "qty")
		_, err = s.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActRelease, Keep: n})
		refused(err, "keep")
		_, _, err = s.Adjust(ctx, drop.AdjustRequest{Lot: lot, To: &n, Expect: 9})
		refused(err, "to")
		_, _, err = s.Change(ctx, drop.ChangeRequest{Lot: lot, Limit: &n})
		refused(err, "limit")
		if n != -1 {
			_, err = s.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActRefund, Total: n})
			refused(err, "total")
		}
		if n > 0 {
			_, _, err = s.Adjust(ctx, drop.AdjustRequest{Lot: lot, By: &n, Expect: 9})
			refused(err, "by")
		}
	}
	for _, d := range []time.Duration{-time.Second, time.Millisecond, time.Second + time.Microsecond, drop.MaxHold + time.Second, math.MaxInt64} {
		_, err := s.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: "bob", Key: "k", Qty: 1, Hold: d})
		refused(err, "hold")
		_, err = s.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActExtend, By: d})
		refused(err, "by")
	}
	after := contents(t, rdb)
	for key := range before {
		if key != s.shardOf(lot).keys.wake && before[key] != after[key] {
			t.Errorf("%s was changed", key)
		}
	}
}

func TestALateConfirmTakesAnewOrIsRefused(t *testing.T) {
	for _, resold := range []bool{false, true} {
		for _, late := range []drop.Late{drop.Refuse, drop.Reclaim} {
			t.Run(fmt.Sprintf("%s, resold %v", late, resold), func(t *testing.T) {
				s, rdb, _ := newShop(t)
				lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 1, Late: late, Hold: 5 * time.Second})
				a := reserve(t, s, lot, "ann", "k", 1)
				passTime(t, s, rdb, 6*time.Second, lot)
				if resold {
					b := reserve(t, s, lot, "bob", "k", 1)
					settle(t, s, drop.SettleRequest{ID: b.Reservation.ID, Action: drop.ActConfirm, Ref: "pay-b"})
				}
				confirm := drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Ref: "pay-a"}
				if late == drop.Reclaim && !resold {
					out := settle(t, s, confirm)
					if out.Replayed || out.Reservation.ID == a.Reservation.ID || out.Reservation.From != a.Reservation.ID.N {
						t.Fatalf("%+v is not taken anew", out.Reservation)
					}
					if again := settle(t, s, confirm); !again.Replayed || again.Reservation.ID != out.Reservation.ID {
						t.Fatalf("the repeated confirm: %+v", again)
					}
				} else {
					code := fault.HoldExpired
					if late == drop.Reclaim {
						code = fault.SoldOut
					}
					for range 3 {
						_, err := s.Settle(t.Context(), confirm)
						wantCode(t, err, code)
						if told := fault.As(err).Details["paid_late"] == true; told != (confirm.Ref != "") || told && !strings.Contains(fault.HintOf(err), "due for refund") {
							t.Fatalf("with payment %q the refusal says paid_late %v, hint %q", confirm.Ref, told, fault.HintOf(err))
						}
					}
				}
				kinds := make(map[drop.Kind]int)
				for _, e := range wantHistory(t, s, rdb, lot) {
					kinds[e.Kind]++
				}
				if sold := wantTotals(t, s, lot, 1-int64(kinds[drop.KindConfirmed]), 0, int64(kinds[drop.KindConfirmed])); sold.Sold > 1 {
					t.Fatal("sold to both")
				}
				paidLate := 1 // once, however often it is asked
				if late == drop.Reclaim && !resold {
					paidLate = 0
				}
				if kinds[drop.KindPaidLate] != paidLate {
					t.Fatalf("paid_late was written %d times", kinds[drop.KindPaidLate])
				}
			})
		}
	}
}

// massExpiryBound is how long a shard may take to give back 20,000 holds that end at once, race detector included.
const massExpiryBound = 20 * time.Second

// TestAMassExpiryIsTakenBackWhileSellingGoesOn: 20,000 holds of one lot end within one second.
func TestAMassExpiryIsTakenBackWhileSellingGoesOn(t *testing.T) {
	s, rdb, _ := newShop(t)
	holds := rounds(20_000, 4_000)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: int64(holds) + 500, Hold: time.Minute})
	inParallel(100, func(c int) {
		for i := c; i < holds; i += 100 {
			if _, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: fmt.Sprintf("old-%d", i), Key: "k", Qty: 1}); err != nil {
				t.Error(err)
			}
		}
	})
	passTime(t, s, rdb, 2*time.Minute, lot)

	ctx, stop := context.WithCancel(t.Context())
	var buyers sync.WaitGroup
	var sold, slowest atomic.Int64
	for c := range 8 {
		buyers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				began := time.Now()
				if _, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: fmt.Sprintf("new-%d-%d", c, i), Key: "k", Qty: 1}); err != nil && !fault.Is(err, fault.SoldOut) {
					t.Error(err)
					return
				} else if err == nil {
					sold.Add(1)
				}
				for took := int64(time.Since(began)); took > slowest.Load(); {
					slowest.Store(took)
				}
			}
		})
	}
	began, expired := time.Now(), 0
	for {
		out, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 1000)
		if err != nil {
			t.Fatal(err)
		}
		expired += out.Expired
		if !out.More {
			break
		}
	}
	took := time.Since(began)
	stop()
	buyers.Wait()
	t.Logf("%d holds taken back in %v by the sweep, %d sold meanwhile, the slowest in %v", expired, took, sold.Load(), time.Duration(slowest.Load()))
	if took > massExpiryBound {
		t.Errorf("it took %v", took)
	}
	state := wantTotals(t, s, lot, int64(holds)+500-sold.Load(), sold.Load(), 0)
	if state.Due != 0 {
		t.Errorf("%d units are due and not taken back", state.Due)
	}
	ended := 0
	for _, e := range wantHistory(t, s, rdb, lot) {
		if e.Kind == drop.KindExpired {
			ended++
		}
	}
	if ended != holds {
		t.Errorf("%d holds expired, not %d", ended, holds)
	}
}

// TestASoldOutLotOfDueHoldsSellsWithoutASweep: the deadline decides; nobody has to sweep first.
func TestASoldOutLotOfDueHoldsSellsWithoutASweep(t *testing.T) {
	s, rdb, _ := newShop(t)
	const units = 3000
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: units, Hold: time.Minute})
	inParallel(100, func(c int) {
		for i := c; i < units; i += 100 {
			if _, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: fmt.Sprintf("old-%d", i), Key: "k", Qty: 1}); err != nil {
				t.Error(err)
			}
		}
	})
	passTime(t, s, rdb, time.Hour, lot)
	reserve(t, s, lot, "all", "k", units) // more than one call may look at: the engine repeats
	wantTotals(t, s, lot, 0, units, 0)
	wantHistory(t, s, rdb, lot)
}

func TestAPartConfirmGivesTheRestBackOnce(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 10})
	a := reserve(t, s, lot, "ann", "k", 10)
	for replayed := range 2 {
		out := settle(t, s, drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Qty: 7, Ref: "p"})
		if out.Replayed != (replayed == 1) || out.Reservation.Rest != 3 {
			t.Fatalf("%+v", out)
		}
		wantTotals(t, s, lot, 3, 0, 7)
	}
	for range 2 {
		_, err := s.Settle(t.Context(), drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActRelease})
		wantCode(t, err, fault.AlreadyConfirmed)
		_, err = s.Settle(t.Context(), drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Qty: 8, Ref: "p"})
		wantCode(t, err, fault.AlreadyConfirmed)
		if told := fault.As(err).Details["paid_late"]; told != nil {
			t.Fatalf("the payment of the sale itself is told as late: %v", told)
		}
		_, err = s.Settle(t.Context(), drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Ref: "second"})
		if wantCode(t, err, fault.AlreadyConfirmed); fault.As(err).Details["paid_late"] != true {
			t.Fatal("a second payment is not told as due for refund")
		}
		wantTotals(t, s, lot, 3, 0, 7)
	}
	wantHistory(t, s, rdb, lot)
}

func TestAKeyBelongsToItsLotUserAndOperation(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "g:l", Stock: 5, Limit: 2})
	other := newLot(t, s, drop.Definition{Lot: "g:m", Stock: 5})
	ann := reserve(t, s, lot, "tenant-1/ann", "k", 2)
	bob := reserve(t, s, lot, "tenant-2/ann", "k", 2)
	elsewhere := reserve(t, s, other, "tenant-1/ann", "k", 2)
	if ann.Replayed || bob.Replayed || elsewhere.Replayed || ann.Reservation.ID.Attempt == bob.Reservation.ID.Attempt {
		t.Fatal("two callers share a key")
	}
	settle(t, s, drop.SettleRequest{ID: ann.Reservation.ID, Action: drop.ActRelease})
	if again := reserve(t, s, lot, "tenant-1/ann", "k", 2); !again.Replayed || again.Reservation.State != drop.Released {
		t.Fatalf("the key's reservation is %+v", again)
	}
	// A corrected body: key_reused where the first was accepted, a fresh attempt where it was refused.
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "tenant-1/ann", Key: "k", Qty: 1})
	wantCode(t, err, fault.KeyReused)
	_, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "tenant-1/ann", Key: "k", Qty: 2, Hold: time.Minute})
	wantCode(t, err, fault.KeyReused)
	_, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "cy", Key: "k", Qty: 3})
	wantCode(t, err, fault.CustomerLimit)
	if fresh := reserve(t, s, lot, "cy", "k", 2); fresh.Replayed {
		t.Fatal("a refusal was remembered")
	}
}

func TestAHundredEqualRequestsAreOneHold(t *testing.T) {
	s, rdb, r := newShop(t)
	second := openStock(t, r.URL()) // another process
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 5})
	var mu sync.Mutex
	ids, fresh := make(map[drop.ReservationID]int), 0
	inParallel(100, func(i int) {
		engine := []*Stock{s, second}[i%2]
		out, err := engine.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 1})
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		ids[out.Reservation.ID]++
		if !out.Replayed {
			fresh++
		}
	})
	if len(ids) != 1 || fresh != 1 {
		t.Fatalf("%d reservations, %d fresh", len(ids), fresh)
	}
	wantTotals(t, s, lot, 4, 1, 0)
	wantHistory(t, s, rdb, lot)
}

// TestLostRepliesAndForgottenScriptsActOnce: replies vanish after the script ran and the scripts are flushed, while
// buyers repeat what they do not know the outcome of.
func TestLostRepliesAndForgottenScriptsActOnce(t *testing.T) {
	testkit.Long(t)
	r := testkit.Redis(t)
	direct, rdb := openStock(t, r.URL()), rawClient(t, r)
	proxy := testkit.Proxy(t, r.Addr())
	s := openStock(t, proxy.URL(t, r.URL()))
	buyers := rounds(40, 12)
	lot := newLot(t, direct, drop.Definition{Lot: "l", Stock: 10_000})

	// Each buyer repeats a call, as it is, until it is answered.
	var unknown atomic.Int64
	answered := func(call func() (drop.Outcome, error)) drop.Outcome {
		for {
			out, err := call()
			switch {
			case err == nil:
				return out
			case fault.Is(err, fault.OutcomeUnknown):
				unknown.Add(1)
			case !fault.Is(err, fault.Unavailable):
				t.Error(err)
				return out
			}
		}
	}
	heal := loseReplies(proxy, math.MaxInt)
	flushing, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(flushing)
		for {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
				if err := cmp.Or(rdb.FunctionFlush(context.Background()).Err(), rdb.ScriptFlush(context.Background()).Err()); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	const each = 15
	inParallel(buyers, func(b int) {
		user := fmt.Sprintf("user-%d", b)
		for i := range each {
			q := drop.ReserveRequest{Lot: lot, User: user, Key: fmt.Sprintf("key-%d", i), Qty: 3}
			a := answered(func() (drop.Outcome, error) { return s.Reserve(t.Context(), q) })
			last := drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Qty: 2, Ref: "p"}
			if i%3 == 0 {
				last = drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActRelease}
			}
			answered(func() (drop.Outcome, error) { return s.Settle(t.Context(), last) })
		}
	})
	close(stop)
	<-flushing
	heal()
	if unknown.Load() == 0 {
		t.Error("no reply was lost")
	}
	confirmed := int64(buyers * each * 2 / 3)
	wantTotals(t, direct, lot, 10_000-2*confirmed, 0, 2*confirmed)
	kinds := make(map[drop.Kind]int)
	for _, e := range wantHistory(t, direct, rdb, lot) {
		kinds[e.Kind]++
	}
	if kinds[drop.KindHeld] != buyers*each || kinds[drop.KindConfirmed] != int(confirmed) {
		t.Errorf("events: %v", kinds)
	}
}

// TestLotsOfAllKindsShareACall: whatever is asked of how many lots in one call, each request gets its own answer.
func TestLotsOfAllKindsShareACall(t *testing.T) {
	s, rdb, _ := newShop(t)
	for _, d := range []drop.Definition{{Lot: "g:limit-2", Limit: 2}, {Lot: "g:limit-3", Limit: 3}, {Lot: "g:no-limit"}, {Lot: "g:limit-2-too", Limit: 2}, {Lot: "g:long", Limit: 2, Hold: time.Hour},
		{Lot: "g:paused", Status: drop.Paused}, {Lot: "g:sold", Stock: -1}, {Lot: "g:qty"}, {Lot: "g:two", Limit: 2}, {Lot: "g:batch", Limit: 2}, {Lot: "g:known", Limit: 2}, {Lot: "g:has", Limit: 2}} {
		if d.Stock++; d.Stock > 0 {
			d.Stock = 100
		}
		newLot(t, s, d)
	}
	known, has := reserve(t, s, "g:known", "ann", "k", 1), reserve(t, s, "g:has", "ann", "before", 1)
	type asked struct {
		lot  drop.LotID
		user string
		qty  int64
		code fault.Code
		left int64
		hold time.Duration
	}
	five := 5 * time.Minute
	all := []asked{{"g:two", "ann", 1, "", 1, five}, {"g:limit-2", "ann", 1, "", 1, five}, {"g:sold", "ann", 1, fault.SoldOut, 0, 0}, {"g:limit-3", "ann", 1, "", 2, five}, {"g:gone", "ann", 1, fault.LotNotLoaded, 0, 0},
		{"g:no-limit", "ann", 1, "", -1, five}, {"g:paused", "ann", 1, fault.LotPaused, 0, 0}, {"g:limit-2-too", "ann", 1, "", 1, five}, {"g:qty", "ann", 2, "", -1, five}, {"g:long", "ann", 1, "", 1, time.Hour},
		{"g:two", "bob", 1, "", 1, five}, {"g:known", "ann", 1, "", 1, five}, {"g:has", "ann", 1, fault.HoldExists, 0, 0}}
	for i := range 6 {
		all = append(all, asked{"g:batch", fmt.Sprintf("user-%d", i), 1, "", 1, five})
	}
	qs := make([]drop.ReserveRequest, len(all))
	for i, a := range all {
		qs[i] = drop.ReserveRequest{Lot: a.lot, User: a.user, Key: "k", Qty: a.qty, Actor: "shop"}
	}
	for range 2 { // asked again, all are told the same
		before := readInfo(rdb.Info(t.Context(), "commandstats").Val())["cmdstat_fcall"]
		outs, errs := together(t, s, qs)
		if calls := callsIn(readInfo(rdb.Info(t.Context(), "commandstats").Val())["cmdstat_fcall"]) - callsIn(before); calls != 1 {
			t.Fatalf("%d calls", calls)
		}
		for i, a := range all {
			out, r := outs[i], outs[i].Reservation
			if fault.CodeOf(errs[i]) != a.code {
				t.Errorf("%+v: %v", a, errs[i])
			}
			if a.code == "" && (r.User != a.user || r.Qty != a.qty || r.ID.Lot != a.lot || out.Remaining != a.left || r.Deadline.Sub(r.Created) != a.hold || r.ID.Attempt != drop.AttemptOf(a.lot, a.user, "k")) {
				t.Errorf("%+v: %+v", a, out)
			}
		}
		if outs[11].Reservation.ID != known.Reservation.ID || !outs[11].Replayed || !strings.Contains(errs[12].Error(), "already holds") || has.Replayed {
			t.Errorf("%+v, %v", outs[11], errs[12])
		}
	}
	for lot := range map[drop.LotID]bool{"g:limit-2": true, "g:limit-3": true, "g:no-limit": true, "g:limit-2-too": true, "g:long": true, "g:sold": true, "g:qty": true, "g:two": true, "g:batch": true, "g:known": true} {
		wantHistory(t, s, rdb, lot)
	}
}

// callsIn reads the number of calls from a line of Redis' command statistics.
func callsIn(stats string) int {
	number, _, _ := strings.Cut(strings.TrimPrefix(stats, "calls="), ",")
	n, _ := strconv.Atoi(number)
	return n
}

// TestReplacingSwapsOneHoldForAnother: one buyer changes his mind 200 times at once while others come and go. He has one live
// hold at every moment, and nobody's units are lost with it.
func TestReplacingSwapsOneHoldForAnother(t *testing.T) {
	s, rdb, _ := newShop(t)
	const times = 200
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 3 + times, Limit: 3})
	first := reserve(t, s, lot, "ann", "first", 1)
	inParallel(2*times, func(i int) {
		q := drop.ReserveRequest{Lot: lot, User: "ann", Key: fmt.Sprintf("key-%d", i), Qty: int64(1 + i%3), Replace: true, Actor: "shop"}
		if i >= times {
			q = drop.ReserveRequest{Lot: lot, User: fmt.Sprintf("user-%d", i), Key: "k", Qty: 1, Replace: i%2 == 0}
		}
		out, err := s.Reserve(t.Context(), q)
		if err != nil || out.Reservation.Qty != q.Qty || out.Remaining != 3-q.Qty {
			t.Errorf("%+v: %+v, %v", q, out, err)
		}
	})
	if t.Failed() {
		return
	}
	ann := make(map[drop.ReservationID]int64) // units of her holds
	for _, e := range wantHistory(t, s, rdb, lot) {
		switch {
		case e.User != "ann":
		case e.Kind == drop.KindHeld:
			ann[e.Reservation] = e.Qty
		case e.Kind == drop.KindReleased && ann[e.Reservation] == e.Qty && e.Rest == 0 && e.Reason == "replaced":
			delete(ann, e.Reservation)
		}
		if len(ann) > 1 {
			t.Fatalf("two live holds after event %d: %v", e.Seq, ann)
		}
	}
	if len(ann) != 1 {
		t.Fatalf("live holds: %v", ann)
	}
	_, err := s.Settle(t.Context(), drop.SettleRequest{ID: first.Reservation.ID, Action: drop.ActConfirm})
	wantCode(t, err, fault.AlreadyReleased)
	for id, qty := range ann {
		wantTotals(t, s, lot, 3-qty, times+qty, 0)
		settle(t, s, drop.SettleRequest{ID: id, Action: drop.ActConfirm})
	}
}

// TestReplacingIsBothOrNeither: the units of the old hold count for the new one, a refusal leaves the old one, a repeated
// request is answered as before, and without a live hold it is a hold like any.
func TestReplacingIsBothOrNeither(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 4, Limit: 3, MaxHold: time.Hour})
	replace := func(key string, qty int64, hold time.Duration) (drop.Outcome, error) {
		return s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: key, Qty: qty, Hold: hold, Replace: true})
	}
	want := func(out drop.Outcome, err error, qty int64, replayed bool) drop.ReservationID {
		t.Helper()
		if err != nil || out.Reservation.State != drop.Held || out.Reservation.Qty != qty || out.Replayed != replayed || out.Remaining != 3-qty {
			t.Fatalf("%+v, %v", out, err)
		}
		return out.Reservation.ID
	}
	out, err := replace("one", 2, 0)
	one := want(out, err, 2, false)
	reserve(t, s, lot, "bob", "k", 1)
	out, err = replace("two", 3, 0)
	two := want(out, err, 3, false)
	out, err = replace("two", 3, 0)
	if want(out, err, 3, true) != two {
		t.Fatal("another reservation")
	}
	if out, err = replace("one", 2, 0); err != nil || out.Reservation.State != drop.Released || out.Reservation.ID != one {
		t.Fatalf("%+v, %v", out, err)
	}
	before := contents(t, rdb)
	for code, refused := range map[fault.Code]func() (drop.Outcome, error){
		fault.CustomerLimit: func() (drop.Outcome, error) { return replace("x", 4, 0) },
		fault.Invalid:       func() (drop.Outcome, error) { return replace("x", 1, 2*time.Hour) },
		fault.KeyReused:     func() (drop.Outcome, error) { return replace("one", 1, 0) },
	} {
		_, err := refused()
		wantCode(t, err, code)
	}
	if !maps.Equal(before, contents(t, rdb)) {
		t.Fatal("a refusal changed something")
	}
	if _, _, err := s.Change(t.Context(), drop.ChangeRequest{Lot: lot, Limit: ptr(int64(9))}); err != nil {
		t.Fatal(err)
	}
	_, err = replace("x", 4, 0)
	wantCode(t, err, fault.SoldOut)
	wantTotals(t, s, lot, 0, 4, 0)
	if _, err = replace("less", 1, 0); err != nil {
		t.Fatal(err)
	}
	wantTotals(t, s, lot, 2, 2, 0)
	wantHistory(t, s, rdb, lot)
}

func TestTheLimitHoldsAcrossParallelCalls(t *testing.T) {
	s, rdb, r := newShop(t)
	second := openStock(t, r.URL())
	for round := range rounds(20, 5) {
		lot := newLot(t, s, drop.Definition{Lot: drop.LotID(fmt.Sprintf("l%d", round)), Stock: 20, Limit: 2})
		var got answers
		inParallel(6, func(i int) {
			engine := []*Stock{s, second}[i%2]
			_, err := engine.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: fmt.Sprintf("k%d", i), Qty: 2})
			got.add(err)
		})
		if got.n[""] != 1 || got.n[fault.HoldExists] != 5 {
			t.Fatalf("answers: %v", got.n)
		}
		var held drop.ReservationID
		err := s.Records(t.Context(), lot, func(page []drop.Reservation) error { held = page[0].ID; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if out := settle(t, s, drop.SettleRequest{ID: held, Action: drop.ActConfirm, Qty: 1}); out.Remaining != 1 {
			t.Fatalf("%d more are allowed", out.Remaining)
		}
		// Bought one: of parallel wishes for two none, of those for one exactly one succeeds.
		got = answers{}
		inParallel(6, func(i int) {
			_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: fmt.Sprintf("m%d", i), Qty: 1 + int64(i%2)})
			got.add(err)
			if fault.Is(err, fault.CustomerLimit) && fault.As(err).Details["remaining"] == nil {
				t.Error("the refusal does not say how many are allowed")
			}
		})
		if got.n[""] != 1 || got.n[fault.CustomerLimit]+got.n[fault.HoldExists] != 5 {
			t.Fatalf("answers: %v", got.n)
		}
		wantTotals(t, s, lot, 18, 1, 1)
		wantHistory(t, s, rdb, lot)
	}
}

// TestTheBuyerWhoseReplyWasLostKeepsTheLastUnit: a flood of refusals must not come between a buyer and his hold.
func TestTheBuyerWhoseReplyWasLostKeepsTheLastUnit(t *testing.T) {
	r := testkit.Redis(t)
	direct, rdb := openStock(t, r.URL()), rawClient(t, r)
	proxy := testkit.Proxy(t, r.Addr())
	s := openStock(t, proxy.URL(t, r.URL()))
	reserve(t, direct, newLot(t, direct, drop.Definition{Lot: "warm", Stock: 1}), "first", "k", 1) // Redis knows the script
	for round := range rounds(10, 3) {
		lot := newLot(t, direct, drop.Definition{Lot: drop.LotID(fmt.Sprintf("l%d", round)), Stock: 1})
		q := drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 1}
		for held, tries := false, 0; !held; tries++ { // until a reply is lost of a request that got through
			if _, err := s.Lot(t.Context(), lot); err != nil || tries == 100 { // opens a connection
				t.Fatalf("after %d tries: %v", tries, err)
			}
			testkit.Eventually(t, 20*time.Second, func() (bool, string) { // another lane would look at its server first, and lose that reply
				_, busy := underWay(s, lot)
				return busy == 0, fmt.Sprint(busy, " lanes are busy")
			})
			proxy.DropReplies()
			_, err := s.Reserve(t.Context(), q)
			proxy.Heal()
			state, stateErr := direct.Lot(t.Context(), lot)
			if stateErr != nil {
				t.Fatal(stateErr)
			}
			held = state.Held == 1
			if held && !fault.Is(err, fault.OutcomeUnknown) || !fault.Is(err, fault.OutcomeUnknown) && !fault.Is(err, fault.Unavailable) {
				t.Fatalf("ann was told %v; held: %v", err, held)
			}
		}
		ask := func(q drop.ReserveRequest) (out drop.Outcome, err error) { // as a buyer whose connection is gone
			for range 100 {
				if out, err = s.Reserve(t.Context(), q); !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.OutcomeUnknown) {
					break
				}
			}
			return out, err
		}
		var first atomic.Pointer[drop.ReservationID]
		inParallel(50, func(i int) {
			for n := range 4 {
				if i%10 == 0 { // ann tries again
					out, err := ask(q)
					if err != nil || !out.Replayed {
						t.Errorf("ann's retry: %+v, %v", out, err)
						return
					}
					if !first.CompareAndSwap(nil, &out.Reservation.ID) && *first.Load() != out.Reservation.ID {
						t.Errorf("ann holds %s and %s", first.Load(), out.Reservation.ID)
					}
					continue
				}
				_, err := ask(drop.ReserveRequest{Lot: lot, User: fmt.Sprintf("user-%d", i), Key: fmt.Sprintf("k%d", n), Qty: 1})
				if !fault.Is(err, fault.SoldOut) {
					t.Errorf("another buyer: %v", err)
				}
			}
		})
		wantTotals(t, direct, lot, 0, 1, 0)
		wantHistory(t, direct, rdb, lot)
	}
}

// TestAHoldResolvesOnce: confirms, releases, extensions and the sweep race at the deadline; every answer agrees with
// the one that won.
func TestAHoldResolvesOnce(t *testing.T) {
	s, rdb, r := newShop(t)
	second := openStock(t, r.URL())
	for round := range rounds(8, 2) {
		const holds = 60
		lot := newLot(t, s, drop.Definition{Lot: drop.LotID(fmt.Sprintf("l%d", round)), Stock: holds, Hold: time.Minute})
		ids := make([]drop.ReservationID, holds)
		inParallel(holds, func(i int) {
			ids[i] = reserve(t, s, lot, fmt.Sprintf("user-%d", i), "k", 1).Reservation.ID
		})
		passTime(t, s, rdb, time.Minute-20*time.Millisecond, lot) // the deadlines come in the middle of the race
		var mu sync.Mutex
		won := make(map[drop.ReservationID][]drop.Action)
		inParallel(3*holds+2, func(i int) {
			if i >= 3*holds {
				for range 20 {
					if _, err := second.Sweep(t.Context(), lot.Shard(16), 100); err != nil {
						t.Error(err)
					}
				}
				return
			}
			q := drop.SettleRequest{ID: ids[i%holds], Action: []drop.Action{drop.ActConfirm, drop.ActRelease, drop.ActConfirm}[i/holds]}
			if i/holds == 1 {
				time.Sleep(time.Duration(i%40) * time.Millisecond) // spread over the deadlines, on purpose
			}
			out, err := []*Stock{s, second}[i%2].Settle(t.Context(), q)
			switch {
			case err == nil && !out.Replayed:
				mu.Lock()
				won[q.ID] = append(won[q.ID], q.Action)
				mu.Unlock()
			case err != nil && !slices.Contains([]fault.Code{fault.AlreadyConfirmed, fault.AlreadyReleased, fault.HoldExpired}, fault.CodeOf(err)):
				t.Error(err)
			}
		})
		ends := make(map[drop.ReservationID][]drop.Kind)
		for _, e := range wantHistory(t, s, rdb, lot) {
			if e.Kind == drop.KindConfirmed || e.Kind == drop.KindReleased || e.Kind == drop.KindExpired {
				ends[e.Reservation] = append(ends[e.Reservation], e.Kind)
			}
		}
		for _, id := range ids {
			if len(ends[id]) > 1 || len(won[id]) > 1 {
				t.Fatalf("%s ended as %v; told as success: %v", id, ends[id], won[id])
			}
			if len(won[id]) == 1 && (len(ends[id]) != 1 || ends[id][0] == drop.KindExpired) {
				t.Fatalf("%s was told as %v and ended as %v", id, won[id], ends[id])
			}
		}
	}
}
