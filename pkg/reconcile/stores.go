package reconcile

import (
	"context"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Stock is the Redis side. Every read of one lot is atomic; pages are not, which the looks allow for.
type Stock interface {
	Shards() int // P
	// SetUp tells whose data Redis has, "" if it has none.
	SetUp(ctx context.Context) (installation string, shards int, err error)
	// Lots returns every lot that Redis has.
	Lots(ctx context.Context) ([]drop.LotID, error)
	// LotStates returns a snapshot of each lot; a lot that Redis has not is absent.
	LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error)
	// EventsSince returns the outbox events of one shard's lots behind each watermark, in order, as far as still kept.
	EventsSince(ctx context.Context, shard int, from map[drop.LotID]drop.Watermark) (map[drop.LotID][]drop.Event, error)
	// Records calls fn with every record of a lot, in pages; one may come twice. It ends with the error of fn, if that
	// returns one; so do Users and DueEntries.
	Records(ctx context.Context, lot drop.LotID, fn func(page []drop.Reservation) error) error
	// Users calls fn with every user's counters of a lot, in pages.
	Users(ctx context.Context, lot drop.LotID, fn func(page []drop.UserCount) error) error
	// DueEntries calls fn with every due entry of a lot, in pages.
	DueEntries(ctx context.Context, lot drop.LotID, fn func(page []drop.DueEntry) error) error
	// StrayDues calls fn with every due entry of a shard that is of none of the known lots.
	StrayDues(ctx context.Context, shard int, known func(drop.LotID) bool, fn func(entry string)) error
	// DropDues takes due entries away that belong to no lot, if the shard's door is open, and says of each how it went.
	DropDues(ctx context.Context, shard int, entries []string) ([]drop.FixOutcome, error)
	// NextLook returns, of one moment, when the sweep will look at a lot and when its first due entry is; zero for none. first
	// is zero, too, where both change too fast to be read.
	NextLook(ctx context.Context, lot drop.LotID) (filed, first time.Time, err error)
	// StrayBatches lists the batches of a lot, but for those filed in a due entry, to which no record refers.
	StrayBatches(ctx context.Context, lot drop.LotID, filed map[string]bool) ([]string, error)
	// Repair carries out fixes of a lot, each only if it still is as it was seen, and says of each how it went.
	Repair(ctx context.Context, seen drop.LotState, fixes []drop.Fix) ([]drop.FixOutcome, error)
}

// Ledger is the PostgreSQL side. Each call is one consistent read; two calls are not.
type Ledger interface {
	// Lots returns these lots, or all of them for nil; one the ledger does not know is absent.
	Lots(ctx context.Context, lots []drop.LotID) ([]drop.LedgerLot, error)
	// WaitingEvents returns the events the ledger has, but cannot fold yet because one before them is missing.
	WaitingEvents(ctx context.Context, lots []drop.LotID) (map[drop.LotID][]drop.Event, error)
	// LiveReservations calls fn with every held or confirmed reservation of a lot, in pages. One whose state
	// changes meanwhile may come twice, but one that stays is never left out.
	LiveReservations(ctx context.Context, lot drop.LotID, fn func(page []drop.Reservation) error) error
	// ReservationsByID returns these reservations; one the ledger does not know is absent.
	ReservationsByID(ctx context.Context, ids []drop.ReservationID) (map[drop.ReservationID]drop.Reservation, error)
	// Sales returns what is finalised of a lot and what is not yet, all from one moment.
	Sales(ctx context.Context, lot drop.LotID) (Sales, error)
	// WorkersAlive counts the workers that have shown a sign of life lately.
	WorkersAlive(ctx context.Context) (int, error)
	// StartRun records that a run begins, alone: fault.Busy while another one runs. finish records how it ended
	// and lets the next run in; it works with a context of its own, so that an interrupted run is recorded too.
	StartRun(ctx context.Context, start Start) (run int64, finish func(Report, error) error, err error)
	// Repair writes down what is going to be repaired, lets act do it, and writes down how it ended. What cannot be
	// written down is not done.
	Repair(ctx context.Context, r drop.Repair, act func(ctx context.Context) (did bool, detail string, err error)) error
}

// Sales are the finalised units of a lot.
type Sales struct {
	Sold    int64 // folded as sold
	Net     int64 // units of the sales less those of the refunds
	Pending int64 // allocations not finalised yet
}

// Start is what is recorded when a run begins.
type Start struct {
	Actor string       `json:"-"`
	Lots  []drop.LotID `json:"lots"` // named by the operator; empty: all, or those of the group
	Group string       `json:"group"`
	Deep  bool         `json:"deep"`

	Repair bool `json:"repair"`
}
