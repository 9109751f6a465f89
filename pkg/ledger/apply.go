package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Apply takes events in any order and repetition, and lines that are no events. When it returns without an
// error, the ledger has all of them: folded, waiting or as dead letters, each once, and they may be
// acknowledged. It is one transaction, unless what the ledger has of some lot is damaged: then each lot has its own, and
// the damaged one is stopped. After any error it may be repeated.
// Events of another installation are refused with fault.Foreign, all of the call.
func (l *Ledger) Apply(ctx context.Context, events []drop.Event, poison []drop.Poison) (drop.Applied, error) {
	for _, ev := range events {
		if ev.Installation != l.installation.ID {
			return drop.Applied{}, fault.New(fault.Foreign, "an event of the lot %s belongs to the installation %q, this ledger to %q", ev.Lot, ev.Installation, l.installation.ID)
		}
	}
	for _, p := range poison {
		if p.Installation != "" && p.Installation != l.installation.ID {
			return drop.Applied{}, fault.New(fault.Foreign, "a line of the outbox belongs to the installation %q, this ledger to %q", p.Installation, l.installation.ID)
		}
	}
	return l.apply(ctx, newApplication(l.installation.ID, events, poison))
}

// FoldWaiting folds waiting events that have become contiguous, and returns how many. Apply does so by
// itself; what is left over is the rest of a very long run.
func (l *Ledger) FoldWaiting(ctx context.Context) (int, error) {
	folded := 0
	for {
		lots, err := l.foldableLots(ctx)
		if err != nil || len(lots) == 0 {
			return folded, err
		}
		a := newApplication(l.installation.ID, nil, nil)
		for _, lot := range lots {
			a.lots[lot] = &lotWork{}
		}
		did, err := l.apply(ctx, a)
		folded += did.Folded
		if err != nil || did.Folded == 0 {
			return folded, err
		}
	}
}

func (l *Ledger) foldableLots(ctx context.Context) ([]drop.LotID, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT lot FROM lots l WHERE waiting > 0 AND stopped = ''
		AND EXISTS (SELECT FROM waiting_events w WHERE w.lot = l.lot AND w.epoch = l.open_epoch AND w.seq = l.seq + 1) ORDER BY lot LIMIT 1000`)
	if err != nil {
		return nil, l.fail(err, "looking for events to fold")
	}
	lots, err := pgx.CollectRows(rows, pgx.RowTo[drop.LotID])
	return lots, l.fail(err, "looking for events to fold")
}

// application is one call of Apply: what came in, sorted by lot, and what is to be written.
type application struct {
	installation string
	lots         map[drop.LotID]*lotWork
	poison       []drop.Poison
	retried      map[place][]string       // dead letters that are tried again, with their lines: they do not count as known
	wanted       map[drop.NoticeKind]bool // what hooks want to know; nil: nothing
	writes       writes
	result       drop.Applied
}

// lotWork is the part of one lot.
type lotWork struct {
	lot      *Lot // locked; nil: the ledger does not know it
	incoming []item
	fresh    map[int64]item // of the open epoch and beyond the watermark, by seq; new to the ledger
	waiting  map[int64]item // the same, from waiting_events
	run      []item         // those of both that follow the watermark without a gap
	fold     *fold
	changed  bool // the row of the lot must be written
}

func newApplication(installation string, events []drop.Event, poison []drop.Poison) *application {
	a := &application{installation: installation, lots: map[drop.LotID]*lotWork{}, poison: poison}
	for _, ev := range events {
		a.work(ev.Lot).incoming = append(a.work(ev.Lot).incoming, item{ev, ev.Line()})
	}
	for _, p := range poison {
		if p.Lot != "" {
			a.work(p.Lot)
		}
	}
	for _, w := range a.lots {
		slices.SortStableFunc(w.incoming, func(x, y item) int { return placeOf(x.Event).compare(placeOf(y.Event)) })
	}
	return a
}

func (a *application) work(lot drop.LotID) *lotWork {
	w := a.lots[lot]
	if w == nil {
		w = &lotWork{}
		a.lots[lot] = w
	}
	return w
}

// ids returns the lots in the order in which everything is done.
func (a *application) ids() []drop.LotID { return slices.Sorted(maps.Keys(a.lots)) }

// apply carries an application out: all of it at once, or where rows of some lot stand in the way, lot by lot.
func (l *Ledger) apply(ctx context.Context, a *application) (drop.Applied, error) {
	err := l.inTransaction(ctx, a, a.take)
	if damaged(err) {
		return l.applyApart(ctx, a)
	}
	if err != nil {
		return drop.Applied{}, l.fail(err, "applying events")
	}
	return a.result, nil
}

// inTransaction locks the lots and lets do go on. The error is the driver's.
func (l *Ledger) inTransaction(ctx context.Context, a *application, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		if err := a.lock(ctx, tx); err != nil {
			return err
		}
		return do(ctx, tx)
	})
}

// take takes the events in whose lots are locked.
func (a *application) take(ctx context.Context, tx pgx.Tx) error {
	if err := a.sort(ctx, tx); err != nil {
		return err
	}
	return a.foldAll(ctx, tx)
}

// sort decides what becomes of everything that came in, but for what is to be folded.
func (a *application) sort(ctx context.Context, tx pgx.Tx) error {
	known, err := a.readKnown(ctx, tx)
	if err != nil {
		return err
	}
	given, err := a.givenUp(ctx, tx)
	if err != nil {
		return err
	}
	a.takePoison(given)
	for _, id := range a.ids() {
		a.classify(a.lots[id], known)
	}
	return nil
}

// foldAll folds what can be folded now, and writes everything.
func (a *application) foldAll(ctx context.Context, tx pgx.Tx) error {
	if err := a.readWaiting(ctx, tx); err != nil {
		return err
	}
	for _, w := range a.lots {
		w.findRun(a.wanted)
	}
	if err := a.readState(ctx, tx); err != nil {
		return err
	}
	for _, id := range a.ids() {
		a.foldRun(a.lots[id])
	}
	return a.write(ctx, tx)
}

// givenUp returns the digests of poison that came before and was discarded: it must not stop its lot again.
func (a *application) givenUp(ctx context.Context, tx pgx.Tx) (map[string]bool, error) {
	if len(a.poison) == 0 {
		return nil, nil
	}
	var digests [][]byte
	for _, p := range a.poison {
		digest := poisonDigest(p)
		digests = append(digests, digest[:])
	}
	rows, err := tx.Query(ctx, `SELECT digest FROM dead_letters WHERE digest = ANY($1) AND settled_at IS NOT NULL`, digests)
	if err != nil {
		return nil, err
	}
	given := map[string]bool{}
	var digest []byte
	_, err = pgx.ForEachRow(rows, []any{&digest}, func() error { given[string(digest)] = true; return nil })
	return given, err
}

// takePoison keeps what is not an event. Its place in its lot's history will stay empty, so that the lot
// stops at once instead of waiting for ever; poison of a closed epoch harms nothing any more.
func (a *application) takePoison(givenUp map[string]bool) {
	for _, p := range a.poison {
		a.writes.poison(p)
		if digest := poisonDigest(p); givenUp[string(digest[:])] {
			continue
		}
		w := a.lots[p.Lot]
		if w == nil || w.lot == nil {
			continue
		}
		w.changed = true
		if p.Epoch >= w.lot.OpenEpoch {
			w.lot.stop(fault.StopUnfoldable, "a line that is not an event: "+p.Reason)
		}
	}
}

// classify decides for each incoming event whether the ledger has it, whether it can never be folded, or
// whether it belongs to what comes next.
func (a *application) classify(w *lotWork, known map[place][]knownEvent) {
	w.fresh = map[int64]item{}
	for _, it := range w.incoming {
		if w.lot == nil {
			a.writes.bury(it, fault.NotFound, "the ledger does not know the lot")
			continue
		}
		w.changed = true
		had := known[placeOf(it.Event)]
		twin, double := w.fresh[it.Seq]
		double = double && twin.Epoch == it.Epoch
		switch {
		case it.Epoch == w.lot.OpenEpoch && it.Seq > w.lot.Watermark.Seq && slices.ContainsFunc(had, func(k knownEvent) bool { return k.folded }):
			a.stopAt(w, it, fault.StopUnfoldable, damage("the journal has an event in its place, which lies beyond the watermark"))
		case slices.ContainsFunc(had, func(k knownEvent) bool { return k.same(it) }),
			double && twin.line == it.line && twin.Time.Equal(it.Time):
			a.result.Duplicates++
		case it.Epoch < w.lot.OpenEpoch:
			a.writes.ghost(it)
		case slices.ContainsFunc(had, knownEvent.isVoid):
			a.writes.late(it)
		case it.Kind == drop.KindVoid:
			a.stopAt(w, it, fault.StopUnfoldable, "a void does not come from Redis")
		case double || slices.ContainsFunc(had, func(k knownEvent) bool { return !k.dead }):
			a.stopAt(w, it, fault.StopFork, "another event has the same place")
		case it.Epoch > w.lot.OpenEpoch:
			a.stopAt(w, it, fault.StopUnfoldable, fmt.Sprintf("epoch %d was never issued", it.Epoch))
		case it.Seq <= w.lot.Watermark.Seq:
			a.stopAt(w, it, fault.StopFork, "the lot's history has passed its place without it")
		default:
			w.fresh[it.Seq] = it
		}
	}
}

// stopAt keeps the event as a dead letter and stops its lot.
func (a *application) stopAt(w *lotWork, it item, code fault.Code, reason string) {
	a.writes.bury(it, code, reason)
	w.lot.stop(code, fmt.Sprintf("event (%d, %d): %s", it.Epoch, it.Seq, reason))
}

// findRun collects the events that follow the watermark without a gap.
func (w *lotWork) findRun(wanted map[drop.NoticeKind]bool) {
	if w.lot == nil || w.lot.Stopped != "" {
		return
	}
	w.fold = newFold(w.lot)
	w.fold.wanted = wanted
	for seq := w.lot.Watermark.Seq + 1; ; seq++ {
		it, ok := w.fresh[seq]
		if !ok {
			it, ok = w.waiting[seq]
		}
		if !ok {
			return
		}
		w.run = append(w.run, it)
	}
}

// foldRun folds what can be folded; the rest of what is fresh waits.
func (a *application) foldRun(w *lotWork) {
	for _, it := range w.run {
		if w.lot.Stopped != "" {
			break
		}
		if bad := w.fold.next(it); bad != nil {
			a.stopAt(w, it, bad.code, bad.reason)
		} else {
			a.result.Folded++
		}
		w.changed = true
		if _, waited := w.waiting[it.Seq]; waited {
			a.writes.unwait = append(a.writes.unwait, placeOf(it.Event))
			w.lot.Waiting--
		} else {
			delete(w.fresh, it.Seq)
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(w.fresh)) {
		a.writes.wait = append(a.writes.wait, w.fresh[seq])
		w.lot.Waiting++
	}
	a.result.Waiting += len(w.fresh)
}
