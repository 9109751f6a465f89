package drop

import "time"

// RebuildPlan is what a rebuild would put into Redis as the ledger stands. The totals of the load are those of
// the LedgerLot.
type RebuildPlan struct {
	LedgerLot
	EventAt    time.Time // Redis time of the newest event folded: the least time mark; zero: none
	Waiting    int64     // events the ledger has but cannot fold, which the rebuild makes ghosts
	Live       int64     // records of live holds
	Confirmed  int64     // records of confirmed reservations
	Tombstones int64     // records of reservations that ended not long ago
}

// Records returns how many records the rebuild loads.
func (p RebuildPlan) Records() int64 { return p.Live + p.Confirmed + p.Tombstones }

// Record is a reservation with all that Redis keeps of it.
type Record struct {
	Reservation
	ConfirmedAt time.Time // zero: never confirmed
	Ended       time.Time // zero: held or confirmed
	LateRef     string    // payment reference of the newest paid_late; "" for none
}
