package simulate

import (
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Summary is the outcome of a rehearsal: what the users were told, what is recorded, and whether they agree.
type Summary struct {
	Verdict       string               `json:"verdict" table:"VERDICT"` // ok, broken, or none: it was interrupted and not audited
	Oversold      int64                `json:"oversold_units" table:"OVERSOLD UNITS"`
	Unaccounted   int64                `json:"unaccounted_units" table:"UNACCOUNTED UNITS"`
	Requests      int64                `json:"requests" table:"REQUESTS"`
	Accepted      int64                `json:"accepted" table:"ACCEPTED"`
	Refused       map[fault.Code]int64 `json:"refused" table:"REFUSED"`
	Replayed      int64                `json:"replayed" table:"REPLAYED"`
	Expired       int64                `json:"expired" table:"EXPIRED"`
	Released      int64                `json:"released" table:"RELEASED"`
	Refunded      int64                `json:"refunded_units" table:"REFUNDED UNITS"`
	GaveUp        int64                `json:"gave_up" table:"GAVE UP,ifset"`             // users who left since nobody took their call within their patience
	PaidLate      int64                `json:"paid_too_late" table:"PAID TOO LATE"`       // payments for a hold that had ended, which are to go back
	Payments      *Payments            `json:"payments,omitempty" table:"PAYMENTS,ifset"` // of a scenario with a gateway
	SoldUnits     int64                `json:"sold_units" table:"SOLD UNITS"`             // less what was refunded, as in the ledger
	LedgerUnits   int64                `json:"ledger_units" table:"LEDGER UNITS"`
	AcceptLatency Latency              `json:"accept_latency_seconds" table:"ACCEPT LATENCY"`
	RefuseLatency Latency              `json:"refuse_latency_seconds" table:"REFUSE LATENCY"`
	Scenario      string               `json:"scenario" table:"SCENARIO"`
	Users         int                  `json:"users" table:"USERS"`
	Seed          uint64               `json:"seed" table:"SEED"`
	Took          time.Duration        `json:"took_seconds" table:"TOOK"`         // the rehearsal itself, without what follows
	Faults        []Mishap             `json:"faults" table:"FAULTS,ifset"`       // what went wrong on purpose
	Lost          []string             `json:"lost,omitempty" table:"LOST,ifset"` // what buyers were told before Redis was emptied on purpose, and is no longer so
	Broken        []string             `json:"broken" table:"BROKEN"`             // every promise that was not kept
	Lots          []LotEnd             `json:"lots" table:"LOTS"`
}

// Mishap is one thing that went wrong on purpose.
type Mishap struct {
	Fault string        `json:"fault" table:"FAULT"`
	Done  bool          `json:"done" table:"DONE"`         // false: the last user had gone before
	At    time.Duration `json:"at_seconds" table:"AT"`     // after the start
	Took  time.Duration `json:"took_seconds" table:"TOOK"` // until the server worked again
	Error string        `json:"error" table:"ERROR,ifset"` // of a server that did not come back
}

// LotEnd is how a lot ended: Redis and the ledger after the last event was folded.
type LotEnd struct {
	Lot         drop.LotID `json:"lot" table:"LOT,name"`
	Verdict     fault.Code `json:"verdict" table:"RECONCILE"`
	Capacity    int64      `json:"capacity" table:"CAPACITY"`
	Available   int64      `json:"available" table:"AVAILABLE"`   // in Redis
	Held        int64      `json:"held" table:"HELD"`             // live holds recorded
	Sold        int64      `json:"sold" table:"SOLD"`             // confirmed in Redis
	LedgerUnits int64      `json:"ledger_units" table:"LEDGER"`   // sales less refunds
	Expired     int64      `json:"expired" table:"EXPIRED"`       // holds
	Finding     string     `json:"finding" table:"FINDING,ifset"` // "" if none
}

// oversold are the units sold that the lot does not have, by the worse of both books.
func (l LotEnd) oversold() int64 { return max(0, l.Sold-l.Capacity, l.LedgerUnits-l.Capacity) }

// unaccounted are the units that are neither available, held nor sold, or more than one of these.
func (l LotEnd) unaccounted() int64 {
	n := l.Capacity - l.Available - l.Held - l.LedgerUnits
	return max(n, -n)
}

// Summarise adds up a run that was audited. broken are the promises that the audit found not kept.
func (b *Book) Summarise(of Scenario, lots []LotEnd, broken []string) Summary {
	s := b.counted(of)
	b.mu.Lock()
	s.Lost = b.lost
	b.mu.Unlock()
	s.Verdict, s.Broken, s.Lots = "ok", append(s.Broken, broken...), append(s.Lots, lots...)
	for _, l := range lots {
		s.Oversold += l.oversold()
		s.Unaccounted += l.unaccounted()
		s.Expired += l.Expired
		s.SoldUnits += l.Sold
		s.LedgerUnits += l.LedgerUnits
		if l.Finding != "" {
			s.Broken = append(s.Broken, string(l.Lot)+": "+l.Finding)
		}
	}
	if s.Oversold != 0 || s.Unaccounted != 0 || s.SoldUnits != s.LedgerUnits || len(s.Broken) > 0 {
		s.Verdict = string(fault.Broken)
	}
	return s
}

// SoFar adds up a run that was interrupted: what the users were told. Only a broken promise makes a verdict then.
func (b *Book) SoFar(of Scenario) Summary {
	s := b.counted(of)
	s.Verdict, s.SoldUnits = "none", b.Counts().Sold-s.Refunded
	b.mu.Lock()
	defer b.mu.Unlock()
	broken, lost := b.sorted(b.violations)
	s.Lost = lost
	if s.Broken = append(s.Broken, broken...); len(s.Broken) > 0 {
		s.Verdict = string(fault.Broken)
	}
	return s
}

// counted is a summary of what was counted.
func (b *Book) counted(of Scenario) Summary {
	c := b.Counts()
	s := Summary{Requests: c.Requests, Accepted: c.Accepted, Refused: c.Refused, Replayed: c.Replayed, Released: c.Released, Refunded: c.Refunded, PaidLate: c.PaidLate, GaveUp: c.GaveUp,
		Scenario: of.Name, Users: of.Users(), Seed: of.Seed, Took: b.Took, Broken: []string{}, Lots: []LotEnd{}}
	s.AcceptLatency, s.RefuseLatency = b.Latencies()
	return s
}

// Err is nil if every guarantee held, else what ends the command.
func (s Summary) Err() error {
	if s.Verdict != string(fault.Broken) {
		return nil
	}
	return fault.New(fault.Broken, "a guarantee is broken: %d units oversold, %d unaccounted for, %d sold and %d recorded, %d promises not kept",
		s.Oversold, s.Unaccounted, s.SoldUnits, s.LedgerUnits, len(s.Broken)).
		WithHint("no lot of a shop was in it; keep this output, and play it again with --seed %d", s.Seed)
}
