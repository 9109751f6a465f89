package drop

import (
	"slices"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

func TestBacklogCountsWhatIsNotFolded(t *testing.T) {
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	at := func(seq int64) Watermark { return Watermark{Epoch: 1, Seq: seq} }
	lot := func(id LotID, seq int64) LedgerLot {
		return LedgerLot{Definition: Definition{Lot: id}, Watermark: at(seq)}
	}
	outbox := []OutboxState{{Pending: 3, Bytes: 70, Oldest: now.Add(-2 * time.Second)}, {Bytes: 90}, {Pending: 1, Oldest: now.Add(time.Minute)}}
	states := map[LotID]LotState{"a": {Watermark: at(5000)}, "new": {Watermark: at(40)}, "ahead": {Watermark: at(1)}}
	ledger := &Progress{Lots: []LedgerLot{lot("a", 1000), lot("ahead", 9), lot("archived", 7)}, Waiting: 40, Gap: now.Add(-time.Hour), Pace: Pace{Limit: 2000, Seen: 500}}

	b := BacklogOf(outbox, states, ledger, now)
	if b.Entries != 4 || b.Age != 2*time.Second || b.Fullest != 90 || b.Events != 4040 || b.Travelling != 4000 || b.Lag != time.Hour {
		t.Errorf("%+v", b)
	}
	if limit, seen := b.Drain(); limit != 2*time.Second || seen != 8*time.Second {
		t.Errorf("%s at the limit, %s as seen", limit, seen)
	}
	if b.Travelling = 10_000; b.Wait() != 5*time.Second {
		t.Errorf("what is written now waits %s", b.Wait())
	}
	b = BacklogOf(outbox, states, nil, now)
	if b.Known || b.Events != 0 || b.Lag != 2*time.Second || b.Wait() != 2*time.Second {
		t.Errorf("without the ledger: %+v", b)
	}
}

func TestNothingDrainsWhereNobodyRecords(t *testing.T) {
	b := Backlog{Travelling: 1, Age: time.Second}
	if limit, seen := b.Drain(); limit != Never || seen != Never || b.Wait() != time.Second {
		t.Errorf("%s, %s, wait %s", limit, seen, b.Wait())
	}
	b.Pace.Seen = 1e-12
	if _, seen := b.Drain(); seen != Never {
		t.Errorf("%s", seen)
	}
	if limit, seen := (Backlog{}).Drain(); limit != 0 || seen != 0 {
		t.Errorf("nothing takes %s, %s", limit, seen)
	}
}

func TestTheWorstDeadLettersComeFirst(t *testing.T) {
	counts := map[fault.Code]int64{fault.StopGhost: 9, fault.Invalid: 1, fault.StopFork: 1, "of a later version": 1, fault.NotFound: 1, fault.StopUnfoldable: 3}
	want := []fault.Code{"of a later version", fault.StopFork, fault.StopUnfoldable, fault.Invalid, fault.NotFound, fault.StopGhost}
	if got := WorstFirst(counts); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
