package worker

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/recovery"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// Inbox brings entries that a queue delivers into the ledger. Safe for concurrent use.
type Inbox struct{ *recorder }

// NewInbox returns an inbox for a process that is no worker. Of the options only Rate, Log and Metrics count.
func NewInbox(journal Journal, o Options) *Inbox {
	o = o.withDefaults()
	return &Inbox{newRecorder(journal, o, o.Log)}
}

// Deliver applies entries once there are tokens for them. When it returns nil the ledger has all of them, durably; after
// an error it may have some, and they may be delivered again. Errors: fault.Foreign for what belongs to another
// installation, of which nothing is applied; the context's.
func (b *Inbox) Deliver(ctx context.Context, entries []drop.OutboxEntry) error {
	for len(entries) > 0 {
		events, poison, n := decodeSome(entries)
		granted, err := b.tokens(ctx, cost(events, poison))
		if err != nil || granted == 0 {
			return cmp.Or(err, ctx.Err())
		}
		if err := b.pay(ctx, events, poison, granted); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// Offer applies entries if there are tokens now. Else it applies nothing more, and says when to offer them again. After an
// error, as with Deliver, they may be offered again.
func (b *Inbox) Offer(ctx context.Context, entries []drop.OutboxEntry) (wait time.Duration, err error) {
	for len(entries) > 0 {
		events, poison, n := decodeSome(entries)
		granted, wait, err := b.journal.TakeTokens(ctx, b.rate, cost(events, poison))
		if err != nil || granted == 0 {
			return max(wait, tokenPause), err
		}
		if err := b.pay(ctx, events, poison, granted); err != nil {
			return 0, err
		}
		entries = entries[n:]
	}
	return 0, nil
}

// cost is how many tokens are asked for. Garbage is not for free.
func cost(events []drop.Event, poison []drop.Poison) int { return max(1, len(events)+len(poison)) }

// pay applies a batch and settles the bill: what was granted too little is charged, what the ledger had already costs
// nothing. A batch is never split, so the bucket may go below zero: the next one waits longer.
func (b *Inbox) pay(ctx context.Context, events []drop.Event, poison []drop.Poison, granted int) error {
	did, err := b.apply(ctx, events, poison)
	used := len(events) + len(poison) - did.Duplicates
	if err != nil {
		used = 0
	}
	if used == granted {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer cancel()
	return cmp.Or(err, b.journal.ChargeTokens(ctx, used-granted))
}

// decodeSome reads the first n entries, about a transaction's worth and at least one.
func decodeSome(entries []drop.OutboxEntry) (events []drop.Event, poison []drop.Poison, n int) {
	for _, entry := range entries {
		if len(events)+len(poison) >= batchEvents {
			break
		}
		ev, bad := entry.Decode()
		events, poison, n = append(events, ev...), append(poison, bad...), n+1
	}
	return events, poison, n
}

// recorder brings events into the ledger and counts what became of them. Safe for concurrent use.
type recorder struct {
	journal   Journal
	rate      float64
	log       *slog.Logger
	metrics   *telemetry.Worker
	transport string
	done      counters
	confirmed chan struct{} // wakes finalise
	noticed   chan struct{} // wakes notify
	asking    chan struct{} // held by who asks for tokens: the others wait in line, and the bucket is asked once
}

func newRecorder(journal Journal, o Options, log *slog.Logger) *recorder {
	return &recorder{journal: journal, rate: o.Rate, log: log, metrics: o.Metrics, transport: o.Transport, confirmed: make(chan struct{}, 1), noticed: make(chan struct{}, 1), asking: make(chan struct{}, 1)}
}

// patienceInLine is how long one waits for another who asks for tokens: that one's connection may be dead.
const patienceInLine = 2 * time.Second

// tokens waits until the bucket grants some, up to want, everybody in his turn. It returns 0 when the context has ended.
func (r *recorder) tokens(ctx context.Context, want int) (int, error) {
	start := time.Now()
	limit := time.NewTimer(patienceInLine)
	defer limit.Stop()
	select {
	case r.asking <- struct{}{}:
		defer func() { <-r.asking }()
	case <-limit.C:
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		asked := time.Now()
		granted, wait, err := r.journal.TakeTokens(ctx, r.rate, want)
		if err != nil || granted > 0 {
			r.metrics.TokensWaited.Add(asked.Sub(start).Seconds())
			return granted, err
		}
		sleep(ctx, wait, nil)
	}
	return 0, nil
}

// apply records events. A stop lets the attempt finish. It makes one attempt only: if that fails, what was not
// acknowledged is read again, so that a batch in hand never outlives its Redis by more than an attempt. What comes after
// the guardian has opened another Redis is of an epoch that is closed: a ghost.
func (r *recorder) apply(ctx context.Context, events []drop.Event, poison []drop.Poison) (drop.Applied, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyLimit)
	defer cancel()
	start := time.Now()
	did, err := r.journal.Apply(ctx, events, poison)
	if err == nil {
		r.metrics.ApplySeconds.Observe(time.Since(start).Seconds())
		r.metrics.ApplyEvents.Observe(float64(len(events) + len(poison)))
		r.applied(did)
	}
	return did, err
}

// applied counts, says aloud what needs somebody, and wakes finalise and notify.
func (r *recorder) applied(did drop.Applied) {
	r.done.events.Add(int64(did.Folded))
	r.done.duplicates.Add(int64(did.Duplicates))
	r.done.parked.Add(int64(did.Dead))
	r.metrics.Events.WithLabelValues("folded").Add(float64(did.Folded))
	r.metrics.Events.WithLabelValues("duplicate").Add(float64(did.Duplicates))
	r.metrics.Events.WithLabelValues("dead").Add(float64(did.Dead))
	if did.Dead > 0 {
		r.log.Error("events were parked as dead letters", "count", did.Dead, "next", "dropctl status")
	}
	for _, stopped := range did.Stopped {
		r.log.Error("the ledger folds no more events of this lot", "lot", stopped.Lot, "reason", stopped.Code,
			"next", recovery.Finding{Reason: stopped.Code, Lots: []drop.LotID{stopped.Lot}}.Next())
	}
	r.wakeFinalise()
	if did.Notices > 0 {
		wake(r.noticed)
	}
}

// wakeFinalise lets finalise look for work at once.
func (r *recorder) wakeFinalise() { wake(r.confirmed) }

// wake lets a part look at once, unless it is going to anyway.
func wake(part chan struct{}) {
	select {
	case part <- struct{}{}:
	default:
	}
}

// acknowledged counts entries.
func (r *recorder) acknowledged(n int) {
	r.done.entries.Add(int64(n))
	r.metrics.Entries.Add(float64(n))
	r.relayed("acknowledged", n)
}

// relayed counts entries on their way.
func (r *recorder) relayed(step string, n int) {
	r.metrics.Relayed.WithLabelValues(r.transport, step).Add(float64(n))
}
