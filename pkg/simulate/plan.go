package simulate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// A user's decisions depend on the scenario, its seed and the user alone, never on an answer or on when it came, so that a
// run can be repeated with the same decisions. They are drawn anew wherever they are needed, which is cheaper than keeping
// those of a million people.

// maxLateHold bounds holds that somebody lets pass in order to pay too late: nobody waits longer just for that.
const maxLateHold = 10 * time.Second

// afterDeadline is how much later than the deadline a late payment comes.
const afterDeadline = 200 * time.Millisecond

// plan is everything one user will do in one attempt to buy.
type plan struct {
	lot       drop.LotID
	qty       int64
	hold      time.Duration // 0: the lot's own
	patience  time.Duration
	insist    int64
	pause     time.Duration // between two of these
	fresh     bool
	double    bool
	reload    bool
	mistake   bool
	think     time.Duration // between the hold and its ending
	paying    time.Duration // all attempts to pay together
	ending    ending
	payTwice  bool
	regret    bool
	refund    int64 // units; -1: all, 0: none
	refundIn  time.Duration
	satisfied bool
}

// who is one user: the n-th of a crowd.
type who struct{ crowd, n int32 }

// draw returns what the decisions of a user are drawn from: of visit 1, 2, …, or 0 for those about the user as a whole.
func (s *Scenario) draw(w who, visit int) *rand.Rand {
	return rand.New(rand.NewPCG(s.Seed, uint64(w.crowd+1)<<48|uint64(w.n)<<16|uint64(visit)))
}

func (s *Scenario) userName(w who) string { return fmt.Sprintf("%s-%05d", s.Crowds[w.crowd].Name, w.n) }

// comes draws when a user comes, after the start, and how often they will try to buy.
func (s *Scenario) comes(w who) (at time.Duration, visits int) {
	c, rng := &s.Crowds[w.crowd], s.draw(w, 0)
	visits = int(between(rng, c.Visits))
	switch a := c.Arrive; {
	case a.Curve == Replay:
		return a.After + a.Times[int(w.n)%len(a.Times)], visits
	case a.Curve == Ramp:
		return a.After + time.Duration(math.Sqrt(rng.Float64())*float64(a.Within)), visits
	case chance(rng, 0.5):
		return a.After + between(rng, Range[time.Duration]{0, a.Within / 5}), visits
	default:
		return a.After + between(rng, Range[time.Duration]{a.Within / 5, a.Within}), visits
	}
}

// plan draws what a user does in visit 1, 2, ….
func (s *Scenario) plan(w who, visit int) plan {
	c, rng := &s.Crowds[w.crowd], s.draw(w, visit)
	lot := s.wanted(rng, c)
	p := plan{
		lot: lot.Lot, qty: between(rng, c.Qty.pick(rng)),
		patience: between(rng, c.Patience), insist: between(rng, c.Insist), pause: between(rng, c.Pause), fresh: c.Fresh,
		double: chance(rng, c.DoubleClick), reload: chance(rng, c.Reload), mistake: chance(rng, c.Mistake),
		think: between(rng, c.Think), ending: c.Endings.pick(rng), payTwice: chance(rng, c.PayTwice), regret: chance(rng, c.Regret),
		refundIn: between(rng, c.RefundIn), satisfied: chance(rng, c.Satisfied),
	}
	if chance(rng, c.OwnHold) {
		p.hold = between(rng, c.Hold).Truncate(time.Millisecond)
	}
	if chance(rng, c.Refund) {
		p.refund = -1
		if p.qty > 1 && chance(rng, 0.5) {
			p.refund = 1
		}
	}
	p.pays(rng, c)
	if held := cmp.Or(p.hold, lot.Hold); p.ending == payLate && held > maxLateHold {
		p.ending = abandon
	}
	return p
}

// pays draws how long paying takes, whether it succeeds in the end, and when the shop hears of it.
func (p *plan) pays(rng *rand.Rand, c *Crowd) {
	unanswered, late := chance(rng, c.Unanswered), chance(rng, c.PaidLate)
	for range c.Attempts {
		p.paying += between(rng, c.Payment.pick(rng))
		if chance(rng, c.Declined) {
			continue
		}
		switch {
		case p.ending == abandon || p.ending == giveBack:
		case unanswered:
			p.ending = abandon
		case late:
			p.ending = payLate
		}
		return
	}
	if p.ending != abandon {
		p.ending = giveBack
	}
}

// wanted draws a lot: of those the crowd wants, or the first ones of the list most and the last ones still now and then.
func (s *Scenario) wanted(rng *rand.Rand, c *Crowd) drop.Definition {
	if len(c.Wants) > 0 {
		return s.Lots[c.Wants.pick(rng)]
	}
	if chance(rng, 0.25) {
		return s.Lots[rng.IntN(len(s.Lots))]
	}
	x := rng.Float64()
	return s.Lots[int(x*x*float64(len(s.Lots)))]
}

func (cs Choices[T]) pick(rng *rand.Rand) T {
	sum := 0.0
	for _, c := range cs {
		sum += c.Weight
	}
	x := rng.Float64() * sum
	for _, c := range cs {
		if x -= c.Weight; x < 0 {
			return c.Value
		}
	}
	return cs[len(cs)-1].Value
}

func chance(rng *rand.Rand, p float64) bool { return rng.Float64() < p }

func between[T int64 | time.Duration](rng *rand.Rand, r Range[T]) T {
	if r.To <= r.From {
		return r.From
	}
	return r.From + T(rng.Int64N(int64(r.To-r.From)+1))
}
