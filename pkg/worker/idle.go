package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/recovery"
)

const idleEvery = 100 * time.Millisecond

// waitUntilIdle returns when nothing is left to do for the parts that run. It gives up when the stores have not answered
// for longer than the patience, or a part has been in trouble for that long.
func (w *Worker) waitUntilIdle(ctx context.Context) error {
	answered := time.Now()
	for ctx.Err() == nil {
		idle, err := w.idleWithin(ctx, answered.Add(w.opt.Patience))
		switch {
		case idle:
			return nil
		case fatal(err):
			return err
		case err == nil && w.looked():
			answered = time.Now()
			w.health.fine("idle")
		case err != nil && ctx.Err() == nil:
			w.health.failed("idle", err)
		}
		trouble := w.health.lasting(w.opt.Patience)
		if trouble == nil && time.Since(answered) > w.opt.Patience {
			trouble = cmp.Or(err, w.health.lasting(0), errors.New("the stores do not answer"))
		}
		if trouble != nil && ctx.Err() == nil {
			return fault.Wrap(fault.Unavailable, trouble, "gave up after %s", w.opt.Patience).WithHint("%s; to wait longer, say --timeout", cmp.Or(fault.HintOf(trouble), "see what is wrong: dropctl doctor"))
		}
		sleep(ctx, idleEvery, nil)
	}
	return nil
}

// idleWithin is idle, but no longer than until a deadline: a server that hangs answers nothing for as long as it likes.
func (w *Worker) idleWithin(ctx context.Context, deadline time.Time) (bool, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return w.idle(ctx)
}

// looked reports whether the guardian, if it runs here, has seen every shard: until then idle asks no store.
func (w *Worker) looked() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.passed || !w.does(Guardian)
}

// idle asks in the order in which work travels, so that nothing slips past behind a question: holds to take
// back, entries the ledger has not got, events that could be folded, sales to finalise, notices to send. What waits behind a gap
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
	if w.does(Relay) || w.does(Apply) {
		if idle, err := w.drained(ctx); !idle || err != nil {
			return false, err
		}
	}
	if w.does(Finalise) {
		unfinished := w.ledger.Unfinalised
		if w.opt.Gateway != nil { // what waits for a payer or the gateway's own decision is not work
			unfinished = w.ledger.Unpaid
		}
		if left, err := unfinished(ctx); left > 0 || err != nil {
			return false, err
		}
	}
	if w.does(Notify) {
		left, err := w.ledger.NoticesToSend(ctx)
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
		if err = w.leaveAlone(ctx, shard, err); shut(err) {
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
		if err == nil && out.Pending > 0 {
			_, err = w.ours(ctx, shard)
		}
		if errors.Is(err, errLeftAlone) { // nobody here waits for somebody else's entries
			continue
		}
		if err != nil || out.Pending > 0 {
			return false, err
		}
	}
	if settled, err := w.watchServer(ctx); !settled || err != nil {
		return false, err
	}
	if _, err := w.fillGaps(ctx, 0); err != nil {
		return false, err
	}
	folded, err := w.ledger.FoldWaiting(ctx)
	if err != nil || folded > 0 {
		return false, err
	}
	gaps, err := w.ledger.Gaps(ctx, 0) // what is still open after they were sent again
	w.open = nil
	for _, gap := range gaps {
		w.open = append(w.open, gap.Lot)
	}
	return err == nil, err
}

// leftOver is what a worker that found nothing more to do has to say of what no worker can do.
func (w *Worker) leftOver() error {
	if parked := w.done.parked.Load(); parked > 0 {
		return fault.New(fault.Partial, "%d events could not be recorded and were parked as dead letters", parked).
			WithHint("look at them: dropctl status").With("parked", parked)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var says []string
	hint := "see all of it: dropctl status"
	for _, f := range w.findings {
		switch f.Action {
		case recovery.Frozen, recovery.Waiting:
			says = append(says, frozenText(f))
			hint = cmp.Or(f.Next(), hint)
		}
	}
	if len(w.open) > 0 {
		says = append(says, fmt.Sprintf("events of %s are missing and later ones wait for them", drop.SomeLots(w.open)))
		hint = "dropctl reconcile " + string(w.open[0])
	}
	switch len(says) {
	case 0:
		return nil
	case 1:
	default:
		hint = "see all of it: dropctl status"
	}
	return fault.New(fault.Finding, "no worker can do more, but %s", strings.Join(says[:min(len(says), 5)], "; ")).WithHint("%s", hint)
}

func frozenText(f recovery.Finding) string {
	what := fmt.Sprintf("shard %d", f.Shard)
	if len(f.Lots) > 0 {
		what = drop.SomeLots(f.Lots)
	}
	return fmt.Sprintf("%s sells nothing (%s)", what, f.Reason)
}
