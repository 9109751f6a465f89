package ledger

import (
	"context"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// A repair is written down before it is done, and its end even if the one who waits for it has gone.
func TestARepairIsWrittenDownFirst(t *testing.T) {
	l, db := newLedger(t)
	ctx, cancel := context.WithCancel(t.Context())
	r := drop.Repair{Lot: "hat", What: "due entries", Actor: "olga", Reason: "ticket 7", Evidence: map[string]int64{"seq": 9}}
	err := l.Repair(ctx, r, func(context.Context) (bool, string, error) {
		open, err := l.RepairsOutsideRuns(t.Context(), 10)
		if err != nil || len(open) != 1 || open[0].Outcome != RepairOpen || !open[0].Ended.IsZero() || open[0].Actor != "olga" || string(open[0].Evidence) != `{"seq": 9}` {
			t.Errorf("while it is done: %+v, %v", open, err)
		}
		cancel()
		return true, "3 entries", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	done, err := l.RepairsOutsideRuns(t.Context(), 10)
	if err != nil || len(done) != 1 || done[0].Outcome != RepairDone || done[0].Detail != "3 entries" || done[0].Ended.IsZero() {
		t.Errorf("afterwards: %+v, %v", done, err)
	}
	never := func(context.Context) (bool, string, error) { t.Error("it was done"); return true, "", nil }
	if err := l.Repair(t.Context(), drop.Repair{Lot: "hat", What: "due entries", Actor: "olga"}, never); !fault.Is(err, fault.Invalid) {
		t.Errorf("without a reason: %v", err)
	}
	db.SQL(t, "ALTER TABLE repairs RENAME TO gone")
	if err := l.Repair(t.Context(), r, never); !fault.Is(err, fault.NotMigrated) {
		t.Errorf("what cannot be written down: %v", err)
	}
}
