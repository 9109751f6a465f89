package worker

import (
	"context"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Bookings is what finalise needs of PostgreSQL.
type Bookings interface {
	// ClaimPending gives the worker up to limit confirmed reservations, for the length of a lease.
	ClaimPending(ctx context.Context, worker string, lease time.Duration, limit int) ([]drop.Pending, error)
	// FinishPending books what the worker claimed as sold and returns how many; what went to another worker
	// meanwhile is left to that one.
	FinishPending(ctx context.Context, worker string, claimed []drop.Pending) (int, error)
	// Unbooked returns how many confirmed reservations are not booked, those claimed by others included; without those that
	// a payment gateway decides about.
	Unbooked(ctx context.Context) (int64, error)
}

const (
	lease         = 30 * time.Second
	finaliseBatch = 500
	finaliseEvery = time.Second
	finalisePause = 100 * time.Millisecond // after a claim that was not full: many small ones cost more than a few large ones
)

// finalise books confirmed reservations as sales, as soon as relay has recorded some and once a second in
// any case. What a dead worker has claimed comes back when its lease runs out.
func (w *Worker) finalise(ctx context.Context) error {
	for {
		claimed, err := w.ledger.ClaimPending(context.WithoutCancel(ctx), w.me.Name, lease, finaliseBatch)
		if err != nil {
			return err
		}
		if len(claimed) > 0 {
			if err := w.book(ctx, claimed); err != nil {
				return err
			}
		}
		w.health.fine("finalise")
		if len(claimed) == finaliseBatch && ctx.Err() == nil {
			continue
		}
		if len(claimed) > 0 && !sleep(ctx, finalisePause, nil) {
			return nil
		}
		if !sleep(ctx, finaliseEvery, w.confirmed) {
			return nil
		}
	}
}

// book finishes a claim. Payment `none` has no gateway to ask: the shop has the money.
func (w *Worker) book(ctx context.Context, claimed []drop.Pending) error {
	return w.persist(ctx, time.Now().Add(lease), func(ctx context.Context) error {
		start := time.Now()
		n, err := w.ledger.FinishPending(ctx, w.me.Name, claimed)
		if err == nil {
			w.done.booked.Add(int64(n))
			w.metrics.Finalised.Add(float64(n))
			w.metrics.FinaliseSeconds.Observe(time.Since(start).Seconds())
		}
		return err
	})
}

// persist writes what became of a claim. Dropping it would block its reservations for the rest of the lease, so it is tried
// again until then, and a stop lets the attempt under way end. What the ledger refuses for good is tried once.
func (w *Worker) persist(ctx context.Context, leased time.Time, write func(context.Context) error) error {
	pause := backoff{}
	for {
		again := w.answering()
		err := write(context.WithoutCancel(ctx))
		if err == nil || fault.ExitOf(err) != fault.ExitUnavailable || fatal(err) || time.Now().After(leased) {
			return err
		}
		w.health.failed("finalise", err)
		if !pause.wait(ctx, again) {
			return err
		}
	}
}
