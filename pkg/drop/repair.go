package drop

// Repair is what is to be put right in Redis, and the account of it that is kept.
type Repair struct {
	Run      int64 // of the reconcile run it belongs to; 0: of none
	Lot      LotID
	What     string // such as "due entries", "user counters", "rebuild"
	Actor    string
	Reason   string
	Evidence any // stored as JSON: the differences, and the (run id, epoch, seq) at which they were seen
}
