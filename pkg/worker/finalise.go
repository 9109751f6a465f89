package worker

import (
	"context"
	"time"
)

// Bookings is what finalise needs of PostgreSQL.
type Bookings interface {
	// Book books up to limit confirmed reservations as sold and returns how many, also with an error; what another worker has
	// in hand is left to that one.
	Book(ctx context.Context, limit int) (int, error)
	// Unbooked returns how many confirmed reservations are not booked, those left alone for now included; without those that
	// a payment gateway decides about.
	Unbooked(ctx context.Context) (int64, error)
}

const (
	finaliseBatch = 500
	finaliseEvery = time.Second
	finalisePause = 100 * time.Millisecond // after a batch that was not full: many small ones cost more than a few large ones
)

// finalise books confirmed reservations as sales, as soon as relay has recorded some and once a second in
// any case. Payment `none` has no gateway to ask: the shop has the money.
func (w *Worker) finalise(ctx context.Context) error {
	for {
		booked, err := w.book(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		w.health.fine("finalise")
		if booked == finaliseBatch && ctx.Err() == nil {
			continue
		}
		if booked > 0 && !sleep(ctx, finalisePause, nil) {
			return nil
		}
		if !sleep(ctx, finaliseEvery, w.confirmed) {
			return nil
		}
	}
}

func (w *Worker) book(ctx context.Context) (int, error) {
	start := time.Now()
	booked, err := w.ledger.Book(ctx, finaliseBatch)
	if booked > 0 {
		w.done.booked.Add(int64(booked))
		w.metrics.Finalised.Add(float64(booked))
		w.metrics.FinaliseSeconds.Observe(time.Since(start).Seconds())
	}
	return booked, err
}
