package api

import (
	"context"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// What the ledger says of a confirmed reservation.
const (
	ledgerRecorded = "recorded"
	ledgerPending  = "pending"
)

// askEvery is how often the ledger is asked about the reservations that somebody waits for.
const askEvery = 25 * time.Millisecond

// recorded waits for the ledger's word about confirmed reservations. All who wait share one question at a time.
type recorded struct {
	ledger  Ledger
	wait    time.Duration
	lag     func() time.Duration
	metrics *telemetry.API

	mu      sync.Mutex
	asking  bool
	waiting map[drop.ReservationID][]*waiter
}

// waiter is one request that waits; told gets at most one answer.
type waiter struct {
	seq  int64 // of the change it waits for
	told chan error
}

func newRecorded(l Ledger, wait time.Duration, lag func() time.Duration, m *telemetry.API) *recorded {
	return &recorded{ledger: l, wait: wait, lag: lag, metrics: m, waiting: map[drop.ReservationID][]*waiter{}}
}

// await returns whether the ledger has recorded a confirmation, or that it is pending and how long that may take.
// ledger_rejected is the one error: what Redis did stays done whatever becomes of the question.
func (r *recorded) await(ctx context.Context, out drop.Outcome) (state string, lag time.Duration, err error) {
	began := time.Now()
	state, lag, err = r.ask(ctx, out.Reservation, r.patience(out.Replayed))
	word := state
	if err != nil {
		word = "rejected"
	}
	r.metrics.Confirms.WithLabelValues(word).Inc()
	r.metrics.ConfirmWaited.Observe(time.Since(began).Seconds())
	return state, lag, err
}

// patience is how long the ledger's word is waited for: a ledger that lags by more than the wait is not asked about what
// was confirmed just now, but it is about a sale that was confirmed earlier, which it may have had since.
func (r *recorded) patience(replayed bool) time.Duration {
	switch {
	case r.lag() <= r.wait:
		return r.wait
	case replayed:
		return min(r.wait, ledgerLook)
	default:
		return 0
	}
}

func (r *recorded) ask(ctx context.Context, res drop.Reservation, patience time.Duration) (state string, lag time.Duration, err error) {
	if patience <= 0 {
		return ledgerPending, r.lag(), nil
	}
	w := &waiter{seq: res.LastSeq, told: make(chan error, 1)}
	r.add(res.ID, w)
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case err := <-w.told:
		if err != nil {
			return "", 0, err
		}
		return ledgerRecorded, 0, nil
	case <-limit.C:
	case <-ctx.Done():
	}
	r.remove(res.ID, w)
	return ledgerPending, r.lag(), nil
}

func (r *recorded) add(id drop.ReservationID, w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[id] = append(r.waiting[id], w)
	if !r.asking {
		r.asking = true
		go r.poll()
	}
}

func (r *recorded) remove(id drop.ReservationID, w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, other := range r.waiting[id] {
		if other == w {
			r.waiting[id] = append(r.waiting[id][:i], r.waiting[id][i+1:]...)
			break
		}
	}
	if len(r.waiting[id]) == 0 {
		delete(r.waiting, id)
	}
}

// poll asks the ledger until nobody waits any more. A ledger that does not answer is asked again: those who wait have
// their own limit.
func (r *recorded) poll() {
	for {
		time.Sleep(askEvery)
		ids := r.ids()
		if ids == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), r.wait)
		found, err := r.ledger.ReservationsByID(ctx, ids)
		cancel()
		if err == nil {
			r.tell(found)
		}
	}
}

// ids lists what is waited for; nil, and nobody asks any more, if that is nothing.
func (r *recorded) ids() []drop.ReservationID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		r.asking = false
		return nil
	}
	ids := make([]drop.ReservationID, 0, len(r.waiting))
	for id := range r.waiting {
		ids = append(ids, id)
	}
	return ids
}

func (r *recorded) tell(found map[drop.ReservationID]drop.Recorded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, known := range found {
		var still []*waiter
		for _, w := range r.waiting[id] {
			switch {
			case known.Rejected:
				w.told <- fault.New(fault.LedgerRejected, "the ledger has no unit for reservation %s", id).With("reservation", id.String())
			case known.LastSeq >= w.seq:
				w.told <- nil
			default:
				still = append(still, w)
			}
		}
		if still == nil {
			delete(r.waiting, id)
		} else {
			r.waiting[id] = still
		}
	}
}
