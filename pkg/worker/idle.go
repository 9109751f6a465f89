package worker

import (
	"context"
	"time"
)

const idleEvery = 100 * time.Millisecond

// waitUntilIdle returns when nothing is left to do for the parts that run. It gives up with the error of a
// part that has been in trouble for longer than the patience.
func (w *Worker) waitUntilIdle(ctx context.Context) error {
	for ctx.Err() == nil {
		idle, err := w.idle(ctx)
		switch {
		case idle:
			return nil
		case fatal(err):
			return err
		case err == nil:
			w.health.fine("idle")
		case ctx.Err() == nil:
			w.health.failed("idle", err)
		}
		if err := w.health.lasting(w.opt.Patience); err != nil {
			return err
		}
		sleep(ctx, idleEvery, nil)
	}
	return nil
}

// idle asks in the order in which work travels, so that nothing slips past behind a question: holds to take
// back, entries the ledger has not got, events that could be folded, sales to book. What waits behind a gap
// or a freeze is not work: no worker can do it.
func (w *Worker) idle(ctx context.Context) (bool, error) {
	if w.does(Guardian) && !w.guardianDone() {
		return false, nil
	}
	if w.does(Sweep) {
		if idle, err := w.swept(ctx); !idle || err != nil {
			return false, err
		}
	}
	if w.does(Relay) {
		if idle, err := w.drained(ctx); !idle || err != nil {
			return false, err
		}
	}
	if w.does(Finalise) {
		left, err := w.ledger.Unbooked(ctx)
		return err == nil && left == 0, err
	}
	return true, nil
}

func (w *Worker) guardianDone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.findings {
		if f.Passing() {
			return false
		}
	}
	return w.passed
}

func (w *Worker) swept(ctx context.Context) (bool, error) {
	for shard := range w.opt.Shards {
		did, err := w.stock.Sweep(ctx, shard, sweepLimit)
		w.expired(did.Expired)
		if shut(err) {
			continue
		}
		if err != nil || did.Expired > 0 || did.More {
			return false, err
		}
	}
	return true, nil
}

// drained reports whether the ledger has every entry and has folded what it can. A gap is given one chance:
// its events are sent again.
func (w *Worker) drained(ctx context.Context) (bool, error) {
	for shard := range w.opt.Shards {
		out, err := w.stock.OutboxState(ctx, shard)
		if err != nil || out.Pending > 0 {
			return false, err
		}
	}
	if err := w.watchServer(ctx); err != nil {
		return false, err
	}
	if _, err := w.fillGaps(ctx, 0); err != nil {
		return false, err
	}
	folded, err := w.ledger.FoldWaiting(ctx)
	return err == nil && folded == 0, err
}
