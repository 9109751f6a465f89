package drop

import (
	"strconv"
	"time"
)

// ShardState is one look at a shard's door.
type ShardState struct {
	Shard        int
	Exists       bool // Redis has the shard's meta key
	Installation string
	Shards       int       // P, as the shard was created with
	Run          string    // life of the server that answered: its run id, and the history it followed if it was a replica before
	OpenRun      string    // the life that the shard is open on
	Frozen       string    // freeze reason; "" if not frozen
	Now          time.Time // Redis time of the look
	Replication  string    // id of the server's replication history; a replica that attaches or takes over changes it
	Opened       string    // what the last opening wrote, see Opening; "" before the first
}

// Closed reports whether the door is shut because the server is another one than it was opened on, or has been a replica
// since: its data is that of another server then, though its run id is the same.
func (s ShardState) Closed() bool { return s.Exists && s.Run != s.OpenRun }

// Opening is what the next opening of the shard writes into it: how often it was opened, so that no two of them write the
// same.
func (s ShardState) Opening() string {
	n, _ := strconv.ParseInt(s.Opened, 10, 64)
	return strconv.FormatInt(n+1, 10)
}

// OutboxEntry is an outbox entry with its id in the stream. The id names a place to acknowledge, never an event.
type OutboxEntry struct {
	ID string
	Entry
}

// OutboxState says how far the ledger is behind a shard's outbox.
type OutboxState struct {
	Shard   int
	Length  int64     // entries kept
	Pending int64     // entries not acknowledged, delivered or not
	Bytes   int64     // of the events kept
	Oldest  time.Time // of the oldest entry not acknowledged; zero: there is none
}

// SweepOutcome is what one sweep of a shard did.
type SweepOutcome struct {
	Expired int           // holds taken back
	More    bool          // due holds are left
	Next    time.Duration // until the next due time; 0: unknown or none
}
