package drop

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// Pace is how fast all workers together record events, in events a second.
type Pace struct {
	Limit   float64 // as fast as they may: the lowest setting of those alive; 0: none of them records anything
	Highest float64 // the highest of these settings: beyond Limit they differ
	Seen    float64 // as fast as they did over the last ten seconds or so
}

// Progress is how far the ledger has come.
type Progress struct {
	Lots    []LedgerLot
	Waiting int64     // events it has and cannot fold, over all lots
	Gap     time.Time // since when events have waited for a missing one; zero: none do
	Pace    Pace
}

// Backlog is how far the ledger is behind what was written in Redis. Of what is not Known the fields are 0.
type Backlog struct {
	Entries int64         // outbox entries that are not acknowledged
	Age     time.Duration // of the oldest of them
	Fullest int64         // bytes in the fullest outbox, kept entries included

	Known      bool          // what the ledger says is known; without it the fields below are not
	Events     int64         // written and not folded, over all lots
	Travelling int64         // of them, those that the ledger has not got; the others wait there
	Lag        time.Duration // age of the oldest event not folded: in an outbox, or behind a gap
	Pace       Pace
}

// BacklogOf works out the backlog from one look at the outboxes and lots of Redis and, unless it was silent, at the ledger.
// The ledger must have been read first: what comes between then counts as lag, and never as the opposite.
func BacklogOf(outbox []OutboxState, states map[LotID]LotState, ledger *Progress, now time.Time) Backlog {
	var b Backlog
	for _, o := range outbox {
		b.Entries += o.Pending
		b.Fullest = max(b.Fullest, o.Bytes)
		b.Age = max(b.Age, ageOf(o.Oldest, now))
	}
	b.Lag = b.Age
	if ledger == nil {
		return b
	}
	b.Known, b.Pace = true, ledger.Pace
	b.Lag = max(b.Age, ageOf(ledger.Gap, now))
	folded := make(map[LotID]int64, len(ledger.Lots))
	for _, l := range ledger.Lots {
		folded[l.Lot] = l.Seq
	}
	for lot, st := range states {
		b.Events += max(st.Seq-folded[lot], 0)
	}
	b.Travelling = max(b.Events-ledger.Waiting, 0)
	return b
}

// ageOf returns how long ago that was; 0 for never, and for a clock that is ahead.
func ageOf(t, now time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(now.Sub(t), 0)
}

// Never is what Drain returns where nothing is recorded at present.
const Never = time.Duration(math.MaxInt64)

// Drain estimates how long the ledger needs for what travels: as fast as the workers may, and as fast as they did of late.
// It holds as long as nothing is added; Never: nothing is recorded at that pace.
func (b Backlog) Drain() (limit, seen time.Duration) {
	return drainAt(b.Travelling, b.Pace.Limit), drainAt(b.Travelling, b.Pace.Seen)
}

func drainAt(events int64, perSecond float64) time.Duration {
	switch seconds := float64(events) / perSecond; {
	case events == 0:
		return 0
	case seconds > Never.Seconds(): // also where the pace is 0
		return Never
	default:
		return time.Duration(seconds * float64(time.Second))
	}
}

// Wait estimates how long it takes until the ledger has what is written now: as long as the oldest entry has waited, or
// as long as it takes to record all that is before it.
func (b Backlog) Wait() time.Duration {
	limit, _ := b.Drain()
	if limit == Never { // how fast is not known
		return b.Age
	}
	return max(b.Age, limit)
}

// deadCodes are why events become dead letters, the worst first: buyers may be affected; nothing more is recorded of a lot;
// one that harms nothing any more.
var deadCodes = []fault.Code{fault.StopOverCapacity, fault.StopFork, fault.StopLoadMismatch, fault.StopUnfoldable, fault.Invalid, fault.NotFound, fault.StopGhost}

// WorstFirst returns the codes of dead letters that there are, the worst first; one that this program does not know is the
// worst.
func WorstFirst(counts map[fault.Code]int64) []fault.Code {
	return slices.SortedFunc(maps.Keys(counts), func(a, b fault.Code) int {
		return cmp.Or(slices.Index(deadCodes, a)-slices.Index(deadCodes, b), cmp.Compare(a, b))
	})
}
