package ledger

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func settlement(lot drop.LotID) Settlement {
	return Settlement{Lot: lot, Actor: "olga", Reason: "ticket 7"}
}

func discard(t *testing.T, l *Ledger, s Settlement) SettledLot {
	t.Helper()
	done, err := l.Discard(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func letterIDs(t *testing.T, l *Ledger, lot drop.LotID) []int64 {
	t.Helper()
	dead, err := l.DeadLetters(t.Context(), lot, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for _, d := range dead {
		ids = append(ids, d.ID)
	}
	return ids
}

func wantVerified(t *testing.T, l *Ledger, lot drop.LotID) {
	t.Helper()
	if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" {
		t.Errorf("%s: %q at %v, %v", lot, v.Bad, v.At, err)
	}
}

// An event that does not fit is given up: a void stands in its place, what waited behind is folded, its payment is due,
// and when it comes again it stops nothing.
func TestDiscardAnUnfoldableEvent(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	ada := r.hold("ada", 2)
	bob := r.hold("bob", 1)
	bad := r.confirm(bob, 1, "pay-bob")
	bad.Reservation.N = 1 // of nobody
	bad.Qty = 1
	r.events[len(r.events)-1] = bad
	r.confirm(ada, 2, "pay-ada")
	events := r.take()
	apply(t, l, events...)
	wantStopped(t, l, lot, fault.StopUnfoldable)

	s := settlement(lot)
	s.Letters = letterIDs(t, l, lot)
	s.DryRun = true
	if done := discard(t, l, s); done.Folded != 2 || done.Stopped != "" || done.Waiting != 0 || done.Due != 1 {
		t.Errorf("planned %+v", done)
	}
	wantStopped(t, l, lot, fault.StopUnfoldable) // nothing was done
	s.DryRun = false
	done := discard(t, l, s)
	if done.Folded != 2 || done.Mark.Seq != r.seq || len(done.Items) != 1 || done.Items[0].Result != SettledDiscarded {
		t.Errorf("discarded %+v", done)
	}
	wantStopped(t, l, lot, "")
	wantTotals(t, l, lot, 10, 1, 2)
	wantVerified(t, l, lot)
	due, err := l.RefundsDue(t.Context(), lot, 0)
	if err != nil || len(due) != 1 || due[0].Why != WhyDiscarded || due[0].Ref != "pay-bob" {
		t.Errorf("due %+v, %v", due, err)
	}
	if again := apply(t, l, events...); again.Duplicates != len(events) || again.Dead != 0 {
		t.Errorf("again %+v", again)
	}
	wantStopped(t, l, lot, "")
	if left := letterIDs(t, l, lot); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if twice := discard(t, l, s); twice.Items[0].Result != SettledUnchanged || twice.Folded != 0 {
		t.Errorf("a second time %+v", twice)
	}
	journal, err := l.Journal(t.Context(), lot, drop.Watermark{}, 100)
	if err != nil || journal[3].Kind != drop.KindVoid || journal[3].Actor != "olga" || journal[3].Reason != "ticket 7" {
		t.Errorf("journal %+v, %v", journal, err)
	}
	repairs, err := l.RepairsOutsideRuns(t.Context(), 50)
	if err != nil || !strings.Contains(fmt.Sprint(repairs), "discard") || !strings.Contains(string(repairs[0].Evidence)+string(repairs[1].Evidence), "pay-bob") {
		t.Errorf("repairs %v, %v", repairs, err)
	}
}

// Events that were lost for good are given up; what comes late for their places stops nothing, and its money is due.
func TestDiscardAGap(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	ada := r.hold("ada", 2)
	apply(t, l, r.take()...)
	r.hold("bob", 1)
	r.confirm(ada, 2, "pay-ada")
	lost := r.take()
	r.hold("cy", 3)
	apply(t, l, r.take()...)
	r.hold("dan", 1) // and one that nobody but Redis knows
	lost = append(lost, r.take()...)

	s := settlement(lot)
	s.Gap = true
	s.Until = drop.Watermark{Epoch: r.epoch, Seq: r.seq}
	s.Kept = map[drop.Watermark]bool{lost[0].Watermark(): true}
	s.DryRun = true
	if done := discard(t, l, s); len(done.Items) != 2 || done.Items[0].From != lost[1].Seq || done.Waiting != 3 {
		t.Errorf("with one still in the outbox: %+v", done)
	}
	s.DryRun, s.Kept = false, nil
	done := discard(t, l, s)
	if len(done.Items) != 2 || done.Items[0].From != lost[0].Seq || done.Items[0].To != lost[1].Seq || done.Items[1].From != r.seq || done.Folded != 4 || done.Mark.Seq != r.seq {
		t.Errorf("discarded %+v", done)
	}
	wantTotals(t, l, lot, 10, 5, 0)
	wantVerified(t, l, lot)
	if late := apply(t, l, lost...); late.Dead != 3 || len(late.Stopped) > 0 {
		t.Errorf("late %+v", late)
	}
	wantStopped(t, l, lot, "")
	if due, err := l.RefundsDue(t.Context(), lot, 0); err != nil || len(due) != 1 || due[0].Ref != "pay-ada" || due[0].Why != WhyDiscarded {
		t.Errorf("due %+v, %v", due, err)
	}
	r.release(r.live[2], 0)
	if next := apply(t, l, r.take()...); next.Folded != 1 {
		t.Errorf("the next event %+v", next)
	}
	if again := discard(t, l, Settlement{Lot: lot, Gap: true, Actor: "olga", Reason: "x"}); len(again.Items) > 0 {
		t.Errorf("no gap is left, discarded %+v", again)
	}
	// A new life of the lot follows.
	r.load(issue(t, l, lot))
	apply(t, l, r.take()...)
	wantStopped(t, l, lot, "")
	wantVerified(t, l, lot)
}

func TestDiscardPlaces(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	apply(t, l, r.take()...)
	r.hold("lost", 1)
	lost := r.take()[0]
	waits := r.hold("waits", 1)
	paid := r.confirm(waits, 1, "pay")
	apply(t, l, r.take()...)
	at := func(seq int64) Settlement {
		s := settlement(lot)
		s.Places = []drop.Watermark{{Epoch: r.epoch, Seq: seq}}
		return s
	}
	kept := at(lost.Seq)
	kept.Kept = map[drop.Watermark]bool{lost.Watermark(): true}
	closed := at(lost.Seq)
	closed.Places[0].Epoch = 9
	stranger := at(1)
	stranger.Lot = newLot()
	for name, c := range map[string]struct {
		s    Settlement
		code fault.Code
	}{"recorded": {at(1), fault.Conflict}, "in the outbox": {kept, fault.Conflict}, "no such epoch": {closed, fault.Conflict}, "unknown lot": {stranger, fault.NotFound}} {
		if _, err := l.Discard(t.Context(), c.s); !fault.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One that waits is replaced; it waits on as a void.
	if done := discard(t, l, at(paid.Seq)); done.Due != 1 || done.Folded != 0 || done.Waiting != 2 {
		t.Errorf("%+v", done)
	}
	if done := discard(t, l, at(paid.Seq)); done.Items[0].Result != SettledUnchanged {
		t.Errorf("twice %+v", done)
	}
	if done := discard(t, l, at(lost.Seq)); done.Folded != 3 || done.Waiting != 0 {
		t.Errorf("%+v", done)
	}
	wantTotals(t, l, lot, 10, 1, 0)
	wantVerified(t, l, lot)
	if left := letterIDs(t, l, lot); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if again := apply(t, l, paid, lost); again.Duplicates != 1 || again.Dead != 1 || len(again.Stopped) > 0 {
		t.Errorf("%+v", again)
	}
}

// A place that was lost and one behind it that waits are given up in one go: both are folded as voids at once.
func TestDiscardWhatFollowsItself(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	apply(t, l, r.take()...)
	r.hold("lost", 1)
	r.take()
	r.hold("waits", 1)
	r.hold("ada", 1)
	apply(t, l, r.take()...)
	s := settlement(lot)
	s.Places = []drop.Watermark{{Epoch: 1, Seq: 3}, {Epoch: 1, Seq: 2}, {Epoch: 1, Seq: 2}}
	if done := discard(t, l, s); done.Folded != 3 || done.Waiting != 0 || len(done.Items) != 2 {
		t.Errorf("%+v", done)
	}
	wantTotals(t, l, lot, 10, 1, 0)
	wantVerified(t, l, lot)
	if got := lotOf(t, l, lot); got.Waiting != 0 {
		t.Errorf("%d wait", got.Waiting)
	}
	if list, err := l.WaitingList(t.Context(), lot, 10); err != nil || len(list) > 0 {
		t.Errorf("left behind: %+v, %v", list, err)
	}
}

// A fork: the event that came first stays, and the lot goes on.
func TestDiscardAFork(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	r.hold("ada", 1)
	events := r.take()
	apply(t, l, events...)
	other := events[1]
	other.Qty, other.Asked = 2, "2/0"
	r.hold("bob", 1)
	apply(t, l, append(r.take(), other)...)
	wantStopped(t, l, lot, fault.StopFork)
	s := settlement(lot)
	s.Letters = letterIDs(t, l, lot)
	if done := discard(t, l, s); done.Folded != 1 || done.Stopped != "" {
		t.Errorf("%+v", done)
	}
	wantTotals(t, l, lot, 10, 2, 0)
	wantVerified(t, l, lot)
	if again := apply(t, l, other); again.Duplicates != 1 {
		t.Errorf("%+v", again)
	}
}

// A line that is no event leaves a gap of which nobody knows the place. Discarded, it stops nothing when it is sent again.
func TestDiscardPoison(t *testing.T) {
	l := sharedLedger(t)
	lot, other := newLot(), newLot()
	r, sound := seeded(t, l, lot, 10), seeded(t, l, other, 10)
	apply(t, l, append(r.take(), sound.take()...)...)
	r.hold("lost", 1)
	r.take()
	r.hold("ada", 1)
	poison := []drop.Poison{{Installation: r.installation, Lot: lot, Epoch: r.epoch, Raw: "\xff\x00", Reason: "no event"}}
	sound.hold("bob", 1)
	if _, err := l.Apply(t.Context(), append(r.take(), sound.take()...), poison); err != nil {
		t.Fatal(err)
	}
	wantStopped(t, l, lot, fault.StopUnfoldable)
	wantTotals(t, l, other, 10, 1, 0) // poison stops its own lot only
	s := settlement(lot)
	s.Letters = letterIDs(t, l, lot)
	if tried, err := l.Retry(t.Context(), s); err != nil || tried.Items[0].Result != SettledDead {
		t.Errorf("tried %+v, %v", tried, err)
	}
	s.Letters, s.Gap = nil, true
	if done := discard(t, l, s); done.Folded != 2 || len(done.Items) != 2 || done.Stopped != "" {
		t.Errorf("%+v", done)
	}
	if _, err := l.Apply(t.Context(), nil, poison); err != nil {
		t.Fatal(err)
	}
	wantStopped(t, l, lot, "")
	wantVerified(t, l, lot)
}

func TestRetryDeadLetters(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := newRedis(l.Installation().ID, lot, 5)
	r.load(Issued{Epoch: 1, Lot: Lot{LedgerLot: drop.LedgerLot{Definition: r.def}}})
	ada := r.hold("ada", 1)
	r.confirm(ada, 1, "pay")
	apply(t, l, r.take()...) // before anybody created it
	s := settlement(lot)
	s.Letters = letterIDs(t, l, lot)
	if len(s.Letters) != 3 {
		t.Fatalf("%d letters", len(s.Letters))
	}
	if done, err := l.Retry(t.Context(), s); err != nil || done.Items[0].Result != SettledDead || done.Items[0].Code != fault.NotFound {
		t.Errorf("of an unknown lot: %+v, %v", done, err)
	}
	if _, err := l.CreateLot(t.Context(), r.def, "test"); err != nil {
		t.Fatal(err)
	}
	// The number of the epoch is not issued again, as after a database was put back: here the test puts it in.
	if _, err := l.pool.Exec(t.Context(), `WITH issued AS (INSERT INTO lot_epochs VALUES ($1, 1, 0, 0, 'test', 'test')) UPDATE lots SET open_epoch = 1 WHERE lot = $1`, string(lot)); err != nil {
		t.Fatal(err)
	}
	first := s
	first.Letters = s.Letters[:1] // the newest
	if done, err := l.Retry(t.Context(), first); err != nil || done.Items[0].Result != SettledWaiting {
		t.Errorf("behind a gap: %+v, %v", done, err)
	}
	s.DryRun = true
	if done, err := l.Retry(t.Context(), s); err != nil || done.Folded != 3 {
		t.Errorf("tried %+v, %v", done, err)
	}
	wantTotals(t, l, lot, 5, 0, 0)
	s.DryRun = false
	done, err := l.Retry(t.Context(), s)
	if err != nil || done.Folded != 3 || done.Items[0].Result != SettledUnchanged {
		t.Errorf("%+v, %v", done, err)
	}
	wantTotals(t, l, lot, 5, 0, 1)
	wantVerified(t, l, lot)
	s.Letters = []int64{1 << 60}
	if _, err := l.Retry(t.Context(), s); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// What does not fit a second time stops the lot a second time.
func TestRetryOfWhatStillDoesNotFit(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	ada := r.hold("ada", 1)
	ada.ID.N = 1
	r.release(ada, 0)
	r.hold("bob", 1)
	apply(t, l, r.take()...)
	s := settlement(lot)
	s.Letters = letterIDs(t, l, lot)
	done, err := l.Retry(t.Context(), s)
	if err != nil || done.Items[0].Result != SettledDead || done.Items[0].Code != fault.StopUnfoldable || done.Stopped != fault.StopUnfoldable || done.Folded != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	wantStopped(t, l, lot, fault.StopUnfoldable)
	if got := lotOf(t, l, lot); got.Waiting != 1 {
		t.Errorf("%d wait", got.Waiting)
	}
}

// Redis in a life that this database never issued, with nothing in the outbox: the lot stops, and the next epoch lies beyond.
func TestDiscardAnEpochThatWasNeverIssued(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	apply(t, l, r.take()...)
	s := settlement(lot)
	s.Gap, s.Until = true, drop.Watermark{Epoch: 4, Seq: 99}
	if done := discard(t, l, s); done.Stopped != fault.StopUnfoldable {
		t.Errorf("%+v", done)
	}
	if issued := issue(t, l, lot); issued.Epoch != 5 {
		t.Errorf("epoch %d follows", issued.Epoch)
	}
}

// Without the very first load there is nothing to go on from.
func TestTheFirstLoadCannotBeDiscarded(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	r.take()
	r.hold("ada", 1)
	apply(t, l, r.take()...)
	s := settlement(lot)
	s.Gap = true
	if _, err := l.Discard(t.Context(), s); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
}

// A load that was lost is given up like any other event: its epoch begins with a void.
func TestDiscardALostLoad(t *testing.T) {
	l := sharedLedger(t)
	lot := newLot()
	r := seeded(t, l, lot, 10)
	r.hold("ada", 1)
	apply(t, l, r.take()...)
	r.load(issue(t, l, lot))
	r.take()
	r.hold("bob", 2)
	apply(t, l, r.take()...)
	s := settlement(lot)
	s.Gap = true
	if done := discard(t, l, s); done.Folded != 2 || done.Mark.Epoch != 2 {
		t.Errorf("%+v", done)
	}
	wantTotals(t, l, lot, 10, 3, 0)
	wantVerified(t, l, lot)
}
