package worker

import (
	"context"
	"time"
)

// Sales is what finalise needs of PostgreSQL.
type Sales interface {
	// Finalise records up to limit confirmed reservations as sold and returns how many, also with an error; what another worker has
	// in hand is left to that one.
	Finalise(ctx context.Context, limit int) (int, error)
	// Unfinalised returns how many confirmed reservations are not finalised, those left alone for now included; without those that
	// a payment gateway decides about.
	Unfinalised(ctx context.Context) (int64, error)
}

const (
	finaliseBatch = 500
	finaliseEvery = time.Second
	finalisePause = 100 * time.Millisecond // after a batch that was not full: many small ones cost more than a few large ones
)

// finalise records confirmed reservations as sales, as soon as relay has recorded some and once a second in
// any case. Payment `none` has no gateway to ask: the shop has the money.
func (w *Worker) finalise(ctx context.Context) error {
	for {
		finalised, err := w.finaliseSome(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		w.health.fine("finalise")
		if finalised == finaliseBatch && ctx.Err() == nil {
			continue
		}
		if finalised > 0 && !sleep(ctx, finalisePause, nil) {
			return nil
		}
		if !sleep(ctx, finaliseEvery, w.confirmed) {
			return nil
		}
	}
}

func (w *Worker) finaliseSome(ctx context.Context) (int, error) {
	start := time.Now()
	finalised, err := w.ledger.Finalise(ctx, finaliseBatch)
	if finalised > 0 {
		w.done.finalised.Add(int64(finalised))
		w.metrics.Finalised.Add(float64(finalised))
		w.metrics.FinaliseSeconds.Observe(time.Since(start).Seconds())
	}
	return finalised, err
}
