package drop

import "time"

// Repair is what is to be put right in Redis, and the account of it that is kept.
type Repair struct {
	Run      int64 // of the reconcile run it belongs to; 0: of none
	Lot      LotID
	What     string // such as "due entries", "user counters", "rebuild"
	Actor    string
	Reason   string
	Evidence any // stored as JSON: the differences, and the (run id, epoch, seq) at which they were seen
}

// FixKind says what of a lot's derived data is to be put right.
type FixKind string

// The kinds of fixes.
const (
	FixDue   FixKind = "due entry"       // a hold has none at or before its deadline
	FixStray FixKind = "stray due entry" // it is damaged, or comes later than anything can be due
	FixNext  FixKind = "next look"       // the lot would not be looked at when its first due entry is
	FixUser  FixKind = "user counters"   // not what the user's records add up to
	FixBatch FixKind = "batch"           // what the holds of one call shared, and none needs any more
)

// LatestDue is from now on how late a due entry can come: the longest hold and any retention end before.
const LatestDue = 10 * 365 * 24 * time.Hour

// Fix puts one piece of derived data right. It follows from records, and does nothing if they are no longer as seen.
type Fix struct {
	Kind    FixKind
	Subject string        // attempt of the hold, text of the due entry, user, name of the batch
	Seen    UserCount     // FixUser: the counters, under the user's mark
	Records []Reservation // FixDue: the hold; FixUser: all live reservations of the user, in the order of their attempts
}

// FixOutcome says how a fix went.
type FixOutcome string

// The outcomes of a fix.
const (
	FixDone     FixOutcome = "done"
	FixSame     FixOutcome = "same"     // somebody else had put it right
	FixConflict FixOutcome = "conflict" // it was no longer as seen: look again
)
