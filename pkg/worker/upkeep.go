package worker

import (
	"context"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	upkeepEvery = 2 * time.Second
	trimEvery   = 5 * time.Second
	gapAlarm    = 30 * time.Second
)

// upkeep does from time to time what no single batch does: it folds what waits without need, sends again
// what the ledger misses, and trims the outbox behind the ledger.
func (w *Worker) upkeep(ctx context.Context) error {
	var trimmed time.Time
	var alarmed []drop.LotID
	for {
		if err := w.watchServer(ctx); err != nil {
			return err
		}
		if _, err := w.ledger.FoldWaiting(ctx); err != nil {
			return err
		}
		gaps, err := w.fillGaps(ctx, gapAlarm)
		if err != nil {
			return err
		}
		alarmed = w.sayGaps(alarmed, gaps)
		if time.Since(trimmed) >= trimEvery {
			if err := w.trim(ctx); err != nil {
				return err
			}
			trimmed = time.Now()
		}
		w.health.fine("upkeep")
		if !sleep(ctx, upkeepEvery, nil) {
			return nil
		}
	}
}

// watchServer sends again whatever the outbox still has when another PostgreSQL server or timeline has taken
// over: what the one before had confirmed, and was acknowledged for, may be missing on this one.
func (w *Worker) watchServer(ctx context.Context) error {
	server, err := w.ledger.Server(ctx)
	if err != nil {
		return err
	}
	if w.server != "" && w.server != server {
		w.log.Warn("another PostgreSQL server or timeline has taken over; sending again what the outbox has")
		lots, err := w.ledger.Lots(ctx)
		if err != nil {
			return err
		}
		from := map[drop.LotID]drop.Watermark{}
		for _, lot := range lots {
			from[lot.Lot] = lot.Watermark
		}
		if err := w.resend(ctx, from); err != nil {
			return err
		}
	}
	w.server = server
	return nil
}

// fillGaps sends again what the outbox still has of every lot that has waited for a missing event longer
// than age, and returns those lots.
func (w *Worker) fillGaps(ctx context.Context, age time.Duration) ([]drop.Gap, error) {
	gaps, err := w.ledger.Gaps(ctx, age)
	if err != nil {
		return nil, err
	}
	from := map[drop.LotID]drop.Watermark{}
	for _, gap := range gaps {
		from[gap.Lot] = drop.Watermark{Epoch: gap.Epoch, Seq: gap.From - 1}
	}
	return gaps, w.resend(ctx, from)
}

// resend applies the kept events of these lots behind their watermarks, whether they were acknowledged or not.
func (w *Worker) resend(ctx context.Context, from map[drop.LotID]drop.Watermark) error {
	shards := map[int]map[drop.LotID]drop.Watermark{}
	for lot, at := range from {
		shard := lot.Shard(w.opt.Shards)
		if shards[shard] == nil {
			shards[shard] = map[drop.LotID]drop.Watermark{}
		}
		shards[shard][lot] = at
	}
	for shard, lots := range shards {
		kept, err := w.stock.EventsSince(ctx, shard, lots)
		if err != nil {
			return err
		}
		for _, events := range kept {
			for batch := range slices.Chunk(events, batchEvents) {
				if err := w.apply(ctx, batch, nil); err != nil {
					return err
				}
				if err := w.ledger.ChargeTokens(ctx, len(batch)); err != nil {
					return err
				}
			}
		}
	}
	return nil
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
	for shard := range w.opt.Shards {
		_, err := w.stock.Trim(ctx, shard, w.opt.Keep)
		if err != nil && !shut(err) {
			return err
		}
	}
	return nil
}

// shut reports whether a shard refused because its door is closed or it was never opened. Nothing may change
// there then, and the guardian knows.
func shut(err error) bool { return fault.Is(err, fault.LotFrozen) || fault.Is(err, fault.LotNotLoaded) }
