package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Each thing that is left to do refuses the archive, with its count and the command that goes on.
func TestALotIsArchivedOnlyWhenNothingIsLeftToDo(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	refused := func(count any, what, next string) {
		t.Helper()
		_, err := l.BeginArchive(t.Context(), lot, "olga")
		if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), what) || !strings.Contains(fault.HintOf(err), next) || fault.As(err).Details["count"] != count {
			t.Errorf("got %v (%s) %v, want %s", err, fault.HintOf(err), fault.As(err).Details, what)
		}
	}
	if _, err := l.BeginArchive(t.Context(), lot, "olga"); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	r := seeded(t, l, lot, 10)
	sold, held := r.hold("ann", 2), r.hold("bob", 1)
	apply(t, l, r.take()...)
	refused(nil, "is recorded as open", "dropctl lot close "+string(lot))
	r.change(drop.Closed)
	apply(t, l, r.take()...)
	refused(int64(2), "has 2 holds", "dropctl reservation list --lot "+string(lot)+" --state held")
	r.confirm(sold, 2, "pay")
	r.release(held, 0)
	events := r.take()
	apply(t, l, events[1])
	refused(int64(1), "has 1 event to fold", "worker --until-idle")
	apply(t, l, events[0])
	refused(int64(1), "has 1 confirmed reservation to finalise", "worker --until-idle")
	finalise(t, l)
	fork := events[1]
	fork.Actor = "another"
	apply(t, l, fork)
	refused(int64(0), "is stopped (fork)", "dropctl explain fork")

	r.load(issue(t, l, lot))
	apply(t, l, r.take()...)
	archived, err := l.BeginArchive(t.Context(), lot, "olga")
	if err != nil || archived.Archive != drop.ArchiveBegun || archived.Watermark != r.emitted() {
		t.Errorf("got %+v, %v", archived, err)
	}
}

// emitted returns where the lot stands in Redis.
func (r *redis) emitted() drop.Watermark { return drop.Watermark{Epoch: r.epoch, Seq: r.seq} }

// closedLot has sold two units, is closed and has nothing left to do.
func closedLot(t *testing.T, l *Ledger) *redis {
	t.Helper()
	r := seeded(t, l, newLot(), 10)
	r.confirm(r.hold("ann", 2), 2, "pay")
	r.change(drop.Closed)
	apply(t, l, r.take()...)
	finalise(t, l)
	return r
}

// An archive that broke off at any point is ended by doing all of it again, and the sales stay.
func TestAnArchiveIsEndedByDoingItAgain(t *testing.T) {
	l := sharedLedger(t)
	r := closedLot(t, l)
	lot := r.def.Lot
	run, err := l.StartRun(t.Context(), "cron", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Finish(t.Context(), Outcome{Verdict: fault.Finding, Lots: []LotVerdict{{Lot: lot, Verdict: fault.VerdictDrift, Finding: true}}}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first one broke off before or after Redis was told
		begun, err := l.BeginArchive(t.Context(), lot, "olga")
		if err != nil || begun.Archive != drop.ArchiveBegun || begun.Watermark != r.emitted() {
			t.Fatalf("got %+v, %v", begun, err)
		}
	}
	for range 2 { // the reply of the first one was lost
		if err := l.FinishArchive(t.Context(), lot, r.emitted()); err != nil {
			t.Fatal(err)
		}
	}
	done, err := l.BeginArchive(t.Context(), lot, "someone else")
	if err != nil || done.Archive != drop.Archived || done.ArchivedBy != "olga" || done.ArchivedAt.IsZero() {
		t.Errorf("got %+v, %v", done, err)
	}
	if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" || v.Units != 2 {
		t.Errorf("verify: %+v, %v", v, err)
	}
	all, err := l.Lots(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range all {
		if other.Lot == lot {
			t.Error("it is still listed among all lots")
		}
	}
	for _, r := range []IssueRequest{{}, {OnlyUnseen: true}} {
		if _, err := l.IssueEpoch(t.Context(), lot, r); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "is archived") {
			t.Errorf("got %v", err)
		}
	}
	if found, err := l.FoundLots(t.Context()); err != nil || slices.ContainsFunc(found, func(v LotVerdict) bool { return v.Lot == lot }) {
		t.Errorf("found %+v, %v", found, err)
	}
	// Something of it turns up: an old snapshot of Redis went on.
	r.change(drop.Open)
	r.confirm(r.hold("bob", 1), 1, "pay-bob")
	apply(t, l, r.take()...)
	wantTotals(t, l, lot, 10, 0, 2)
	if due := dueRefs(t, l, lot); due != "ghost:pay-bob:1" {
		t.Errorf("refunds due: %s", due)
	}
}

// What happens between the phases is seen: the archive is not ended, and begins again from there.
func TestAnArchiveSeesWhatHappensMeanwhile(t *testing.T) {
	l := sharedLedger(t)
	r := closedLot(t, l)
	lot := r.def.Lot
	at := r.emitted()
	if err := l.FinishArchive(t.Context(), lot, at); !fault.Is(err, fault.Conflict) {
		t.Errorf("nobody began it, but: %v", err)
	}
	if _, err := l.BeginArchive(t.Context(), lot, "olga"); err != nil {
		t.Fatal(err)
	}
	bought := r.live[2]
	r.refund(bought, 1, true)
	apply(t, l, r.take()...)
	if err := l.FinishArchive(t.Context(), lot, at); !fault.Is(err, fault.Conflict) || !strings.Contains(fault.HintOf(err), fmt.Sprint("dropctl lot archive ", lot)) {
		t.Errorf("got %v", err)
	}
	again, err := l.BeginArchive(t.Context(), lot, "olga")
	if err != nil || again.Watermark != r.emitted() {
		t.Fatalf("got %+v, %v", again, err)
	}
	// A restore by hand ends an archive that was only begun; a seed does not.
	if _, err := l.IssueEpoch(t.Context(), lot, IssueRequest{OnlyUnseen: true}); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v", err)
	}
	r.load(issue(t, l, lot))
	apply(t, l, r.take()...)
	if err := l.FinishArchive(t.Context(), lot, r.emitted()); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v", err)
	}
	if got := lotOf(t, l, lot); got.Archive != drop.NotArchived {
		t.Errorf("archive is %q", got.Archive)
	}
}

// Whoever lets a lot sell again ends the archive that was begun, and nobody is told any more that the sale is over.
func TestALotThatSellsAgainIsNotPutAway(t *testing.T) {
	l := sharedLedger(t)
	r := closedLot(t, l)
	lot := r.def.Lot
	if _, err := l.BeginArchive(t.Context(), lot, "olga"); err != nil {
		t.Fatal(err)
	}
	r.refund(r.live[2], 1, true)
	apply(t, l, r.take()...) // which leaves it closed
	if why, err := l.WhyAbsent(t.Context(), lot); err != nil || !fault.Is(why, fault.NotFound) {
		t.Errorf("while it is closed: %v, %v", why, err)
	}
	r.change(drop.Open)
	apply(t, l, r.take()...)
	if why, err := l.WhyAbsent(t.Context(), lot); err != nil || why != nil {
		t.Errorf("once it is open: %v, %v", why, err)
	}
	r.change(drop.Closed)
	apply(t, l, r.take()...)
	if got := lotOf(t, l, lot); got.Archive != drop.NotArchived || got.ArchivedBy != "" {
		t.Errorf("archive is %q by %q", got.Archive, got.ArchivedBy)
	}
}

// A lot that was never loaded has nothing in Redis and can be put away too; a seed does not bring it back.
func TestALotThatWasNeverLoadedIsArchived(t *testing.T) {
	l, lot := sharedLedger(t), newLot()
	def := drop.Definition{Lot: lot, Stock: 5, Status: drop.Closed}.WithDefaults()
	if _, err := l.CreateLot(t.Context(), def, "olga"); err != nil {
		t.Fatal(err)
	}
	begun, err := l.BeginArchive(t.Context(), lot, "olga")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.FinishArchive(t.Context(), lot, begun.Watermark); err != nil {
		t.Fatal(err)
	}
	def.Stock = 7
	if created, err := l.CreateLot(t.Context(), def, "olga"); err != nil || created {
		t.Errorf("created %v, %v", created, err)
	}
	if got := lotOf(t, l, lot); got.Stock != 5 || got.Archive != drop.Archived {
		t.Errorf("got %+v", got)
	}
}
