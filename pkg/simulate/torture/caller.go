package torture

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/retry"
)

const (
	usersFor   = 40 // steps that a caller acts for the same users
	remembered = 48 // attempts that a caller comes back to
	insistence = 100 * time.Millisecond
)

// caller does one step after the other for users of its own.
type caller struct {
	*run
	n      int
	recent []*attempt
	// A replacement without a clear answer may be carried out later, and give back what its user holds then.
	swapping map[string]bool
}

// call is one request and its answer.
type call struct {
	out   drop.Outcome
	err   error
	doubt bool // an earlier sending had no clear answer, and may have been carried out or still be, though this one was refused
}

func (c *caller) work(ctx context.Context) {
	for number := 0; ctx.Err() == nil; number++ {
		s := decide(c.opt.Seed, c.n, number)
		if retry.Sleep(ctx, s.pause) != nil {
			return
		}
		if number%usersFor == 0 {
			c.swapping = map[string]bool{}
		}
		c.do(ctx, s, number)
	}
}

// do carries a step out. Where there is no reservation that the step could be about, it makes one.
func (c *caller) do(ctx context.Context, s step, number int) {
	switch s.act {
	case adjustment, pauseLot, openLot:
		c.operate(ctx, s, number)
		return
	case again:
		if a := c.among(s, func(*attempt) bool { return true }); a != nil {
			c.reserve(ctx, s, a)
			return
		}
	case take, swap:
	default:
		if a := c.among(s, subjectOf(s.act)); a != nil {
			c.settle(ctx, s, a)
			return
		}
	}
	if s.act != swap {
		s.act = take
	}
	c.reserve(ctx, s, c.fresh(s, number))
}

// subjectOf says which reservations an act is about.
func subjectOf(what act) func(*attempt) bool {
	switch what {
	case refund:
		return func(a *attempt) bool { return a.state == drop.Confirmed && a.refunded < a.qty }
	case buyLate:
		return func(a *attempt) bool { return a.state == drop.Held && !a.live() }
	case stray:
		return func(a *attempt) bool { return a.granted && a.state != drop.Held }
	}
	return (*attempt).live
}

// among picks one of the remembered attempts.
func (c *caller) among(s step, fits func(*attempt) bool) *attempt {
	var list []*attempt
	for _, a := range c.recent {
		if fits(a) {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[s.pick%uint64(len(list))]
}

// fresh makes a request under a new key.
func (c *caller) fresh(s step, number int) *attempt {
	a := &attempt{request: drop.ReserveRequest{
		Lot: lots[s.lot].Lot, User: fmt.Sprintf("c%d-%d", c.n, number/usersFor*10+s.user), Key: fmt.Sprintf("step-%d", number),
		Qty: s.qty, Hold: s.hold, Actor: actor, Replace: s.act == swap}}
	a.mayRelease = c.swapping[string(a.request.Lot)+" "+a.request.User]
	if c.recent = append(c.recent, a); len(c.recent) > remembered {
		c.recent = c.recent[1:]
	}
	c.book.mu.Lock()
	c.book.attempts[drop.AttemptOf(a.request.Lot, a.request.User, a.request.Key)] = a
	c.book.mu.Unlock()
	return a
}

// reserve sends a reserve request, once or twice at once, and enters the answers.
func (c *caller) reserve(ctx context.Context, s step, a *attempt) {
	if a.request.Replace {
		c.mayEnd(a)
	}
	send := func() call {
		return c.insist(ctx, s, func(ctx context.Context) (drop.Outcome, error) { return c.engine.Reserve(ctx, a.request) })
	}
	answers := c.answers(s.twice, send, send)
	inOrder(s.act, answers)
	for _, answer := range answers {
		a.note(fmt.Sprintf("%s %d", s.act, a.request.Qty), answer.out, answer.err)
		a.mayHold = a.mayHold || answer.doubt
		c.book.reserved(a, answer.out, answer.err)
		if a.request.Replace && !clear(answer.err) {
			c.swapping[string(a.request.Lot)+" "+a.request.User] = true
		}
	}
}

// mayEnd notes what a replacement may give back: whatever else the user holds.
func (c *caller) mayEnd(replacing *attempt) {
	for _, a := range c.recent {
		if a != replacing && a.request.Lot == replacing.request.Lot && a.request.User == replacing.request.User {
			a.mayRelease = true
		}
	}
}

// settle sends what a step is to do with a reservation, and enters the answers.
func (c *caller) settle(ctx context.Context, s step, a *attempt) {
	q := c.request(s, a)
	other := q
	if s.act == race {
		other = drop.SettleRequest{ID: a.id, Action: drop.ActRelease, Actor: actor}
		a.mayRelease = true // until it is known which of both came first
	}
	c.book.expects(a, q)
	if q.Action == drop.ActRefund {
		c.book.refunding(a, q.Total)
	}
	sender := func(q drop.SettleRequest) func() call {
		return func() call {
			return c.insist(ctx, s, func(ctx context.Context) (drop.Outcome, error) { return c.engine.Settle(ctx, q) })
		}
	}
	answers := c.answers(s.twice || s.act == race, sender(q), sender(other))
	for i, answer := range answers {
		if answer.doubt {
			c.book.doubt(a, []drop.SettleRequest{q, other}[i])
		}
	}
	if s.act == race {
		c.raced(a, q, other, answers)
		return
	}
	inOrder(s.act, answers)
	for _, answer := range answers {
		a.note(wish(s.act, q), answer.out, answer.err)
		c.book.settled(a, q, answer.out, answer.err)
	}
}

// wish words a settle request.
func wish(what act, q drop.SettleRequest) string {
	text := fmt.Sprintf("%s ~%d", what, q.ID.N)
	switch {
	case q.Qty > 0:
		text += fmt.Sprintf(", %d of it", q.Qty)
	case q.Keep > 0:
		text += fmt.Sprintf(", keep %d", q.Keep)
	case q.Action == drop.ActRefund:
		text += fmt.Sprintf(", %d in all", q.Total)
	}
	return text
}

// raced enters the answers to a confirmation and a release that were sent at once: at most one of them may be done.
func (c *caller) raced(a *attempt, buying, giving drop.SettleRequest, answers []call) {
	first, second := answers[0], answers[1]
	a.note("confirm, at once with release", first.out, first.err)
	a.note("release, at once with confirm", second.out, second.err)
	if second.err == nil && first.err != nil {
		c.book.settled(a, giving, second.out, nil)
		c.book.settled(a, buying, first.out, first.err)
		return
	}
	c.book.settled(a, buying, first.out, first.err)
	c.book.settled(a, giving, second.out, second.err)
}

// request words what a step does with a reservation.
func (c *caller) request(s step, a *attempt) drop.SettleRequest {
	q := drop.SettleRequest{ID: a.id, Action: drop.ActConfirm, Actor: actor, Ref: "pay-" + a.id.Attempt}
	switch s.act {
	case buyPart:
		q.Qty = 1 + s.part%max(1, a.qty)
	case giveBack:
		q = drop.SettleRequest{ID: a.id, Action: drop.ActRelease, Actor: actor}
	case givePart:
		q = drop.SettleRequest{ID: a.id, Action: drop.ActRelease, Keep: s.part % max(1, a.qty), Actor: actor}
	case longer:
		q = drop.SettleRequest{ID: a.id, Action: drop.ActExtend, By: time.Second + max(s.hold, time.Second)/2, Actor: actor}
	case refund:
		q = drop.SettleRequest{ID: a.id, Action: drop.ActRefund, Total: min(a.qty, a.refunded+s.part), NoRestock: s.keep, Actor: actor}
	case stray:
		if s.part%2 == 0 {
			q = drop.SettleRequest{ID: a.id, Action: drop.ActRelease, Actor: actor}
		}
	}
	q.By = q.By.Truncate(time.Millisecond)
	return q
}

// answers sends one, or both at once.
func (c *caller) answers(both bool, first, second func() call) []call {
	if !both {
		return []call{first()}
	}
	var pair [2]call
	var done sync.WaitGroup
	done.Go(func() { pair[0] = first() })
	done.Go(func() { pair[1] = second() })
	done.Wait()
	return pair[:]
}

// inOrder orders the answers to one request that was sent twice as they can have come about: a success may have been
// possible only after a refusal, and was repeated after it was made.
func inOrder(what act, answers []call) {
	order := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(answers, func(a, b call) int {
		if what == longer { // both may have extended it, one after the other
			return cmp.Or(order(a.err == nil)-order(b.err == nil), a.out.Reservation.Deadline.Compare(b.out.Reservation.Deadline))
		}
		return cmp.Or(order(a.err == nil)-order(b.err == nil), order(a.out.Replayed)-order(b.out.Replayed))
	})
}

// insist sends a call until its answer is clear, the caller has no more patience, or the run is over. It is counted each
// time. Between the calls the world may be stopped.
func (c *caller) insist(ctx context.Context, s step, send func(ctx context.Context) (drop.Outcome, error)) (last call) {
	for unclear := false; ; unclear = true {
		c.world.RLock()
		// A call that was begun is not cut off at the end of the run: its answer is worth knowing.
		last.out, last.err = send(context.WithoutCancel(ctx))
		c.world.RUnlock()
		c.book.count(s.act, last.out.Replayed, last.err)
		if clear(last.err) {
			if unclear && last.err != nil {
				last.doubt = true
			}
			return last
		}
		if !s.patient || retry.Sleep(ctx, insistence) != nil {
			return last
		}
	}
}

// operate does what operators do with a lot.
func (c *caller) operate(ctx context.Context, s step, number int) {
	lot := lots[s.lot].Lot
	reason := fmt.Sprintf("caller %d step %d", c.n, number)
	switch s.act {
	case adjustment:
		states, err := c.engine.LotStates(ctx, []drop.LotID{lot})
		st, there := states[lot]
		if err != nil || !there || st.Damaged != "" {
			return
		}
		by := s.qty
		if s.pick%2 == 0 && st.Capacity > lots[s.lot].Stock/2 || st.Capacity > 2*lots[s.lot].Stock {
			by = -by
		}
		if st.Capacity+by < 1 {
			return
		}
		c.insist(ctx, s, func(ctx context.Context) (out drop.Outcome, err error) {
			_, out.Replayed, err = c.engine.Adjust(ctx, drop.AdjustRequest{Lot: lot, By: &by, Expect: st.Capacity, Actor: actor, Reason: reason})
			return out, err
		})
	default:
		status := drop.Open
		if s.act == pauseLot {
			status = drop.Paused
		}
		c.insist(ctx, s, func(ctx context.Context) (out drop.Outcome, err error) {
			_, out.Replayed, err = c.engine.Change(ctx, drop.ChangeRequest{Lot: lot, Status: &status, Actor: actor, Reason: reason})
			return out, err
		})
	}
}
