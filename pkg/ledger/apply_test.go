package ledger

import (
	"slices"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func TestEventsFoldInOrder(t *testing.T) {
	testkit.Long(t)
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 10)
	a, b, c, d := r.hold("ann", 3), r.hold("bob", 2), r.hold("cid", 1), r.hold("dan", 4)
	r.confirm(a, 2, "pay-a") // one unit back
	r.extend(b)
	r.release(b, 1)
	r.expire(c)
	r.confirm(d, 4, "")
	r.refund(d, 1, true)
	r.refund(d, 1, false)
	r.paidLate(c, "pay-c")
	r.change(drop.Paused)
	r.adjust(20)

	got := apply(t, l, r.take()...)
	if got.Folded != 15 || got.Waiting+got.Dead+got.Duplicates != 0 {
		t.Errorf("applied %+v", got)
	}
	wantTotals(t, l, lot, 20, r.held, r.sold)
	state := lotOf(t, l, lot)
	if state.Status != drop.Paused || state.AdjustActor != "olga" || state.Watermark != (drop.Watermark{Epoch: 1, Seq: 15}) || !state.Seen || !state.EventAt.Equal(r.now) {
		t.Errorf("lot %+v", state)
	}
	found, err := l.ReservationsByID(t.Context(), []drop.ReservationID{a.ID, b.ID, c.ID, d.ID, {Lot: lot, Attempt: "x", N: 2}})
	if err != nil || len(found) != 4 {
		t.Fatalf("%d reservations, %v", len(found), err)
	}
	for id, want := range map[drop.ReservationID]struct {
		state              drop.State
		qty, refunded, seq int64
	}{a.ID: {drop.Confirmed, 2, 0, 6}, b.ID: {drop.Held, 1, 0, 8}, c.ID: {drop.Expired, 1, 0, 13}, d.ID: {drop.Confirmed, 2, 2, 12}} {
		got := found[id]
		if got.State != want.state || got.Qty != want.qty || got.Refunded != want.refunded || got.LastSeq != want.seq {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
	if got := found[b.ID]; !got.Deadline.Equal(b.Deadline) || got.Key == "" || got.User != "bob" {
		t.Errorf("b is %+v", got)
	}
	if got := dueRefs(t, l, lot); got != "paid_late:pay-c:1" {
		t.Errorf("refunds due: %s", got)
	}
	finalise(t, l)
	if s := salesOf(t, l, lot); s.Sold != 4 || s.Net != 4 || s.Open != 0 {
		t.Errorf("sales %+v", s)
	}
}

func TestEventsBehindAGapWaitUntilItFills(t *testing.T) {
	testkit.Long(t)
	l, _ := newLedger(t)
	r := seeded(t, l, "lot", 10)
	a := r.hold("ann", 1)
	r.confirm(a, 1, "pay")
	r.hold("bob", 1)
	ev := r.take()
	if got := apply(t, l, ev[0], ev[3]); got.Folded != 1 || got.Waiting != 1 {
		t.Errorf("applied %+v", got)
	}
	if got := apply(t, l, ev[3], ev[2]); got.Duplicates != 1 || got.Waiting != 1 {
		t.Errorf("applied %+v", got)
	}
	gaps, err := l.Gaps(t.Context(), 0)
	if err != nil || len(gaps) != 1 || gaps[0].From != 2 || gaps[0].To != 2 || gaps[0].Lot != "lot" {
		t.Errorf("gaps %+v, %v", gaps, err)
	}
	waiting, err := l.WaitingEvents(t.Context(), []drop.LotID{"lot"})
	if err != nil || len(waiting["lot"]) != 2 || waiting["lot"][0].Line() != ev[2].Line() {
		t.Errorf("waiting %+v, %v", waiting, err)
	}
	if got := apply(t, l, ev[1]); got.Folded != 3 {
		t.Errorf("applied %+v", got)
	}
	if got := apply(t, l, ev...); got.Duplicates != 4 {
		t.Errorf("applied again %+v", got)
	}
	wantTotals(t, l, "lot", 10, 1, 1)
	if lot := lotOf(t, l, "lot"); lot.Waiting != 0 {
		t.Errorf("%d still wait", lot.Waiting)
	}
}

func TestALongWaitingRunIsFoldedByThePass(t *testing.T) {
	testkit.Long(t)
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 1_000_000)
	for range runLimit + 50 {
		r.hold("ann", 1)
	}
	ev := r.take()
	apply(t, l, ev[2:]...)
	apply(t, l, ev[0], ev[1])
	if lot := lotOf(t, l, lot); lot.Waiting == 0 {
		t.Fatal("the run was too short for this test")
	}
	n, err := l.FoldWaiting(t.Context())
	if lot := lotOf(t, l, lot); err != nil || n == 0 || lot.Waiting != 0 || lot.Held != runLimit+50 {
		t.Errorf("folded %d, %v: %+v", n, err, lot)
	}
}

func TestTwoEventsAtOnePlaceAreAFork(t *testing.T) {
	l := sharedLedger(t)
	for name, order := range map[string]func(l *Ledger, first, second drop.Event){
		"in one call":  func(l *Ledger, a, b drop.Event) { apply(t, l, a, b) },
		"in two calls": func(l *Ledger, a, b drop.Event) { apply(t, l, a); apply(t, l, b) },
		"both behind a gap": func(l *Ledger, a, b drop.Event) {
			a.Seq += 5
			b.Seq += 5
			fixN(&a)
			fixN(&b)
			apply(t, l, a)
			apply(t, l, b)
		},
		"the loser comes late": func(l *Ledger, a, b drop.Event) { apply(t, l, a); apply(t, l, a, b); apply(t, l, b) },
	} {
		t.Run(name, func(t *testing.T) {
			lot := newLot()
			r := seeded(t, l, lot, 10)
			apply(t, l, r.take()...)
			r.hold("ann", 1)
			first := r.take()[0]
			r.seq--
			r.hold("bob", 1)
			second := r.take()[0]
			order(l, first, second)
			wantStopped(t, l, lot, fault.StopFork)
			if dead, err := l.DeadLetters(t.Context(), lot, 0, 10); err != nil || len(dead) != 1 || dead[0].Code != fault.StopFork {
				t.Errorf("dead letters %+v, %v", dead, err)
			}
			r.hold("cid", 1)
			if got := apply(t, l, r.take()...); got.Waiting != 1 {
				t.Errorf("a stopped lot folds on: %+v", got)
			}
		})
	}
}

func fixN(ev *drop.Event) { ev.Reservation.N = ev.Seq }

// What Redis did after the watermark at which an epoch was closed is a ghost, whenever it arrives.
func TestEventsOfAClosedEpochAreGhosts(t *testing.T) {
	l := sharedLedger(t)
	for name, early := range map[string]bool{"waiting when it closes": true, "arriving afterwards": false} {
		t.Run(name, func(t *testing.T) {
			lot := newLot()
			r := seeded(t, l, lot, 10)
			a := r.hold("ann", 2)
			apply(t, l, r.take()...)
			lost := r.hold("bob", 1)
			r.take() // its event is lost
			r.confirm(lost, 1, "pay-bob")
			r.paidLate(a, "pay-ann")
			late := r.take()
			if early {
				if got := apply(t, l, late...); got.Waiting != 2 {
					t.Fatalf("applied %+v", got)
				}
			}
			issued := issue(t, l, lot)
			if issued.Epoch != 2 || issued.Closing != (drop.Watermark{Epoch: 1, Seq: 2}) || issued.Lot.Held != 2 {
				t.Errorf("issued %+v", issued)
			}
			if got := deadCodes(t, l, lot); (got == "ghost@1.4 ghost@1.5") != early {
				t.Errorf("dead letters once the epoch is issued: %s", got)
			}
			r.load(issued)
			r.confirm(a, 2, "pay-ann-2")
			apply(t, l, append(late, r.take()...)...)
			apply(t, l, late...)
			wantTotals(t, l, lot, 10, 0, 2)
			if got := deadCodes(t, l, lot); got != "ghost@1.4 ghost@1.5" {
				t.Errorf("dead letters: %s", got)
			}
			if got := dueRefs(t, l, lot); got != "ghost:pay-bob:1 ghost:pay-ann:2" {
				t.Errorf("refunds due: %s", got)
			}
			wantStopped(t, l, lot, "")
		})
	}
}

// Redis lost a confirmation and was told again: the ghost of the second must not be refunded.
func TestAGhostOfARecordedPaymentIsNotDue(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 10)
	a := r.hold("ann", 1)
	r.confirm(a, 1, "pay")
	apply(t, l, r.take()...)
	r.seq--
	a.State = drop.Held
	fork := r.emit(drop.Event{Kind: drop.KindConfirmed, Reservation: a.ID, User: "ann", Qty: 1, Ref: "pay", Actor: "again"})
	apply(t, l, fork)
	wantStopped(t, l, lot, fault.StopFork)
	issue(t, l, lot)
	if got := dueRefs(t, l, lot); got != "" {
		t.Errorf("refunds due: %s", got)
	}
}

// A payment is due once, and no longer once it has its units.
func TestAPaymentIsDueOnceAndOnlyWhileItHasNoUnits(t *testing.T) {
	l := sharedLedger(t)
	// expired returns a hold that has ended, and reclaim what a late confirm makes of it.
	expired := func(r *redis) *drop.Reservation {
		a := r.hold("ann", 1)
		r.expire(a)
		a.Qty = 1
		return a
	}
	reclaim := func(r *redis, old *drop.Reservation, ref string) *drop.Reservation {
		b := r.hold("ann", 1)
		b.ID.Attempt, b.From = old.ID.Attempt, old.ID.N
		last := &r.events[len(r.events)-1]
		last.Reservation, last.From, last.Key = b.ID, b.From, ""
		r.confirm(b, 1, ref)
		return b
	}
	for name, c := range map[string]struct {
		write func(r *redis)
		want  string
	}{
		"reported again": {func(r *redis) {
			a := expired(r)
			for _, ref := range []string{"A", "B", "A", "B"} {
				r.paidLate(a, ref)
			}
		}, "paid_late:A:1 paid_late:B:1"},
		"of two attempts": {func(r *redis) {
			r.paidLate(expired(r), "A")
			r.paidLate(expired(r), "A")
		}, "paid_late:A:1 paid_late:A:1"},
		"reclaimed": {func(r *redis) {
			a := expired(r)
			r.paidLate(a, "A")
			r.paidLate(a, "B")
			reclaim(r, a, "A")
		}, "paid_late:B:1"},
		"reclaimed and reported again": {func(r *redis) {
			a := expired(r)
			r.paidLate(a, "A")
			r.paidLate(reclaim(r, a, "A"), "A")
		}, ""},
		"reclaimed without a payment": {func(r *redis) {
			a := expired(r)
			r.paidLate(a, "A")
			reclaim(r, a, "")
		}, "paid_late:A:1"},
		"confirmed, refunded and confirmed again": {func(r *redis) {
			a := r.hold("ann", 1)
			r.confirm(a, 1, "A")
			r.refund(a, 1, true)
			r.paidLate(a, "A")
			r.paidLate(a, "B")
		}, "paid_late:B:1"},
	} {
		for _, how := range []string{"in one call", "one by one", "twice"} {
			t.Run(name+" "+how, func(t *testing.T) {
				lot := newLot()
				r := seeded(t, l, lot, 10)
				c.write(r)
				events := r.take()
				switch how {
				case "one by one":
					for _, ev := range events {
						apply(t, l, ev)
					}
				case "twice":
					apply(t, l, events...)
					fallthrough
				default:
					apply(t, l, events...)
				}
				wantStopped(t, l, lot, "")
				if got := dueRefs(t, l, lot); got != c.want {
					t.Errorf("due %q, want %q", got, c.want)
				}
			})
		}
	}
}

// A confirmation was lost with its life of the lot, and repeated after the rebuild: the buyer has what was paid for.
func TestAGhostsPaymentIsSettledByTheRepeatedConfirmation(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 10)
	a := r.hold("ann", 1)
	apply(t, l, r.take()...)
	lost := r.confirm(a, 1, "pay")
	r.take()
	r.held, r.sold, a.State = 1, 0, drop.Held
	r.load(issue(t, l, lot))
	apply(t, l, append(r.take(), lost)...)
	if got := dueRefs(t, l, lot); got != "ghost:pay:1" {
		t.Errorf("due %q", got)
	}
	r.confirm(a, 1, "pay")
	apply(t, l, r.take()...)
	wantTotals(t, l, lot, 10, 0, 1)
	if got := dueRefs(t, l, lot); got != "" {
		t.Errorf("due %q", got)
	}
}

// The buyer of a fork that lost must be paid back once the epoch is closed, and the fork must not stop the next life.
func TestAForksConfirmationIsDueWhenItsEpochCloses(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 10)
	a := r.hold("ann", 1)
	r.confirm(a, 1, "pay-ann")
	apply(t, l, r.take()...)
	r.seq -= 2 // Redis lost both and sold the unit to somebody else
	b := r.hold("bob", 1)
	r.confirm(b, 1, "pay-bob")
	fork := r.take()
	apply(t, l, fork[0])
	r.load(issue(t, l, lot))
	apply(t, l, r.take()...)
	apply(t, l, fork...)
	wantStopped(t, l, lot, "")
	if got := dueRefs(t, l, lot); got != "ghost:pay-bob:1" {
		t.Errorf("refunds due: %s", got)
	}
	wantTotals(t, l, lot, 10, 0, 1)
}

func TestAConfirmationBeyondTheCapacityIsRejected(t *testing.T) {
	l, db := newLedger(t)
	r := seeded(t, l, "lot", 2)
	a, b, c := r.hold("ann", 1), r.hold("bob", 1), r.hold("cid", 1) // Redis counted one unit twice
	r.confirm(a, 1, "pay-a")
	got := apply(t, l, r.take()...)
	if got.Folded != 5 || len(got.Stopped) != 0 {
		t.Errorf("applied %+v", got)
	}
	wantTotals(t, l, "lot", 2, 1, 1)
	r.confirm(c, 1, "pay-c")
	got = apply(t, l, r.take()...)
	if got.Folded != 1 || len(got.Stopped) != 1 || got.Stopped[0].Code != fault.StopOverCapacity {
		t.Errorf("applied %+v", got)
	}
	wantTotals(t, l, "lot", 2, 1, 1)
	if got := dueRefs(t, l, "lot"); got != "rejected:pay-c:1" {
		t.Errorf("refunds due: %s", got)
	}
	found, err := l.ReservationsByID(t.Context(), []drop.ReservationID{c.ID})
	if res := found[c.ID]; err != nil || !res.Rejected || res.State != drop.Refunded {
		t.Errorf("%+v, %v", res, err)
	}
	if got := db.SQL(t, `SELECT state, reason FROM pending_allocations WHERE ref = 'pay-c'`); got != "REJECTED|over_capacity" {
		t.Errorf("allocation %s", got)
	}
	r.confirm(b, 1, "pay-b")
	if got := apply(t, l, r.take()...); got.Waiting != 1 {
		t.Errorf("applied %+v", got)
	}
	finalise(t, l)
	if s := salesOf(t, l, "lot"); s.Net != 1 || s.Sold != 1 {
		t.Errorf("sales %+v", s)
	}
}

// A hold that never counted must not take units with it when it ends, and is gone after a rebuild.
func TestARejectedHoldCountsNowhere(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 1)
	a, b, c := r.hold("ann", 1), r.hold("bob", 1), r.hold("cid", 1)
	r.expire(b)
	apply(t, l, r.take()...)
	wantTotals(t, l, lot, 1, 1, 0)
	r.load(issue(t, l, lot))
	r.release(a, 0)
	apply(t, l, r.take()...)
	wantTotals(t, l, lot, 1, 0, 0)
	found, err := l.ReservationsByID(t.Context(), []drop.ReservationID{a.ID, b.ID, c.ID})
	if err != nil || found[a.ID].State != drop.Released || found[b.ID].State != drop.Expired || found[c.ID].State != drop.Expired {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestWhatDoesNotFitStopsItsLotAlone(t *testing.T) {
	l := sharedLedger(t)
	ghost := &drop.Reservation{ID: drop.ReservationID{Lot: "bad", Attempt: drop.AttemptOf("bad", "u", "k"), N: 1}, Qty: 1}
	for name, c := range map[string]struct {
		write func(r *redis, held, sold *drop.Reservation)
		code  fault.Code
	}{
		"unknown reservation":         {func(r *redis, _, _ *drop.Reservation) { r.confirm(ghost, 1, "") }, fault.StopUnfoldable},
		"confirmed twice":             {func(r *redis, _, sold *drop.Reservation) { r.confirm(sold, sold.Qty, "") }, fault.StopUnfoldable},
		"other quantity":              {func(r *redis, held, _ *drop.Reservation) { held.Qty = 9; r.expire(held) }, fault.StopUnfoldable},
		"refund of a hold":            {func(r *redis, held, _ *drop.Reservation) { r.refund(held, 1, true) }, fault.StopUnfoldable},
		"refund of too much":          {func(r *redis, _, sold *drop.Reservation) { r.refund(sold, 9, true) }, fault.StopUnfoldable},
		"refund with another total":   {func(r *redis, _, sold *drop.Reservation) { sold.Refunded = 1; r.refund(sold, 1, true) }, fault.StopUnfoldable},
		"capacity below what is sold": {func(r *redis, _, _ *drop.Reservation) { r.adjust(1) }, fault.StopUnfoldable},
		"void from outside":           {func(r *redis, _, _ *drop.Reservation) { r.emit(drop.Event{Kind: drop.KindVoid}) }, fault.StopUnfoldable},
		"epoch that was never issued": {func(r *redis, _, _ *drop.Reservation) { r.epoch = 7; r.change(drop.Closed) }, fault.StopUnfoldable},
		"loaded twice": {func(r *redis, _, _ *drop.Reservation) {
			r.load(Issued{Epoch: 1, Closing: drop.Watermark{Epoch: 1, Seq: r.seq}, Lot: Lot{LedgerLot: drop.LedgerLot{Definition: r.def, Held: r.held, Sold: r.sold}}})
		}, fault.StopUnfoldable},
	} {
		t.Run(name, func(t *testing.T) {
			badLot, goodLot := newLot(), newLot()
			bad, good := seeded(t, l, badLot, 10), seeded(t, l, goodLot, 10)
			held, sold := bad.hold("ann", 2), bad.hold("bob", 2)
			bad.confirm(sold, 2, "pay")
			apply(t, l, bad.take()...)
			c.write(bad, held, sold)
			good.hold("ann", 1)
			apply(t, l, append(bad.take(), good.take()...)...)
			wantStopped(t, l, badLot, c.code)
			wantStopped(t, l, goodLot, "")
			wantTotals(t, l, goodLot, 10, 1, 0)
			wantTotals(t, l, badLot, 10, 2, 2)
			if dead, err := l.DeadLetters(t.Context(), badLot, 0, 10); err != nil || len(dead) != 1 || dead[0].Code != c.code {
				t.Errorf("dead letters %+v, %v", dead, err)
			}
		})
	}
}

func TestALoadMustAgreeWithTheClosedEpoch(t *testing.T) {
	l := sharedLedger(t)
	for name, spoil := range map[string]func(*Issued){
		"held":     func(i *Issued) { i.Lot.Held-- },
		"sold":     func(i *Issued) { i.Lot.Sold++ },
		"capacity": func(i *Issued) { i.Lot.Stock++ },
		"closing":  func(i *Issued) { i.Closing.Epoch = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			lot := newLot()
			r := seeded(t, l, lot, 10)
			r.hold("ann", 1)
			apply(t, l, r.take()...)
			issued := issue(t, l, lot)
			spoil(&issued)
			r.load(issued)
			apply(t, l, r.take()...)
			wantStopped(t, l, lot, fault.StopLoadMismatch)
			// A rebuild heals it.
			r.load(issue(t, l, lot))
			apply(t, l, r.take()...)
			wantStopped(t, l, lot, "")
			wantTotals(t, l, lot, 10, 1, 0)
		})
	}
}

func TestAnotherInstallationIsRefusedWhole(t *testing.T) {
	l, db := newLedger(t)
	r := seeded(t, l, "lot", 10)
	events := r.take()
	r.installation = "another"
	r.hold("ann", 1)
	foreign := r.take()
	poison := []drop.Poison{{Installation: "another", Lot: "lot", Epoch: 1, Raw: "*\tq", Reason: "test"}}
	for _, err := range []error{second(l.Apply(t.Context(), append(events, foreign...), nil)), second(l.Apply(t.Context(), events, poison))} {
		if !fault.Is(err, fault.Foreign) {
			t.Fatalf("got %v", err)
		}
	}
	if got := db.SQL(t, `SELECT (SELECT count(*) FROM reservation_events) + (SELECT count(*) FROM waiting_events) + (SELECT count(*) FROM dead_letters)`); got != "0" {
		t.Errorf("%s rows were recorded", got)
	}
}

func second[T any](_ T, err error) error { return err }

func TestWhatBelongsToNoLotIsKept(t *testing.T) {
	l, _ := newLedger(t)
	r := newRedis(l.Installation().ID, "unknown", 10)
	r.epoch = 1
	a := r.hold("ann", 1)
	r.confirm(a, 1, "pay")
	poison := []drop.Poison{{Raw: "not\x00an\xffevent", Reason: "test"}, {Lot: "unknown", Epoch: 1, Raw: "*\tq", Reason: "test"}}
	got, err := l.Apply(t.Context(), r.events, poison)
	if err != nil || got.Dead != 4 {
		t.Fatalf("applied %+v, %v", got, err)
	}
	got, err = l.Apply(t.Context(), r.events, poison)
	if err != nil || got.Dead != 0 || got.Duplicates != 4 {
		t.Errorf("applied again %+v, %v", got, err)
	}
	// The ledger has had events of the lot: it must not be sold from the beginning.
	if _, err := l.CreateLot(t.Context(), r.def, "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.IssueEpoch(t.Context(), "unknown", IssueRequest{OnlyUnseen: true}); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v", err)
	}
	if issued := issue(t, l, "unknown"); issued.Epoch != 2 {
		t.Errorf("epoch %d was used before", issued.Epoch)
	}
	if got := dueRefs(t, l, "unknown"); got != "ghost:pay:1" {
		t.Errorf("refunds due: %s", got)
	}
}

func TestPoisonStopsItsLot(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 10)
	apply(t, l, r.take()...)
	poison := []drop.Poison{{Lot: lot, Epoch: 1, Raw: "*\tq", Reason: "the kind is unknown"}}
	if got, err := l.Apply(t.Context(), nil, poison); err != nil || len(got.Stopped) != 1 {
		t.Fatalf("applied %+v, %v", got, err)
	}
	wantStopped(t, l, lot, fault.StopUnfoldable)
	r.load(issue(t, l, lot))
	if _, err := l.Apply(t.Context(), r.take(), poison); err != nil { // the line comes again from the old life
		t.Fatal(err)
	}
	wantStopped(t, l, lot, "")
}

func TestEpochs(t *testing.T) {
	l, db := newLedger(t)
	if _, err := l.IssueEpoch(t.Context(), "lot", IssueRequest{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	def := drop.Definition{Lot: "lot", Stock: 5}.WithDefaults()
	if created, err := l.CreateLot(t.Context(), def, "test"); err != nil || !created {
		t.Fatalf("created %t, %v", created, err)
	}
	// Until the first event the definition may still be corrected.
	def.Stock, def.Name = 7, "seven"
	if created, err := l.CreateLot(t.Context(), def, "test"); err != nil || created {
		t.Fatalf("created %t, %v", created, err)
	}
	first, err := l.IssueEpoch(t.Context(), "lot", IssueRequest{OnlyUnseen: true})
	if err != nil || first.Epoch != 1 || !first.Lot.Equal(def) || first.Closing != (drop.Watermark{}) {
		t.Fatalf("issued %+v, %v", first, err)
	}
	// A seed that died before the load runs again: the load of the first may still come, so it is the same life.
	again, err := l.IssueEpoch(t.Context(), "lot", IssueRequest{OnlyUnseen: true, Actor: "olga", Reason: "again"})
	if err != nil || again.Epoch != 1 || again.Closing != (drop.Watermark{}) {
		t.Fatalf("issued %+v, %v", again, err)
	}
	// Whoever wants another life gets a number that was never used.
	second, err := l.IssueEpoch(t.Context(), "lot", IssueRequest{Actor: "olga", Reason: "anew"})
	if err != nil || second.Epoch != 2 {
		t.Fatalf("issued %+v, %v", second, err)
	}
	r := newRedis(l.Installation().ID, "lot", 7)
	r.load(second)
	seen := lotOf(t, l, "lot").LedgerLot
	apply(t, l, r.take()...)
	if _, err := l.IssueEpoch(t.Context(), "lot", IssueRequest{Expect: &seen}); !fault.Is(err, fault.Conflict) {
		t.Errorf("for a lot that went on: %v", err)
	}
	def.Stock = 9
	if created, err := l.CreateLot(t.Context(), def, "test"); err != nil || created || lotOf(t, l, "lot").Stock != 7 {
		t.Errorf("created %t, %v, stock %d", created, err, lotOf(t, l, "lot").Stock)
	}
	if _, err := l.IssueEpoch(t.Context(), "lot", IssueRequest{OnlyUnseen: true}); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v", err)
	}
	seen = lotOf(t, l, "lot").LedgerLot
	db.SQL(t, `UPDATE lots SET stopped = 'fork'`)
	if _, err := l.IssueEpoch(t.Context(), "lot", IssueRequest{Expect: &seen}); !fault.Is(err, fault.Conflict) {
		t.Errorf("for a lot that was stopped: %v", err)
	}
	db.SQL(t, `UPDATE lots SET stopped = ''`)
	for _, want := range []bool{true, false} { // of two who saw the same only one gets it
		if third, err := l.IssueEpoch(t.Context(), "lot", IssueRequest{Expect: &seen, Actor: "guardian"}); (err == nil) != want || want && third.Epoch != 3 {
			t.Errorf("issued %+v, %v", third, err)
		}
	}
	if got := db.SQL(t, `SELECT epoch, closed_seq, actor FROM lot_epochs ORDER BY epoch`); got != "1|0|\n2|0|olga\n3|1|guardian" {
		t.Errorf("epochs %q", got)
	}
	def.Stock = -1
	if _, err := l.CreateLot(t.Context(), def, "test"); !fault.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
}

// A seed's load timed out, another seed corrected the definition meanwhile, and the first load came through.
func TestTheFirstLoadThatComesThroughBeginsTheHistory(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := newRedis(l.Installation().ID, lot, 10)
	if _, err := l.CreateLot(t.Context(), r.def, "first"); err != nil {
		t.Fatal(err)
	}
	issued, err := l.IssueEpoch(t.Context(), lot, IssueRequest{OnlyUnseen: true})
	if err != nil {
		t.Fatal(err)
	}
	r.load(issued)
	corrected := r.def
	corrected.Stock, corrected.Name = 12, "corrected"
	if _, err := l.CreateLot(t.Context(), corrected, "second"); err != nil {
		t.Fatal(err)
	}
	if again, err := l.IssueEpoch(t.Context(), lot, IssueRequest{OnlyUnseen: true}); err != nil || again.Epoch != issued.Epoch {
		t.Fatalf("issued %+v, %v", again, err)
	}
	r.confirm(r.hold("ann", 2), 2, "pay")
	apply(t, l, r.take()...)
	wantStopped(t, l, lot, "")
	wantTotals(t, l, lot, 10, 0, 2)
	if got := lotOf(t, l, lot); !got.Definition.Equal(r.def) {
		t.Errorf("the definition is %+v, not that of the load", got.Definition)
	}
	if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" && !strings.Contains(v.Bad, "finalised") {
		t.Errorf("verified %+v, %v", v, err)
	}
}

func TestJournalPages(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	r := seeded(t, l, lot, 10)
	for range 5 {
		r.hold("ann", 1)
	}
	events := r.take()
	apply(t, l, events...)
	var got []drop.Event
	var at drop.Watermark
	for {
		page, err := l.Journal(t.Context(), lot, at, 4)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		got = append(got, page...)
		at = page[len(page)-1].Watermark()
	}
	if !slices.EqualFunc(got, events, func(a, b drop.Event) bool { return a.Digest() == b.Digest() }) {
		t.Errorf("journal %+v", got)
	}
}
