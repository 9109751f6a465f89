package worker

import (
	"context"
	"time"
)

const (
	lease         = 30 * time.Second
	finaliseBatch = 500
	finaliseEvery = time.Second
)

// finalise books confirmed reservations as sales, as soon as relay has recorded some and once a second in
// any case. What a dead worker has claimed comes back when its lease runs out.
func (w *Worker) finalise(ctx context.Context) error {
	for {
		// A claim that is not finished blocks its reservations for the whole lease, so a stop waits for it.
		batch, cancel := context.WithTimeout(context.WithoutCancel(ctx), lease)
		n, err := w.ledger.Finalise(batch, w.me.Name, lease, finaliseBatch)
		cancel()
		if err != nil {
			return err
		}
		w.done.booked.Add(int64(n))
		w.health.fine("finalise")
		if n == finaliseBatch && ctx.Err() == nil {
			continue
		}
		if !sleep(ctx, finaliseEvery, w.confirmed) {
			return nil
		}
	}
}
