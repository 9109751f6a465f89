package drop

import (
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// LedgerLot is a lot as the ledger has folded it.
type LedgerLot struct {
	Definition // Stock is the capacity
	Held       int64
	Sold       int64
	Watermark             // of the newest event folded
	OpenEpoch  int64      // issued last; beyond Epoch until its load is folded; 0: none yet
	Stopped    fault.Code // why nothing more is folded; "" normally
	Seen       bool       // an event of the lot ever arrived
	Archive    Archive    // how far the lot has been put away
}

// Totals returns the lot's counters. Available is what neither hold nor sale takes.
func (l LedgerLot) Totals() Totals {
	return Totals{Capacity: l.Stock, Available: l.Stock - l.Held - l.Sold, Held: l.Held, Sold: l.Sold}
}

// Standing is how far the ledger has come with a lot.
type Standing struct {
	Watermark
	Odd bool // it is stopped, or events wait behind a gap: the ledger may have some beyond the watermark too
}

// Applied says what became of the events of one call.
type Applied struct {
	Duplicates int // events and poison the ledger had already
	Folded     int // events folded, among them some that had been waiting
	Waiting    int // events kept until one before them arrives or their lot is rebuilt
	Dead       int // events and poison kept as dead letters
	Notices    int // things that hooks are to be told of
	Stopped    []StoppedLot
}

// StoppedLot is a lot of which the ledger folds nothing more, and why.
type StoppedLot struct {
	Lot    LotID
	Code   fault.Code
	Reason string
}

// Gap is a place in a lot's history that the ledger has not got, although it has later ones.
type Gap struct {
	Lot   LotID
	Epoch int64
	From  int64     // first seq missing
	To    int64     // last seq missing
	Since time.Time // when the first event behind the gap arrived
}

// Recorded is a reservation as the ledger has folded it.
type Recorded struct {
	Reservation
	Key      string    // idempotency key; "" for a hold taken anew by a late confirm
	Changed  time.Time // when it was held, settled, extended or refunded last
	Rejected bool      // Redis held units that the lot does not have: they count nowhere, and confirming them is refused
}

// ReservationFilter selects reservations; zero fields do not restrict.
type ReservationFilter struct {
	Lot       LotID
	User      string
	Tenant    string // only users whose name starts with it and a colon
	States    []State
	EndedFrom time.Time     // leaves out reservations that were released, expired or refunded before
	After     ReservationID // of the last one of the page before
	Limit     int           // 0: 1000
}
