package worker

import (
	"context"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
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

// fillGaps sends again what the outbox still has of every lot that has waited for a missing event longer
// than age, and returns those lots. A batch may have been lost with the PostgreSQL server that had it.
func (w *Worker) fillGaps(ctx context.Context, age time.Duration) ([]Gap, error) {
	gaps, err := w.ledger.Gaps(ctx)
	if err != nil {
		return nil, err
	}
	gaps = slices.DeleteFunc(gaps, func(g Gap) bool { return time.Since(g.Since) < age })
	from := map[int]map[drop.LotID]drop.Watermark{}
	for _, gap := range gaps {
		shard := gap.Lot.Shard(w.opt.Shards)
		if from[shard] == nil {
			from[shard] = map[drop.LotID]drop.Watermark{}
		}
		from[shard][gap.Lot] = gap.Watermark
	}
	for shard, lots := range from {
		kept, err := w.stock.EventsSince(ctx, shard, lots)
		if err != nil {
			return nil, err
		}
		for _, events := range kept {
			if err := w.apply(ctx, events, nil); err != nil {
				return nil, err
			}
		}
	}
	return gaps, nil
}

// sayGaps raises the alarm for lots that had no gap the last time, and returns the lots that have one now.
func (w *Worker) sayGaps(before []drop.LotID, gaps []Gap) []drop.LotID {
	var now []drop.LotID
	for _, g := range gaps {
		now = append(now, g.Lot)
		if !slices.Contains(before, g.Lot) {
			w.log.Error("an event is missing and later ones wait for it; sending again what the outbox has", "lot", g.Lot,
				"epoch", g.Watermark.Epoch, "missing_seq", g.Watermark.Seq+1, "waiting", g.Waiting, "since", g.Since, "next", "dropctl reconcile "+string(g.Lot))
		}
	}
	return now
}

func (w *Worker) trim(ctx context.Context) error {
	for shard := range w.opt.Shards {
		if _, err := w.stock.Trim(ctx, shard, w.opt.Keep); err != nil {
			return err
		}
	}
	return nil
}
