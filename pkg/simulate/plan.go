package simulate

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// plan is everything one user will do. It depends on seed and user alone, never on an answer, so that a run
// can be repeated with the same decisions.
type plan struct {
	user   string
	arrive time.Duration // after the start
	visits []visit       // in order, until the user is satisfied
}

// ending is what a user does with a hold.
type ending int

const (
	pay      ending = iota
	payPart         // for fewer units than are held
	payLate         // after the deadline
	giveBack        // all of it
	giveSome        // keep one, then pay for it
	abandon         // never come back: the hold expires
)

// visit is one attempt to buy, under one key.
type visit struct {
	lot         drop.LotID
	late        drop.Late // of the lot
	key         string
	qty         int64
	hold        time.Duration // 0: the lot's own
	doubleClick bool          // send the request twice at once
	insist      int           // how often a refusal is answered with the same request again
	again       bool          // send it once more when it was accepted: a reload of the page
	changeMind  bool          // send the same key with another quantity: a mistake of the shop's page
	think       time.Duration // between holding and ending, and between repetitions
	ending      ending
	payTwice    bool // send the payment twice at once
	regret      bool // try to release what was paid for
	satisfied   bool // go home after a purchase
}

// maxVisits bounds the visits of a user.
const maxVisits = 4

// planOf draws the plan of user i.
func planOf(o Options, i int) plan {
	rng := rand.New(rand.NewPCG(o.Seed, uint64(i)+1))
	p := plan{user: fmt.Sprintf("user-%05d", i), arrive: arrival(rng, o.Arrive)}
	for n := range 1 + rng.IntN(maxVisits) {
		lot := o.Lots[popular(rng, len(o.Lots))]
		v := visit{
			lot: lot.Lot, late: lot.Late, key: fmt.Sprintf("cart-%d", n+1),
			qty: quantity(rng), doubleClick: chance(rng, 0.10), insist: rng.IntN(3), again: chance(rng, 0.12), changeMind: chance(rng, 0.02),
			think: between(rng, 100*time.Millisecond, 1500*time.Millisecond), ending: endingOf(rng),
			payTwice: chance(rng, 0.10), regret: chance(rng, 0.03), satisfied: chance(rng, 0.6),
		}
		if chance(rng, 0.10) {
			v.hold = between(rng, time.Second, 3*time.Second).Truncate(time.Millisecond)
		}
		p.visits = append(p.visits, v)
	}
	return p
}

// arrival is soon after the start for most: half of them come in the first fifth of the time.
func arrival(rng *rand.Rand, within time.Duration) time.Duration {
	if chance(rng, 0.5) {
		return between(rng, 0, within/5)
	}
	return between(rng, within/5, within)
}

// popular picks a lot: the first ones of the list are wanted most, the last ones still now and then.
func popular(rng *rand.Rand, n int) int {
	if chance(rng, 0.25) {
		return rng.IntN(n)
	}
	x := rng.Float64()
	return int(x * x * float64(n))
}

func quantity(rng *rand.Rand) int64 {
	switch x := rng.Float64(); {
	case x < 0.65:
		return 1
	case x < 0.90:
		return 2
	default:
		return 3 + rng.Int64N(3)
	}
}

func endingOf(rng *rand.Rand) ending {
	x := rng.Float64()
	for _, e := range []struct {
		ending ending
		share  float64
	}{{pay, 0.60}, {payPart, 0.07}, {payLate, 0.10}, {giveBack, 0.08}, {giveSome, 0.05}} {
		if x -= e.share; x < 0 {
			return e.ending
		}
	}
	return abandon
}

func chance(rng *rand.Rand, p float64) bool { return rng.Float64() < p }

func between(rng *rand.Rand, from, to time.Duration) time.Duration {
	if to <= from {
		return from
	}
	return from + time.Duration(rng.Int64N(int64(to-from)))
}
