package simulate

import (
	"math"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Bounds of a scenario.
const (
	MaxUsers  = 1_000_000 // of all crowds
	maxCrowds = 20
	maxVisits = 1000 // of a user, and how often one of them insists
	maxTabs   = 100
	maxTime   = time.Hour // of any pause or curve
)

// Scenario is a drop with people in it.
type Scenario struct {
	Name   string // of the file or of what ships; for people
	About  string
	Seed   uint64            // the same seed makes the same decisions
	Lots   []drop.Definition // with their defaults; the first are wanted most
	Crowds []Crowd
	// Gateway answers for the payments of confirmed reservations, which a worker then charges for; nil: the shop has been paid
	// before it confirms.
	Gateway *Gateway
}

// Crowd is people who behave alike. Shares are between 0 and 1; every range is drawn from evenly, bounds included.
type Crowd struct {
	Name   string
	Users  int
	Arrive Arrival

	Visits Range[int64] // attempts to buy of a user, until satisfied
	Tabs   int64        // as many of these at the same time
	Wants  Choices[int] // which of the lots; empty: the first ones most, the last ones still now and then
	Qty    Choices[Range[int64]]

	Patience Range[time.Duration] // how long a user puts up with refusals and trouble at one step
	Insist   Range[int64]         // how often a refusal is answered with the same request again
	Pause    Range[time.Duration] // before each of these
	Fresh    bool                 // insists under a fresh key, whatever the refusal was: a bot that ignores limits

	DoubleClick float64 // sends the request twice at once
	Reload      float64 // sends it once more when it was accepted
	Mistake     float64 // sends the same key with another quantity: a bug of the shop's page
	OwnHold     float64 // asks for a hold of its own length
	Hold        Range[time.Duration]

	Think      Range[time.Duration] // between the hold and what is done with it
	Endings    Choices[ending]
	Payment    Choices[Range[time.Duration]] // how long one attempt to pay takes
	Declined   float64                       // of each attempt
	Attempts   int64                         // to pay, after which the user gives the hold back
	Unanswered float64                       // of those who pay: the shop never hears of it, and the hold expires
	PaidLate   float64                       // of those who pay: the shop hears of it after the deadline
	PayTwice   float64                       // sends the confirmation twice at once
	Regret     float64                       // tries to release what was paid for
	Refund     float64                       // wants the money back, of some of it or all
	RefundIn   Range[time.Duration]          // after the purchase

	Satisfied float64 // goes home after a purchase
}

// Arrival says when the users of a crowd come.
type Arrival struct {
	Curve  Curve
	Within time.Duration   // until all are there; of a replay not used
	After  time.Duration   // later than the start
	Times  []time.Duration // of a replay: after the start, in any order
}

// Curve is the shape of an arrival.
type Curve string

// The curves. In a spike half of all come in the first fifth of the time; up a ramp more and more do.
const (
	Spike  Curve = "spike"
	Ramp   Curve = "ramp"
	Replay Curve = "replay"
)

// ending is what a user does with a hold.
type ending string

const (
	pay      ending = "pay"
	payPart  ending = "pay_part"  // for fewer units than are held
	payLate  ending = "pay_late"  // after the deadline
	giveBack ending = "give_back" // all of it
	giveSome ending = "give_some" // keep one, then pay for it
	abandon  ending = "abandon"   // never come back: the hold expires
)

// Range is a lowest and a highest value.
type Range[T int64 | time.Duration] struct{ From, To T }

// Choices are values with their weights.
type Choices[T any] []Choice[T]

// Choice is one of several values. Weights need not add up to anything.
type Choice[T any] struct {
	Value  T
	Weight float64
}

// always is a choice of which there is none.
func always[T any](value T) Choices[T] { return Choices[T]{{value, 1}} }

// newCrowd returns people who buy one unit each and behave, for a file to change.
func newCrowd(name string) Crowd {
	second := time.Second
	return Crowd{
		Name: name, Arrive: Arrival{Curve: Spike, Within: 5 * second},
		Visits: Range[int64]{1, 1}, Tabs: 1, Qty: always(Range[int64]{1, 1}),
		Patience: Range[time.Duration]{10 * second, 30 * second}, Insist: Range[int64]{0, 2}, Pause: Range[time.Duration]{second / 10, second},
		Think: Range[time.Duration]{second / 10, 3 * second / 2}, Endings: always(pay), Payment: always(Range[time.Duration]{}), Attempts: 3, Hold: Range[time.Duration]{second, 3 * second}, RefundIn: Range[time.Duration]{0, 2 * second}, Satisfied: 1,
	}
}

// Users returns how many come in all.
func (s Scenario) Users() (n int) {
	for _, c := range s.Crowds {
		n += c.Users
	}
	return n
}

// Scaled returns the scenario with so many users in all and the crowds in the same proportion, at least one user each.
func (s Scenario) Scaled(users int) Scenario {
	crowds, before, sum := make([]Crowd, len(s.Crowds)), s.Users(), 0
	for i, c := range s.Crowds {
		c.Users = max(1, int(math.Round(float64(c.Users)*float64(users)/float64(before))))
		crowds[i] = c
		sum += c.Users
	}
	crowds[0].Users = max(1, crowds[0].Users+users-sum) // what rounding took or gave
	s.Crowds = crowds
	return s
}
