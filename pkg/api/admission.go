package api

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// soldOutFor is how long a lot that was found sold out is taken for it. What is given back, expires or is added shows
// no later than that.
const soldOutFor = 50 * time.Millisecond

// admission lets requests into the engine: no more at once than it answers in time, and of a lot that is sold out only
// those who may be due another answer than that. What an operator does is not counted: pausing a lot must be possible
// above all when too many ask.
type admission struct {
	Stock
	metrics *telemetry.API
	limit   int64
	within  atomic.Int64
	soldOut sync.Map // drop.LotID → *scarce
}

// scarce is a lot of which a request found too few units.
type scarce struct {
	looking atomic.Bool // somebody looks at the lot
	look    atomic.Pointer[look]
}

// look is what a look at such a lot has found.
type look struct {
	until     time.Time
	available int64 // units of holds past their deadline included
	limit     int64 // for one user; 0: none
	maxHold   time.Duration
	last      atomic.Pointer[answered] // the refusal that it gave last
}

func newAdmission(s Stock, m *telemetry.API, limit int) *admission {
	return &admission{Stock: s, metrics: m, limit: int64(limit)}
}

// enter takes a place in the engine; overloaded, at once, if there is none. The caller leaves.
func (a *admission) enter() error {
	if a.within.Add(1) > a.limit {
		a.within.Add(-1)
		return fault.New(fault.Overloaded, "%d requests are waiting already", a.limit)
	}
	a.metrics.Queue.Inc()
	return nil
}

func (a *admission) leave() {
	a.within.Add(-1)
	a.metrics.Queue.Dec()
}

// Reserve takes a hold. Somebody unknown to a lot that is sold out is told so without the script, which is most of the
// requests of a drop; whoever holds, has bought or asks again gets the script's answer.
func (a *admission) Reserve(ctx context.Context, q drop.ReserveRequest) (drop.Outcome, error) {
	if err := a.enter(); err != nil {
		return drop.Outcome{}, err
	}
	defer a.leave()
	if seen := a.newest(q.Lot); seen != nil && seen.refuses(q, time.Now()) {
		unknown, err := a.Stock.Unknown(ctx, q.Lot, q.User, q.Key)
		if err != nil {
			return drop.Outcome{}, err
		}
		if unknown {
			a.metrics.FromMemory.Inc()
			return drop.Outcome{}, seen.refusal(q)
		}
	}
	out, err := a.Stock.Reserve(ctx, q)
	if fault.Is(err, fault.SoldOut) {
		a.remember(ctx, q.Lot)
	}
	return out, err
}

// Settle carries out what a reservation's holder wants.
func (a *admission) Settle(ctx context.Context, q drop.SettleRequest) (drop.Outcome, error) {
	return admitted(a, func() (drop.Outcome, error) { return a.Stock.Settle(ctx, q) })
}

// Reservation looks a reservation up.
func (a *admission) Reservation(ctx context.Context, id drop.ReservationID) (drop.Reservation, error) {
	return admitted(a, func() (drop.Reservation, error) { return a.Stock.Reservation(ctx, id) })
}

// UsersOf looks users of a lot up.
func (a *admission) UsersOf(ctx context.Context, lot drop.LotID, users []string) (map[string]drop.UserCount, error) {
	return admitted(a, func() (map[string]drop.UserCount, error) { return a.Stock.UsersOf(ctx, lot, users) })
}

// Lot looks at a lot. No look is kept for others: whoever has just changed something must see it.
func (a *admission) Lot(ctx context.Context, lot drop.LotID) (drop.LotState, error) {
	return admitted(a, func() (drop.LotState, error) { return a.Stock.Lot(ctx, lot) })
}

// LotStates looks at many lots.
func (a *admission) LotStates(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.LotState, error) {
	return admitted(a, func() (map[drop.LotID]drop.LotState, error) { return a.Stock.LotStates(ctx, lots) })
}

// admitted asks the engine within its bounds.
func admitted[T any](a *admission, ask func() (T, error)) (answer T, err error) {
	if err := a.enter(); err != nil {
		return answer, err
	}
	defer a.leave()
	return ask()
}

func (a *admission) newest(lot drop.LotID) *look {
	if s, ok := a.soldOut.Load(lot); ok {
		if s, ok := s.(*scarce); ok {
			return s.look.Load()
		}
	}
	return nil
}

// remember looks at a lot that refused somebody for want of units, unless another request does so now. A lot that
// refuses for another reason too, or cannot be looked at, is not remembered.
func (a *admission) remember(ctx context.Context, lot drop.LotID) {
	at, _ := a.soldOut.LoadOrStore(lot, &scarce{})
	s, ok := at.(*scarce)
	if !ok || !s.looking.CompareAndSwap(false, true) {
		return
	}
	defer s.looking.Store(false)
	until := time.Now().Add(soldOutFor) // counted from before the look
	state, err := a.Stock.Lot(ctx, lot)
	if err != nil || !state.Sells() || state.Status != drop.Open || state.Now.Before(state.Opens) || !state.Closes.IsZero() && !state.Now.Before(state.Closes) {
		s.look.Store(nil)
		return
	}
	s.look.Store(&look{until: until, available: state.Available + state.Due, limit: state.Limit, maxHold: state.MaxHold})
}

// refuses reports whether want of units is the first thing that stands against a request of somebody unknown.
func (l *look) refuses(q drop.ReserveRequest, now time.Time) bool {
	return now.Before(l.until) && q.Qty > l.available && (l.limit == 0 || q.Qty <= l.limit) && q.Hold <= l.maxHold
}

// answered is a refusal and the number of units that was asked for. In a drop nearly all ask for the same.
type answered struct {
	qty int64
	err error
}

// refusal is the answer of the script to somebody it does not know.
func (l *look) refusal(q drop.ReserveRequest) error {
	if was := l.last.Load(); was != nil && was.qty == q.Qty {
		return was.err
	}
	err := fault.New(fault.SoldOut, "lot %s has %d of %d units left", q.Lot, l.available, q.Qty).With("available", l.available)
	if l.limit == 0 {
		err = err.With("remaining", nil)
	} else {
		err = err.With("remaining", l.limit)
	}
	l.last.Store(&answered{q.Qty, err})
	return err
}
