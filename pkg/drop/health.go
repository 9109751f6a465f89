package drop

import (
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// StockHealth is what the Redis side says of itself: plain facts for others to judge.
type StockHealth struct {
	Nodes   []NodeHealth // at least one: the one server, the primary and its replicas, or each primary of the cluster
	Outbox  []OutboxState
	Frozen  map[fault.Code][]LotID // lots nobody can buy from, by reason
	Lots    map[LotID]LotState
	Unknown map[string]string // "outbox", "lots": why it could not be found out
}

// NodeHealth is what one Redis server says. A field that is missing in a map was not told.
type NodeHealth struct {
	Name      string // host:port or socket
	Replica   bool   // known, and asked, as a replica
	Err       error  // it did not answer: nothing else is known
	Info      map[string]string
	NoInfo    string // why Info is empty
	Config    map[string]string
	NoConfig  string         // why Config is empty
	Doors     []ShardState   // of the shards that live here; empty on a replica
	NoDoors   string         // why some are missing
	Misplaced []MisplacedKey // of these shards
	Weak      string         // why this primary cannot give the durability that is asked for
	Remedy    string         // what to change then

	Scripts   int           // how many of this program's scripts it has ready
	Ours      int           // how many there are
	Others    []string      // libraries of scripts of other versions
	NoScripts string        // why Scripts is not known
	Offset    time.Duration // its clock less this machine's
	Doubt     time.Duration // how far Offset may be wrong, either way; 0: the clock is not known
}

// MisplacedKey is a key of dropctl in Redis in which something else was found.
type MisplacedKey struct {
	Key  string
	What string // is there, and what belongs there
	Fix  string // what to do
}

// TopicHealth is what the brokers say of the topic between the relay and the ledger: plain facts for others to judge.
type TopicHealth struct {
	Exists     bool // the other fields are of one that does
	Partitions int
	Replicas   int    // of the partition that has the fewest
	Needed     int    // replicas in sync that a write needs; 0: not known
	Leaderless []int  // partitions that nobody can write to
	Weak       []int  // partitions with fewer replicas in sync than a write needs
	Compacted  bool   // it takes no records without a key
	NoSettings string // why Needed and Compacted are not known
}

// TasksHealth is what the service says of the task queue between the relay and the ledger: plain facts for others to judge.
type TasksHealth struct {
	Hidden    bool // we may not look at it: of the other fields only Created is known
	Exists    bool
	Stands    string  // why it delivers nothing: paused or disabled; "" if it does
	Delivered float64 // tasks a second that it delivers at most; 0: not told
	Created   float64 // tasks a second that one worker creates at most
}

// LedgerHealth is what the PostgreSQL side says of itself: plain facts for others to judge.
type LedgerHealth struct {
	Version  string // as the server writes it
	Number   int    // the same as a number: 150018 is 15.18
	Standby  bool
	Settings map[string]string // those that are judged, as they hold in a session of dropctl

	Role       string
	Superuser  bool
	Owned      []string // our tables whose owner's rights the role has
	Changeable []string // tables written once that the role has the right to change
	Lacking    []string // rights that it needs and does not have

	Backends  int      // connections there are, of everybody
	MaxConns  int      // connections there may be, for this role
	PoolConns int      // connections one process of dropctl may open
	Replicas  int      // standbys that are connected
	Pending   []string // migrations the database lacks
	Newer     []int64  // migrations it has that this program does not know
	Unguarded []string // tables written once without a trigger that refuses changes
	ID        string   // of the installation; "" if there is none yet
	Shards    int
	Seen      int64    // lots the ledger has events of
	Progress  Progress // without the age of gaps
	Stopped   []StoppedLot
	Dead      map[fault.Code]int64
	Hooks     []HookState
	Payments  Payments
	Versions  []string // of the program, one for each worker alive
	Parts     []string // what the workers that are alive do, together
	Offset    time.Duration
	Doubt     time.Duration     // as for a NodeHealth
	Unknown   map[string]string // question → why it could not be answered; what it asks for is then zero
}
