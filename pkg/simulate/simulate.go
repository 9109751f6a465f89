// Package simulate rehearses a drop: thousands of virtual users, as a scenario describes them, who click twice, retry, pay
// in time or too late, give units back or never return. It keeps its own book of what each of them was told, to be held
// against the ledger afterwards.
package simulate

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Engine is what the users buy from. It is called by many goroutines at once.
type Engine interface {
	Reserve(ctx context.Context, r drop.ReserveRequest) (drop.Outcome, error)
	Settle(ctx context.Context, r drop.SettleRequest) (drop.Outcome, error)
}

// Options say how a scenario is run.
type Options struct {
	Progress func(Progress) // called every 250 ms, and once at the end; may be nil
	// Beside runs next to the users from their start, as a schedule of faults does; may be nil. Its context ends with the
	// last user, and an error of its own ends the run.
	Beside func(ctx context.Context) error
}

const (
	progressEvery = 250 * time.Millisecond
	// callers bounds the calls under way. The engine sends what arrives meanwhile in batches, so more gain nothing.
	callers = 1024
)

// Progress is one look at a run.
type Progress struct {
	Elapsed  time.Duration
	Users    int64 // arrived
	Gone     int64 // finished
	Requests int64
	Accepted int64
	Refused  int64
	Sold     int64   // units
	GaveUp   int64   // users who left since nobody took their call
	Accept   Latency // so far
	Refuse   Latency
}

// Run lets all users do what they have planned, and returns their book. It ends early with the cause of the context's end
// or the error of what runs beside, together with the book so far.
func Run(ctx context.Context, engine Engine, s Scenario, o Options) (*Book, error) {
	r := newRun(engine, s)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	stopShowing := r.show(o.Progress)
	stopBeside := beside(ctx, end, o.Beside)
	r.crowd(ctx)
	stopBeside()
	stopShowing()
	r.book.Took = time.Since(r.start)
	return r.book, context.Cause(ctx)
}

// beside starts what runs next to the users; its error ends the run.
func beside(ctx context.Context, end context.CancelCauseFunc, fn func(context.Context) error) (stop func()) {
	if fn == nil {
		return func() {}
	}
	within, over := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		if err := fn(within); err != nil && within.Err() == nil {
			end(err)
		}
	})
	return func() {
		over()
		done.Wait()
	}
}

// run is a scenario under way. One goroutine plays all the users: it takes from the agenda what is due, hands the calls to
// a bounded number of callers, and notes in the agenda what follows from each answer.
type run struct {
	scenario Scenario
	engine   Engine
	book     *Book
	start    time.Time
	agenda   agenda
	ready    queue // visits whose call waits for a free caller
	free     int   // callers
	calls    chan *call
	answers  chan *call

	arrived, gone atomic.Int64
}

// call is one request to the engine and its answer.
type call struct {
	visit   *visit
	reserve *drop.ReserveRequest // one of both
	settle  *drop.SettleRequest
	due     time.Time // when the user clicked, from which they wait
	out     drop.Outcome
	err     error
}

// newRun plans the arrival of every user.
func newRun(engine Engine, s Scenario) *run {
	r := &run{scenario: s, engine: engine, book: newBook(s.Lots), free: callers,
		calls: make(chan *call, callers), answers: make(chan *call, callers), agenda: make(agenda, 0, s.Users())}
	for c := range s.Crowds {
		for n := range s.Crowds[c].Users {
			w := who{int32(c), int32(n)}
			at, _ := s.comes(w)
			r.agenda = append(r.agenda, event{at: at, who: w})
		}
	}
	r.agenda.order()
	r.start = time.Now()
	return r
}

// crowd plays the users until the last one is gone or the context ends, and then waits for the answers under way.
func (r *run) crowd(ctx context.Context) {
	var crew sync.WaitGroup
	for range callers {
		crew.Go(func() { r.caller(ctx) })
	}
	defer crew.Wait()
	defer close(r.calls)
	alarm := time.NewTimer(0)
	defer alarm.Stop()
	for {
		r.takeDue()
		r.send()
		if len(r.agenda) > 0 {
			alarm.Reset(r.agenda[0].at - time.Since(r.start))
		} else if r.free == callers {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-alarm.C:
		case c := <-r.answers:
			r.hear(c)
			for range len(r.answers) { // those that came meanwhile
				r.hear(<-r.answers)
			}
		}
	}
}

// takeDue lets the users in who arrive now, and readies the calls that are due.
func (r *run) takeDue() {
	for now := time.Since(r.start); len(r.agenda) > 0 && r.agenda[0].at <= now; {
		e := r.agenda.pop()
		if e.visit == nil {
			r.letIn(e)
			continue
		}
		r.ready.push(e.visit)
	}
}

// letIn begins the first visits of a user, as many as there are tabs.
func (r *run) letIn(e event) {
	r.arrived.Add(1)
	_, visits := r.scenario.comes(e.who)
	p := &person{who: e.who, visits: int32(visits)}
	for range r.scenario.Crowds[e.who.crowd].Tabs {
		r.nextVisit(p, e.at)
	}
}

// nextVisit begins the next visit of a user, if there is one, and notices when a user is gone.
func (r *run) nextVisit(p *person, at time.Duration) {
	if p.begun < p.visits && !p.home {
		p.begun++
		p.open++
		r.ready.push(&visit{person: p, number: p.begun, due: at, since: at})
		return
	}
	if p.open == 0 {
		r.gone.Add(1)
	}
}

// send hands the calls that are due to free callers. A double click needs two.
func (r *run) send() {
	for r.free >= 2 && r.ready.len() > 0 {
		v := r.ready.pop()
		p := r.scenario.plan(v.person.who, int(v.number))
		if now := time.Since(r.start); v.lostPatience(p, now) {
			r.giveUp(v, now)
			continue
		}
		v.answer, v.hopeless = 0, false
		n := 1
		if p.twice(v.step) && v.tries == 0 && v.fails == 0 {
			n = 2
		}
		for range n {
			c := &call{visit: v, due: r.start.Add(v.due)}
			if v.step <= blunder {
				q := v.reserve(p, r.scenario.userName(v.person.who))
				c.reserve = &q
			} else {
				q := v.settle(p)
				c.settle = &q
			}
			v.open++
			r.free--
			r.calls <- c
		}
	}
}

// giveUp sends a user home who was not even asked what they want.
func (r *run) giveUp(v *visit, now time.Duration) {
	if !v.person.home {
		r.book.gaveUp()
	}
	v.person.open--
	v.person.home = true
	r.nextVisit(v.person, now)
}

// caller makes calls and enters the answers in the book.
func (r *run) caller(ctx context.Context) {
	for c := range r.calls {
		if c.reserve != nil {
			c.out, c.err = r.engine.Reserve(ctx, *c.reserve)
			r.book.reserved(*c.reserve, c.out, c.err, time.Since(c.due))
		} else {
			c.out, c.err = r.engine.Settle(ctx, *c.settle)
			r.book.settled(*c.settle, c.out, c.err)
		}
		r.answers <- c
	}
}

// hear takes an answer, and notes what the user does next.
func (r *run) hear(c *call) {
	r.free++
	v := c.visit
	v.open--
	if got := answerOf(c.err); got > v.answer {
		v.answer = got
		v.hopeless = got == refused && hopeless(fault.CodeOf(c.err))
	}
	if c.err == nil && (v.step == ask && c.out.Reservation.State == drop.Held || v.step == buy) {
		hold := c.out.Reservation
		v.hold = &hold
	}
	if v.open > 0 {
		return
	}
	now, p := time.Since(r.start), r.scenario.plan(v.person.who, int(v.number))
	if pause, yes := v.again(p); yes {
		v.due = now + pause
		r.agenda.push(event{at: v.due, visit: v})
		return
	}
	r.goOn(v, p, now)
}

// goOn takes the next step of a visit, or ends it.
func (r *run) goOn(v *visit, p plan, now time.Duration) {
	done := v.step
	switch {
	case done == ask && (v.answer != accepted || v.hold == nil), done == buy && v.answer != accepted:
		v.step = leave
	default:
		v.bought = v.bought || done == buy
		for v.step++; !p.has(v.step); v.step++ {
		}
	}
	v.tries, v.fails = 0, 0
	if v.step == leave {
		v.person.open--
		v.person.home = v.person.home || v.bought && p.satisfied
		r.nextVisit(v.person, now)
		return
	}
	v.due = now + p.before(v.step, v.hold)
	v.since = v.due
	r.agenda.push(event{at: v.due, visit: v})
}

// show calls progress until stopped.
func (r *run) show(progress func(Progress)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	show := func() {
		p := r.book.progress()
		p.Elapsed, p.Users, p.Gone = time.Since(r.start), r.arrived.Load(), r.gone.Load()
		progress(p)
	}
	done := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				show()
				return
			case <-tick.C:
				show()
			}
		}
	})
	return func() {
		close(done)
		showing.Wait()
	}
}

// queue holds visits, first in, first out.
type queue struct {
	in, out []*visit
}

func (q *queue) len() int { return len(q.in) + len(q.out) }

func (q *queue) push(v *visit) { q.in = append(q.in, v) }

func (q *queue) pop() *visit {
	if len(q.out) == 0 {
		q.out, q.in = q.in, nil
	}
	v := q.out[0]
	q.out[0] = nil
	q.out = q.out[1:]
	return v
}
