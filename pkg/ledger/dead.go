package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// What could not be recorded is settled in one of two ways: it is tried again, or an operator gives it up and the
// ledger writes a void in its place. Either goes on with the fold where nothing else stops the lot.

// Settlement names what of one lot is to be settled, and for whom.
type Settlement struct {
	Lot     drop.LotID              // "": letters whose lot is not known
	Letters []int64                 // ids of dead letters
	Places  []drop.Watermark        // of events that wait or were lost; to be discarded
	Gap     bool                    // discard: all places before Until that nobody has, and lines that were no events
	Until   drop.Watermark          // where Redis stands; zero: not known, the newest waiting event counts
	Kept    map[drop.Watermark]bool // places that the outbox still has
	Actor   string
	Reason  string
	DryRun  bool
}

// The ways in which a dead letter or a place ends.
const (
	SettledApplied   = "applied"   // folded now, or the ledger had it already
	SettledWaiting   = "waiting"   // kept until what is before it arrives, or its lot goes on
	SettledDead      = "dead"      // it cannot be recorded now either
	SettledDiscarded = "discarded" // given up
	SettledUnchanged = "unchanged" // it was settled before
)

// Settled says what became of one dead letter, or of places that follow each other.
type Settled struct {
	ID     int64 // of the dead letter; 0: places without one
	Epoch  int64
	From   int64 // first seq
	To     int64 // last seq
	Result string
	Code   fault.Code // of one that stays dead
	Reason string
}

// SettledLot is what became of a lot.
type SettledLot struct {
	Items   []Settled
	Folded  int            // events folded by it, voids included
	Mark    drop.Watermark // up to which the ledger has folded the lot now
	Waiting int64          // events that still wait
	Stopped fault.Code     // why the lot is still, or again, stopped
	Due     int            // payments that became due for refund
	More    bool           // the gap is longer than one call fills
}

// errDryRun rolls back what was tried.
var errDryRun = errors.New("only tried")

// Retry applies dead letters of a lot anew, as if they came just now. A stop that they caused is lifted for it, and
// comes back if they still do not fit. Those that the ledger has then are settled.
// Errors: fault.NotFound for a letter that the lot does not have.
func (l *Ledger) Retry(ctx context.Context, s Settlement) (SettledLot, error) {
	return l.settle(ctx, s, "retry", l.retry)
}

// Discard gives dead letters and places up. What has no other event in its place is folded as a void, so that what
// follows can be folded. Payments of discarded confirmations become due for refund. What arrives for such a place later
// is a dead letter that stops nothing.
// Errors: fault.NotFound for an unknown lot or letter; fault.Conflict for a place that is recorded, closed, or still in
// the outbox, and for a lot's first load.
func (l *Ledger) Discard(ctx context.Context, s Settlement) (SettledLot, error) {
	return l.settle(ctx, s, "discard", l.discard)
}

type settling func(ctx context.Context, tx pgx.Tx, s Settlement, w *application) (SettledLot, error)

// settle carries a settlement out in one transaction, with an account of it; a dry run is the same, rolled back.
func (l *Ledger) settle(ctx context.Context, s Settlement, what string, do settling) (done SettledLot, err error) {
	act := func(ctx context.Context) (bool, string, error) {
		ctx, cancel := l.within(ctx)
		defer cancel()
		err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) (err error) {
			if done, err = l.settleIn(ctx, tx, s, do); err == nil && s.DryRun {
				err = errDryRun
			}
			return err
		})
		return true, fmt.Sprintf("%d events folded", done.Folded), err
	}
	if s.DryRun {
		_, _, err = act(ctx)
		if errors.Is(err, errDryRun) {
			return done, nil
		}
		return done, l.fail(err, what+" of dead letters")
	}
	letters, err := l.DeadLettersByID(ctx, s.Letters)
	if err != nil {
		return done, err
	}
	evidence := settlementEvidence{Places: s.Places, Gap: s.Gap, Redis: s.Until}
	for _, d := range letters {
		evidence.Letters = append(evidence.Letters, letterEvidence{d.ID, d.Epoch, d.Seq, d.Code, d.Reason, d.Line})
	}
	repair := drop.Repair{Lot: s.Lot, What: what, Actor: s.Actor, Reason: s.Reason, Evidence: evidence}
	err = l.Repair(ctx, repair, act)
	return done, l.fail(err, what+" of dead letters")
}

// settlementEvidence is what was settled, for the account that is kept of it.
type settlementEvidence struct {
	Letters []letterEvidence `json:"letters,omitempty"`
	Places  []drop.Watermark `json:"places,omitempty"`
	Gap     bool             `json:"gap,omitempty"`
	Redis   drop.Watermark   `json:"redis"` // where it stood; zero: it was not asked
}

type letterEvidence struct {
	ID     int64      `json:"id"`
	Epoch  int64      `json:"epoch"`
	Seq    int64      `json:"seq"`
	Code   fault.Code `json:"code"`
	Reason string     `json:"reason"`
	Line   string     `json:"line"`
}

// settleIn locks the lot, lifts its stop if nothing else holds it, and lets do settle.
func (l *Ledger) settleIn(ctx context.Context, tx pgx.Tx, s Settlement, do settling) (SettledLot, error) {
	a := newApplication(l.installation.ID, nil, nil)
	w := a.work(s.Lot)
	if err := a.lock(ctx, tx); err != nil {
		return SettledLot{}, err
	}
	if w.lot == nil && (s.Gap || len(s.Places) > 0) {
		return SettledLot{}, fault.New(fault.NotFound, "the ledger does not know the lot %s", s.Lot)
	}
	done, err := do(ctx, tx, s, a)
	if err != nil {
		return done, err
	}
	done.Due = len(a.writes.due)
	if w.lot != nil {
		done.Mark, done.Waiting, done.Stopped = w.lot.Watermark, w.lot.Waiting, w.lot.Stopped
	}
	if w.fold != nil {
		done.Folded = len(w.fold.journal)
	}
	return done, nil
}

// DeadLettersByID returns these dead letters, settled or not, in the order of their ids. One that does not exist is absent.
func (l *Ledger) DeadLettersByID(ctx context.Context, ids []int64) ([]DeadLetter, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	letters, err := deadByID(ctx, l.pool, ids)
	return letters, l.fail(err, "reading dead letters")
}

func deadByID(ctx context.Context, q querier, ids []int64) ([]DeadLetter, error) {
	rows, err := q.Query(ctx, `SELECT `+deadColumns+` FROM dead_letters WHERE id = ANY($1) ORDER BY id`, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanDead)
}

// openLetters returns the letters that are still to be settled, and what is to be said of the others.
func openLetters(ctx context.Context, tx pgx.Tx, s Settlement, ids []int64) (open []DeadLetter, before []Settled, err error) {
	letters, err := deadByID(ctx, tx, ids)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		i := slices.IndexFunc(letters, func(d DeadLetter) bool { return d.ID == id && d.Lot == s.Lot })
		switch {
		case i < 0:
			return nil, nil, fault.New(fault.NotFound, "there is no dead letter %d", id).WithHint("see what there is: dropctl outbox list --state dead")
		case letters[i].Settled != "":
			before = append(before, letters[i].as(SettledUnchanged, "it was "+letters[i].Settled+" before"))
		default:
			open = append(open, letters[i])
		}
	}
	return open, before, nil
}

func (d DeadLetter) as(result, reason string) Settled {
	return Settled{ID: d.ID, Epoch: d.Epoch, From: d.Seq, To: d.Seq, Result: result, Reason: reason}
}

// item reads the letter back as an event; false if it is none.
func (d DeadLetter) item(installation string) (item, bool) {
	if d.At.IsZero() {
		return item{}, false
	}
	s := stored{place{d.Lot, drop.Watermark{Epoch: d.Epoch, Seq: d.Seq}}, d.At, d.Line}
	ev, err := s.decode(installation)
	return item{ev, d.Line}, err == nil
}

// Event reads the letter back as the event that it was; false if it is none that can be read.
func (d DeadLetter) Event(installation string) (drop.Event, bool) {
	it, ok := d.item(installation)
	return it.Event, ok
}

// liftStop lets the fold of a stopped lot go on unless it is stopped for something that none of the settled letters
// said: another letter, or units that Redis counted twice.
func liftStop(ctx context.Context, tx pgx.Tx, lot *Lot, settled []int64) error {
	if lot == nil || lot.Stopped == "" || lot.Stopped == fault.StopOverCapacity {
		return nil
	}
	var code fault.Code
	var reason string
	err := tx.QueryRow(ctx, `SELECT code, reason FROM dead_letters WHERE lot = $1 AND epoch >= $2 AND settled_at IS NULL AND NOT id = ANY($3)
		AND code IN ('fork', 'unfoldable', 'load_mismatch', 'invalid') ORDER BY id LIMIT 1`, string(lot.Lot), lot.OpenEpoch, settled).Scan(&code, &reason)
	if errors.Is(err, pgx.ErrNoRows) {
		lot.Stopped, lot.StoppedReason, lot.StoppedAt = "", "", time.Time{}
		return nil
	}
	if err == nil {
		lot.StoppedReason = reason
		if lot.Stopped = code; code == fault.Invalid {
			lot.Stopped = fault.StopUnfoldable
		}
	}
	return err
}

func markSettled(ctx context.Context, tx pgx.Tx, ids []int64, how string) error {
	_, err := tx.Exec(ctx, `UPDATE dead_letters SET settled_at = now(), settled_how = $2 WHERE id = ANY($1) AND settled_at IS NULL`, ids, how)
	return err
}

func (l *Ledger) retry(ctx context.Context, tx pgx.Tx, s Settlement, a *application) (done SettledLot, err error) {
	w := a.lots[s.Lot]
	open, before, err := openLetters(ctx, tx, s, s.Letters)
	if err != nil {
		return done, err
	}
	done.Items = before
	a.retried = map[place][]string{}
	var ids []int64
	items := map[int64]item{}
	for _, d := range open {
		it, isEvent := d.item(l.installation.ID)
		if !isEvent {
			done.Items = append(done.Items, d.as(SettledDead, "it is not an event: it can only be discarded"))
			continue
		}
		ids, items[d.ID] = append(ids, d.ID), it
		a.retried[placeOf(it.Event)] = append(a.retried[placeOf(it.Event)], d.Line)
		w.incoming = append(w.incoming, it)
	}
	if len(ids) == 0 {
		return done, nil
	}
	slices.SortStableFunc(w.incoming, func(x, y item) int { return placeOf(x.Event).compare(placeOf(y.Event)) })
	if err := liftStop(ctx, tx, w.lot, ids); err != nil {
		return done, err
	}
	if err := a.take(ctx, tx); err != nil {
		return done, err
	}
	var applied []int64
	for _, d := range open {
		it, isEvent := items[d.ID]
		if !isEvent {
			continue
		}
		one := d.as(SettledApplied, "")
		if i := slices.IndexFunc(a.writes.dead, func(x deadLetter) bool { return x.place == placeOf(it.Event) && x.line == it.line }); i >= 0 {
			one.Result, one.Code, one.Reason = SettledDead, a.writes.dead[i].code, a.writes.dead[i].reason
		} else {
			applied = append(applied, d.ID)
			if slices.ContainsFunc(a.writes.wait, func(x item) bool { return placeOf(x.Event) == placeOf(it.Event) }) {
				one.Result = SettledWaiting
			}
		}
		done.Items = append(done.Items, one)
	}
	return done, markSettled(ctx, tx, applied, SettledApplied)
}
