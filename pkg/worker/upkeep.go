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
		_, sendErr := w.watchServer(ctx) // a shard that cannot be sent again, or be trimmed, keeps no other one waiting
		if _, err := w.ledger.FoldWaiting(ctx); err != nil {
			return errors.Join(err, sendErr)
		}
		var trimErr error
		if time.Since(trimmed) >= trimEvery {
			trimErr, trimmed = w.trim(ctx), time.Now()
		}
		gaps, err := w.fillGaps(ctx, gapPatience)
		if err = errors.Join(err, sendErr, trimErr); err != nil {
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
// on another timeline than it remembers: what it had confirmed before, and was acknowledged for, may be missing now. Shards
// that could not be sent then are sent as soon as they can be. One worker does it for all; it is not settled as long as another
// one is at it.
func (w *Worker) watchServer(ctx context.Context) (settled bool, err error) {
	w.resending.Lock()
	defer w.resending.Unlock()
	if todo, err := w.unsent(ctx); len(todo.shards) == 0 || err != nil {
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
	todo, err := w.unsent(ctx) // another worker may have done it just now
	if len(todo.shards) == 0 || err != nil {
		return err == nil, err
	}
	if todo.before != "" {
		w.log.Warn("PostgreSQL was restarted, put back or replaced; sending again what the ledger has not folded and the outbox still has", "before", todo.before, "now", todo.server)
	}
	left, err := w.resendShards(ctx, todo.shards)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	// The server that was asked before sending: if another one takes over meanwhile, all is sent once more.
	err = errors.Join(err, w.ledger.SetServer(ctx, todo.server, append(todo.alone, left...)))
	return err == nil, err
}

// toSend is what a server of PostgreSQL may lack.
type toSend struct {
	server, before string // before: the one that is remembered, if that is another one
	shards         []int  // to be sent again
	alone          []int  // that would have to be, but are not ours at present
}

// unsent finds out what is to be sent again. A shard that is left alone is so until it is ours again.
func (w *Worker) unsent(ctx context.Context) (toSend, error) {
	now, remembered, shards, err := w.ledger.Server(ctx)
	if err != nil {
		return toSend{}, err
	}
	todo := toSend{server: now}
	if now != remembered {
		todo.before = remembered
		for shard := range w.opt.Shards {
			todo.shards = append(todo.shards, shard)
		}
		return todo, nil
	}
	for _, shard := range shards {
		if _, err := w.ours(ctx, shard); errors.Is(err, errLeftAlone) {
			todo.alone = append(todo.alone, shard)
		} else { // also one that does not answer: that is told when it is sent
			todo.shards = append(todo.shards, shard)
		}
	}
	return todo, nil
}

// resendShards sends again every kept event of some shards that the ledger has not folded, also of lots that it does not know
// any more: those become dead letters, which somebody sees. It returns the shards that were left alone or with which that failed.
func (w *Worker) resendShards(ctx context.Context, shards []int) (left []int, err error) {
	known, err := w.ledger.Lots(ctx)
	if err != nil {
		return shards, err
	}
	recorded := map[drop.LotID]drop.Watermark{}
	for _, lot := range known {
		recorded[lot.Lot] = lot.Watermark
	}
	lots := w.byShard(recorded)
	var errs []error
	for _, shard := range shards {
		err := w.resendAll(ctx, shard, lots[shard])
		if err != nil {
			left = append(left, shard)
		}
		if !errors.Is(err, errLeftAlone) {
			errs = append(errs, err)
		}
	}
	return left, errors.Join(errs...)
}

// resendAll sends again what one shard has of the lots that the ledger knows, and all of the others. Each shard is asked by
// itself for its lots: one whose server is away keeps no other one waiting. Errors: as resendShard.
func (w *Worker) resendAll(ctx context.Context, shard int, recorded map[drop.LotID]drop.Watermark) error {
	present, err := w.stock.LotsOf(ctx, []int{shard})
	if err != nil {
		return err
	}
	from := map[drop.LotID]drop.Watermark{}
	for _, lot := range present {
		from[lot] = drop.Watermark{}
	}
	maps.Copy(from, recorded)
	return w.resendShard(ctx, shard, from, func(drop.Event) bool { return true })
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
	var errs []error // of shards: the others are not kept waiting
	for shard, lots := range w.byShard(from) {
		if err := w.resendShard(ctx, shard, lots, wanted); !errors.Is(err, errLeftAlone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// byShard groups lots by their shards.
func (w *Worker) byShard(from map[drop.LotID]drop.Watermark) map[int]map[drop.LotID]drop.Watermark {
	shards := map[int]map[drop.LotID]drop.Watermark{}
	for lot, at := range from {
		shard := lot.Shard(w.opt.Shards)
		if shards[shard] == nil {
			shards[shard] = map[drop.LotID]drop.Watermark{}
		}
		shards[shard][lot] = at
	}
	return shards
}

// resendShard sends again what one shard has of these lots. Errors: errLeftAlone; those of the stores.
func (w *Worker) resendShard(ctx context.Context, shard int, lots map[drop.LotID]drop.Watermark, wanted func(drop.Event) bool) error {
	if _, err := w.ours(ctx, shard); err != nil || len(lots) == 0 { // what a strange shard lacks of ours cannot be seen
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
