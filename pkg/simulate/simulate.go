// Package simulate rehearses a drop: thousands of virtual users who click twice, retry, pay in time or too
// late, give units back or never return. It keeps its own book of what each of them was told, to be held
// against the ledger afterwards.
package simulate

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
)

// Engine is what the users buy from. It is called by thousands of goroutines at once.
type Engine interface {
	Reserve(ctx context.Context, r drop.ReserveRequest) (drop.Outcome, error)
	Settle(ctx context.Context, r drop.SettleRequest) (drop.Outcome, error)
}

// Options say who comes to buy what.
type Options struct {
	Users    int
	Seed     uint64            // the same seed makes the same decisions
	Lots     []drop.Definition // the first are wanted most
	Arrive   time.Duration     // within which all users arrive; 0: 5 s
	Progress func(Progress)    // called every 250 ms, and once at the end; may be nil
}

const (
	defaultArrive = 5 * time.Second
	progressEvery = 250 * time.Millisecond
	maxLateHold   = 10 * time.Second // nobody waits longer just to pay too late
)

// Progress is one look at a running rehearsal.
type Progress struct {
	Elapsed  time.Duration
	Users    int64 // arrived
	Gone     int64 // finished
	Requests int64
	Accepted int64
	Refused  int64
	Sold     int64 // units
}

// Run lets all users do what they have planned, and returns their book. It ends early with the context's
// error, together with the book so far.
func Run(ctx context.Context, engine Engine, o Options) (*Book, error) {
	if o.Users < 1 || len(o.Lots) == 0 {
		return nil, fault.New(fault.Invalid, "a rehearsal needs at least one user and one lot")
	}
	if o.Arrive == 0 {
		o.Arrive = defaultArrive
	}
	s := &simulation{engine: engine, o: o, book: newBook(o.Lots), start: time.Now()}
	stop := s.report()
	var crowd sync.WaitGroup
	for i := range o.Users {
		crowd.Go(func() { s.live(ctx, planOf(o, i)) })
	}
	crowd.Wait()
	stop()
	s.book.Took = time.Since(s.start)
	return s.book, ctx.Err()
}

type simulation struct {
	engine        Engine
	o             Options
	book          *Book
	start         time.Time
	arrived, gone atomic.Int64
}

// report calls Progress until stopped.
func (s *simulation) report() (stop func()) {
	if s.o.Progress == nil {
		return func() {}
	}
	show := func() {
		p := s.book.progress()
		p.Elapsed, p.Users, p.Gone = time.Since(s.start), s.arrived.Load(), s.gone.Load()
		s.o.Progress(p)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
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
	}()
	return func() { close(done); <-ended }
}

// live is one user's life.
func (s *simulation) live(ctx context.Context, p plan) {
	defer s.gone.Add(1)
	if !sleep(ctx, p.arrive-time.Since(s.start)) {
		return
	}
	s.arrived.Add(1)
	for _, v := range p.visits {
		bought := s.visit(ctx, p.user, v)
		if ctx.Err() != nil || bought && v.satisfied {
			return
		}
	}
}

// visit is one attempt to buy; it reports whether something was bought.
func (s *simulation) visit(ctx context.Context, user string, v visit) (bought bool) {
	request := drop.ReserveRequest{Lot: v.lot, User: user, Key: v.key, Qty: v.qty, Hold: v.hold, Actor: "simulate"}
	hold, ok := s.reserve(ctx, request, v.doubleClick)
	for range v.insist {
		if ok || !sleep(ctx, v.think/2) {
			break
		}
		hold, ok = s.reserve(ctx, request, false)
	}
	if !ok {
		return false
	}
	if v.again {
		s.reserve(ctx, request, false)
	}
	if v.changeMind {
		request.Qty++
		s.reserve(ctx, request, false)
	}
	return sleep(ctx, v.think) && s.end(ctx, v, hold)
}

// end does with the hold what was planned.
func (s *simulation) end(ctx context.Context, v visit, hold drop.Reservation) (bought bool) {
	confirm := drop.SettleRequest{ID: hold.ID, Action: drop.ActConfirm, Ref: "pay-" + hold.ID.String(), Actor: "simulate"}
	switch v.ending {
	case abandon:
		return false
	case giveBack:
		s.settle(ctx, drop.SettleRequest{ID: hold.ID, Action: drop.ActRelease, Actor: "simulate"})
		return false
	case giveSome:
		if hold.Qty > 1 {
			s.settle(ctx, drop.SettleRequest{ID: hold.ID, Action: drop.ActRelease, Keep: 1, Actor: "simulate"})
		}
	case payPart:
		confirm.Qty = max(1, hold.Qty-1)
	case payLate:
		length := hold.Deadline.Sub(hold.Created)
		if length > maxLateHold {
			return false
		}
		if !sleep(ctx, length-v.think+200*time.Millisecond) {
			return false
		}
	}
	bought = s.confirm(ctx, confirm, v)
	if bought && v.regret {
		s.settle(ctx, drop.SettleRequest{ID: hold.ID, Action: drop.ActRelease, Actor: "simulate"})
	}
	return bought
}

func (s *simulation) confirm(ctx context.Context, confirm drop.SettleRequest, v visit) bool {
	if !v.payTwice {
		return s.settle(ctx, confirm)
	}
	var twin sync.WaitGroup
	twin.Go(func() { s.settle(ctx, confirm) })
	ok := s.settle(ctx, confirm)
	twin.Wait()
	return ok
}

// reserve asks for a hold, twice at once for a double click, and enters every answer in the book.
func (s *simulation) reserve(ctx context.Context, r drop.ReserveRequest, twice bool) (drop.Reservation, bool) {
	var twin sync.WaitGroup
	if twice {
		twin.Go(func() { s.reserveOnce(ctx, r) })
	}
	hold, ok := s.reserveOnce(ctx, r)
	twin.Wait()
	return hold, ok && hold.State == drop.Held
}

func (s *simulation) reserveOnce(ctx context.Context, r drop.ReserveRequest) (drop.Reservation, bool) {
	out, err := patiently(ctx, func() (drop.Outcome, error) {
		begin := time.Now()
		out, err := s.engine.Reserve(ctx, r)
		s.book.reserved(r, out, err, time.Since(begin))
		return out, err
	})
	return out.Reservation, err == nil
}

func (s *simulation) settle(ctx context.Context, r drop.SettleRequest) bool {
	_, err := patiently(ctx, func() (drop.Outcome, error) {
		out, err := s.engine.Settle(ctx, r)
		s.book.settled(r, out, err)
		return out, err
	})
	return err == nil
}

// patiently repeats a call whose outcome is unknown or that met a server in trouble: the same request again,
// which is safe by its key.
func patiently(ctx context.Context, call func() (drop.Outcome, error)) (out drop.Outcome, err error) {
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		out, err = call()
		if fault.ExitOf(err) != fault.ExitUnavailable || pause > 2*time.Second || !sleep(ctx, pause) {
			return out, err
		}
	}
}

// sleep waits; false: the rehearsal is being stopped.
func sleep(ctx context.Context, d time.Duration) bool {
	return retry.Sleep(ctx, d) == nil
}
