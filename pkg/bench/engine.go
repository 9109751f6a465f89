package bench

import (
	"context"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// actor is who puts the lots of a measurement on sale.
const actor = "bench"

// Engine is the engine of this process as a shop. Somebody has to run a worker, or nothing is ever recorded.
type Engine struct {
	stock    *stock.Stock
	recorded *recorded
}

// NewEngine sells through an engine whose events end up in a ledger.
func NewEngine(s *stock.Stock, l *ledger.Ledger) *Engine {
	return &Engine{stock: s, recorded: &recorded{ledger: l, waiting: map[drop.ReservationID]chan error{}}}
}

// Reserve takes a hold. The user comes once, so the name is the key, too.
func (e *Engine) Reserve(ctx context.Context, lot drop.LotID, user string, qty int64) (drop.ReservationID, error) {
	out, err := e.stock.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: user, Key: user, Qty: qty})
	return out.Reservation.ID, err
}

// Confirm confirms a hold and waits for the ledger.
func (e *Engine) Confirm(ctx context.Context, id drop.ReservationID, payment string) error {
	if _, err := e.stock.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActConfirm, Ref: payment}); err != nil {
		return err
	}
	return e.recorded.await(ctx, id)
}

// Release gives a hold back.
func (e *Engine) Release(ctx context.Context, id drop.ReservationID) error {
	_, err := e.stock.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActRelease})
	return err
}

// PutOnSale puts a lot on sale that nobody has seen before: first in the ledger, then in Redis.
func PutOnSale(ctx context.Context, s *stock.Stock, l *ledger.Ledger, d drop.Definition) error {
	if _, err := l.CreateLot(ctx, d, actor); err != nil {
		return err
	}
	issued, err := l.IssueEpoch(ctx, d.Lot, ledger.IssueRequest{OnlyUnseen: true, Actor: actor, Reason: "measure"})
	if err != nil {
		return err
	}
	return s.Load(ctx, stock.LoadRequest{Definition: d, Epoch: issued.Epoch, Closing: issued.Closing, Actor: actor, Reason: "measure"})
}

const (
	// askEvery is how often the ledger is asked about sales that somebody waits for; it is part of the time they seem to take.
	askEvery = 5 * time.Millisecond
	// askWithin bounds a question, so that a ledger that stands still is asked again.
	askWithin = 5 * time.Second
)

// recorded waits for the ledger's word about sales. All who wait share one question at a time.
type recorded struct {
	ledger interface {
		ReservationsByID(ctx context.Context, ids []drop.ReservationID) (map[drop.ReservationID]drop.Recorded, error)
	}

	mu      sync.Mutex
	asking  bool
	waiting map[drop.ReservationID]chan error
}

// await returns once a sale is recorded. Errors: LedgerRejected; OutcomeUnknown if ctx ends before, since it may be recorded yet.
func (r *recorded) await(ctx context.Context, id drop.ReservationID) error {
	told := make(chan error, 1)
	r.mu.Lock()
	r.waiting[id] = told
	if !r.asking {
		r.asking = true
		go r.ask()
	}
	r.mu.Unlock()
	select {
	case err := <-told:
		return err
	case <-ctx.Done():
		r.mu.Lock()
		delete(r.waiting, id)
		r.mu.Unlock()
		return fault.Wrap(fault.OutcomeUnknown, ctx.Err(), "the sale %s is not recorded yet", id)
	}
}

// ask asks until nobody waits any more.
func (r *recorded) ask() {
	for {
		time.Sleep(askEvery)
		r.mu.Lock()
		ids := make([]drop.ReservationID, 0, len(r.waiting))
		for id := range r.waiting {
			ids = append(ids, id)
		}
		r.asking = len(ids) > 0
		r.mu.Unlock()
		if len(ids) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), askWithin)
		found, err := r.ledger.ReservationsByID(ctx, ids)
		cancel()
		if err == nil {
			r.tell(found)
		}
	}
}

func (r *recorded) tell(found map[drop.ReservationID]drop.Recorded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, known := range found {
		told, waits := r.waiting[id]
		switch {
		case !waits:
		case known.Rejected:
			told <- fault.New(fault.LedgerRejected, "the ledger has no unit for reservation %s", id)
			delete(r.waiting, id)
		case known.State == drop.Confirmed:
			told <- nil
			delete(r.waiting, id)
		}
	}
}
