package worker

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	upkeepEvery = 2 * time.Second
	trimEvery   = 5 * time.Second
	gapAlarm    = 30 * time.Second

	// gapPatience is how long missing events may be in somebody's hand. One who is killed mostly has some, and until they are
	// taken over everything later of their lots would wait.
	gapPatience = time.Second

	longestPause = 5 * time.Minute // between two attempts to fill the same gap
)

// upkeep does from time to time what no single batch does: it folds what waits without need, sends again
// what the ledger misses, and trims the outbox behind the ledger.
func (w *Worker) upkeep(ctx context.Context) error {
	var trimmed time.Time
	var alarmed []drop.LotID
	for {
		if _, err := w.watchServer(ctx); err != nil {
			return err
		}
		if _, err := w.ledger.FoldWaiting(ctx); err != nil {
			return err
		}
		var trimErr error // a shard that cannot be trimmed keeps no gap open
		if time.Since(trimmed) >= trimEvery {
			trimErr, trimmed = w.trim(ctx), time.Now()
		}
		gaps, err := w.fillGaps(ctx, gapPatience)
		if err = errors.Join(trimErr, err); err != nil {
			return err
		}
		if len(gaps) > 0 {
			if gaps, err = w.ledger.Gaps(ctx, gapAlarm); err != nil {
				return err
			}
		}
		alarmed = w.sayGaps(alarmed, gaps)
		w.health.fine("upkeep")
		if !sleep(ctx, upkeepEvery, nil) {
			return nil
		}
	}
}

// watchServer sends again whatever the outbox still has when the database has been started anew, is on another server, or
// on another timeline than it remembers: what it had confirmed before, and was acknowledged for, may be missing now. One
// worker does it for all; it is not settled as long as another one is at it.
func (w *Worker) watchServer(ctx context.Context) (settled bool, err error) {
	w.resending.Lock()
	defer w.resending.Unlock()
	now, remembered, err := w.ledger.Server(ctx)
	if err != nil || now == remembered {
		return err == nil, err
	}
	unlock, err := w.ledger.LockResend(ctx)
	if fault.Is(err, fault.Busy) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	// Another worker may have done it just now.
	if now, remembered, err = w.ledger.Server(ctx); err != nil || now == remembered {
		return err == nil, err
	}
	if remembered != "" {
		w.log.Warn("PostgreSQL was restarted, put back or replaced; sending again what the ledger has not folded and the outbox still has", "before", remembered, "now", now)
	}
	if err := w.resendAll(ctx); err != nil {
		return false, err
	}
	// The server that was asked before sending: if another one takes over meanwhile, all is sent once more.
	return true, w.ledger.SetServer(ctx, now)
}

// resendAll sends again every kept event that the ledger has not folded, also of lots that it does not know any
// more: those become dead letters, which somebody sees.
func (w *Worker) resendAll(ctx context.Context) error {
	present, err := w.stock.Lots(ctx)
	if err != nil {
		return err
	}
	known, err := w.ledger.Lots(ctx)
	if err != nil {
		return err
	}
	from := map[drop.LotID]drop.Watermark{}
	for _, lot := range present {
		from[lot] = drop.Watermark{}
	}
	for _, lot := range known {
		from[lot.Lot] = lot.Watermark
	}
	return w.resend(ctx, from, func(drop.Event) bool { return true })
}

// fillGaps sends again what the outbox still has of every gap that has been open for longer than age, and
// returns those gaps. One that stays open is tried less and less often.
func (w *Worker) fillGaps(ctx context.Context, age time.Duration) ([]drop.Gap, error) {
	w.resending.Lock()
	defer w.resending.Unlock()
	gaps, err := w.ledger.Gaps(ctx, age)
	if err != nil {
		return nil, err
	}
	missing := map[drop.LotID]drop.Gap{}
	from := map[drop.LotID]drop.Watermark{}
	for _, gap := range gaps {
		if w.dueAgain(gap, time.Now()) {
			missing[gap.Lot] = gap
			from[gap.Lot] = drop.Watermark{Epoch: gap.Epoch, Seq: gap.From - 1}
		}
	}
	maps.DeleteFunc(w.resent, func(_ drop.LotID, s sentGap) bool { return time.Since(s.next) > longestPause })
	return gaps, w.resend(ctx, from, func(ev drop.Event) bool {
		gap := missing[ev.Lot]
		return ev.Epoch == gap.Epoch && ev.Seq <= gap.To
	})
}

// sentGap is a gap that was sent again.
type sentGap struct {
	from  int64 // first seq missing: a gap that became smaller is another one
	pause time.Duration
	next  time.Time
}

// dueAgain reports whether it is time to send a gap again, and if so notes it.
func (w *Worker) dueAgain(gap drop.Gap, now time.Time) bool {
	sent := w.resent[gap.Lot]
	if sent.from != gap.From {
		sent = sentGap{from: gap.From}
	}
	if now.Before(sent.next) {
		return false
	}
	sent.pause = min(max(2*sent.pause, upkeepEvery), longestPause)
	sent.next = now.Add(sent.pause)
	w.resent[gap.Lot] = sent
	return true
}

// resend applies the kept and wanted events of these lots behind their watermarks, whether they were
// acknowledged or not. In the end it has paid tokens only for what was news to the ledger.
func (w *Worker) resend(ctx context.Context, from map[drop.LotID]drop.Watermark, wanted func(drop.Event) bool) error {
	shards := map[int]map[drop.LotID]drop.Watermark{}
	for lot, at := range from {
		shard := lot.Shard(w.opt.Shards)
		if shards[shard] == nil {
			shards[shard] = map[drop.LotID]drop.Watermark{}
		}
		shards[shard][lot] = at
	}
	var errs []error // of shards: the others are not kept waiting
	for shard, lots := range shards {
		errs = append(errs, w.resendShard(ctx, shard, lots, wanted))
	}
	return errors.Join(errs...)
}

func (w *Worker) resendShard(ctx context.Context, shard int, lots map[drop.LotID]drop.Watermark, wanted func(drop.Event) bool) error {
	_, err := w.ours(ctx, shard)
	if errors.Is(err, errLeftAlone) {
		return nil
	}
	if err != nil {
		return err
	}
	kept, err := w.stock.EventsReadSince(ctx, shard, lots)
	if err != nil {
		return err
	}
	for _, events := range kept {
		events = slices.DeleteFunc(events, func(ev drop.Event) bool { return !wanted(ev) })
		for batch := range slices.Chunk(events, batchEvents) {
			if err := w.resendBatch(ctx, batch); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Worker) resendBatch(ctx context.Context, batch []drop.Event) error {
	granted, err := w.tokens(ctx, len(batch))
	if err != nil || granted == 0 {
		return cmp.Or(err, ctx.Err())
	}
	did, err := w.apply(ctx, batch, nil)
	if err == nil {
		w.metrics.ResentEvents.Add(float64(len(batch)))
	}
	if err != nil || did.Folded == granted {
		return err
	}
	return w.ledger.ChargeTokens(context.WithoutCancel(ctx), did.Folded-granted)
}

// sayGaps raises the alarm for lots that had no gap the last time, and returns the lots that have one now.
func (w *Worker) sayGaps(before []drop.LotID, gaps []drop.Gap) []drop.LotID {
	var now []drop.LotID
	for _, g := range gaps {
		now = append(now, g.Lot)
		if !slices.Contains(before, g.Lot) {
			w.log.Error("events are missing and later ones wait for them; sending again what the outbox has", "lot", g.Lot,
				"epoch", g.Epoch, "from_seq", g.From, "to_seq", g.To, "since", g.Since, "next", "dropctl reconcile "+string(g.Lot))
		}
	}
	return now
}

func (w *Worker) trim(ctx context.Context) error {
	var errs []error
	for shard := range w.opt.Shards {
		_, err := w.stock.Trim(ctx, shard, w.opt.Keep)
		if err = w.leaveAlone(ctx, shard, err); err != nil && !shut(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// shut reports whether a shard refused because its door is closed, it was never opened, or is not ours. Nothing may change
// there then, and the guardian knows.
func shut(err error) bool {
	return fault.Is(err, fault.LotFrozen) || fault.Is(err, fault.LotNotLoaded) || errors.Is(err, errLeftAlone)
}
