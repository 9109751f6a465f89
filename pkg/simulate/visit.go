package simulate

import (
	"strconv"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
)

// person is one user who has arrived and not gone yet.
type person struct {
	who    who
	visits int32 // that are planned
	begun  int32 // of these
	open   int32 // of these, under way
	home   bool  // satisfied: begins no more
}

// visit is one attempt to buy, under way. Hundreds of thousands of them may wait at a time, so it is small: what it will do
// is its plan, which is drawn anew at every step.
type visit struct {
	person   *person
	number   int32 // from 1
	step     step
	tries    uint16 // refusals of this step
	fails    uint16 // calls of this step without a clear answer
	open     uint8  // answers that are waited for
	answer   answer // the best one so far of this step's calls that are under way
	bought   bool
	hopeless bool              // it will be the same for long
	due      time.Duration     // when the next call is, or was, due
	since    time.Duration     // when the first call of this step was due
	hold     *drop.Reservation // as told last; nil: none yet
}

// step is one thing that a user does in a visit.
type step uint8

// The steps, in order. A visit takes those that its plan has.
const (
	ask step = iota
	reloadPage
	blunder
	give
	settleForLess
	buy
	regretIt
	wantBack
	leave
)

// answer is what a call met; the higher it is, the better.
type answer uint8

const (
	unclear answer = iota + 1 // trouble with a server: nothing is known
	refused
	accepted
)

func answerOf(err error) answer {
	switch {
	case err == nil:
		return accepted
	case fault.ExitOf(err) == fault.ExitUnavailable:
		return unclear
	}
	return refused
}

// has reports whether a user takes a step, once there is a hold.
func (p plan) has(s step) bool {
	switch s {
	case reloadPage:
		return p.reload
	case blunder:
		return p.mistake
	case give:
		return p.ending == giveBack
	case settleForLess:
		return p.ending == giveSome && p.qty > 1
	case buy:
		return p.ending != giveBack && p.ending != abandon
	case regretIt:
		return p.regret && p.has(buy)
	case wantBack:
		return p.refund != 0 && p.has(buy)
	}
	return s == ask || s == leave
}

// before is how long a user waits before a step, counted from the answer to the one before.
func (p plan) before(s step, hold *drop.Reservation) time.Duration {
	switch {
	case s == give, s == settleForLess:
		return p.think
	case s == buy && p.ending == payLate:
		return hold.Deadline.Sub(hold.Created) + afterDeadline
	case s == buy && p.ending == giveSome && p.qty > 1:
		return p.paying
	case s == buy:
		return p.think + p.paying
	case s == wantBack:
		return p.refundIn
	}
	return 0
}

// twice reports whether a call is sent twice at once.
func (p plan) twice(s step) bool { return s == ask && p.double || s == buy && p.payTwice }

// reserve is the reserve call of a step.
func (v *visit) reserve(p plan, user string) drop.ReserveRequest {
	key := "cart-" + strconv.Itoa(int(v.number))
	if p.fresh && v.tries > 0 {
		key += "." + strconv.Itoa(int(v.tries))
	}
	q := drop.ReserveRequest{Lot: p.lot, User: user, Key: key, Qty: p.qty, Hold: p.hold, Actor: actor}
	if v.step == blunder {
		q.Qty++
	}
	return q
}

// settle is the settle call of a step.
func (v *visit) settle(p plan) drop.SettleRequest {
	q := drop.SettleRequest{ID: v.hold.ID, Action: drop.ActRelease, Actor: actor}
	switch v.step {
	case settleForLess:
		q.Keep = 1
	case buy:
		q.Action, q.Ref = drop.ActConfirm, "pay-"+v.hold.ID.String()
		if p.ending == payPart {
			q.Qty = max(1, v.hold.Qty-1)
		}
	case wantBack:
		q.Action, q.Total = drop.ActRefund, p.refund
		if v.hold.Qty == 1 {
			q.Total = -1
		}
	}
	return q
}

// actor is who did it, in the journal.
const actor = "simulate"

// Pauses of somebody who got no clear answer and asks the same again.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
)

// again says whether and after what pause the step's call is made once more.
func (v *visit) again(p plan) (pause time.Duration, yes bool) {
	patient := v.due-v.since < p.patience
	switch {
	case v.answer == unclear && patient:
		v.fails++
		return retry.Pause(int(v.fails), firstPause, longestPause), true
	case v.answer == refused && v.step == ask && patient && int64(v.tries) < p.insist && (p.fresh || !v.hopeless):
		v.tries++
		return p.pause, true
	}
	return 0, false
}

// pageLoads is how long anybody waits for a page, however impatient they are with refusals.
const pageLoads = 5 * time.Second

// lostPatience reports whether a user has left whose first call nobody has taken by now: more people came than are served.
// Who has a hold waits on.
func (v *visit) lostPatience(p plan, now time.Duration) bool {
	return v.step == ask && now-v.due > max(p.patience, pageLoads)
}

// hopeless reports whether a refusal will be the same for long: people do not insist then.
func hopeless(code fault.Code) bool { return code == fault.SaleClosed || code == fault.CustomerLimit }
