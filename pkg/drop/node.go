package drop

import "time"

// Breaker is the state of a circuit breaker.
type Breaker string

// The states: calls go to the node; one try decides whether they may again; they are refused at once.
const (
	BreakerClosed   Breaker = "closed"
	BreakerHalfOpen Breaker = "half_open"
	BreakerOpen     Breaker = "open"
)

// NodeState is how a Redis server with shards answers its prober.
type NodeState struct {
	Node     string        `json:"node"` // host:port or socket; of a primary that Sentinel watches: its name and the Sentinels
	Breaker  Breaker       `json:"breaker"`
	Since    time.Time     `json:"since,omitzero"`     // when calls were first refused, or allowed again; zero: never refused so far
	LastPing time.Duration `json:"last_ping,omitzero"` // nanoseconds; of a failed one: how long it was waited for
	Err      string        `json:"error,omitempty"`    // why the last ping was bad, or what the server answered to it instead of PONG
	Refuses  bool          `json:"refuses,omitempty"`  // it answers that it takes no calls: it loads its data, or does not know our credentials
}

// Works reports whether the node takes calls. While one try decides it takes no others: a node that hangs is half open most
// of the time.
func (n NodeState) Works() bool { return n.Breaker == BreakerClosed && !n.Refuses }
