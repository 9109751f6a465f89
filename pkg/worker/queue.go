package worker

import (
	"context"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Queue carries outbox entries to those who apply them, where they do not travel straight into the ledger. Whatever it
// does with them, repeat, reorder, delay or lose, the ledger gets each event once: the relay acknowledges an entry only
// when the ledger has it, and sends again what does not arrive. Safe for concurrent use.
type Queue interface {
	// Send puts entries of a shard into the queue, in order. When it returns nil the queue has them durably; after an error
	// it may have any of them. sending counts how often these entries were sent, from 1.
	Send(ctx context.Context, shard int, entries []drop.OutboxEntry, sending int) error
	// Barrier reports whether everything sent for a shard before the first call with this mark has come through to the
	// ledger. A queue without order cannot tell, and always says true.
	Barrier(ctx context.Context, shard int, mark string) (passed bool, err error)
}

// Source hands out what a queue delivers. It takes entries as done only when deliver returned nil, and hands them out
// again otherwise, to this worker or another. A queue that calls somebody by itself has no source.
type Source interface {
	// Check is an error as long as there is nothing to receive from.
	Check(ctx context.Context) error
	// Receive calls deliver, at several places at once, until ctx ends, which is no error, or deliver returns an error,
	// which it returns. The context of a call ends when the entries are no longer this worker's.
	Receive(ctx context.Context, deliver func(ctx context.Context, entries []drop.OutboxEntry) error) error
}

// applyFromSource is the part that applies what the queue delivers. A store that is down holds a delivery up: given back,
// it would only come again.
func (w *Worker) applyFromSource(ctx context.Context) error {
	inbox := &Inbox{w.recorder}
	if err := w.opt.Source.Check(ctx); err != nil {
		return err
	}
	w.health.fine(string(Apply))
	return w.opt.Source.Receive(ctx, func(ctx context.Context, entries []drop.OutboxEntry) error {
		pause := backoff{}
		for {
			again := w.answering()
			err := inbox.Deliver(ctx, entries)
			if err == nil {
				w.health.fine(string(Apply))
				return nil
			}
			if fatal(err) || ctx.Err() != nil {
				return err
			}
			w.health.failed(string(Apply), err)
			if !pause.wait(ctx, again) {
				return err
			}
		}
	})
}
