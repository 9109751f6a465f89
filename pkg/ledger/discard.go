package ledger

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// gapLimit is how many places of a gap one call fills.
const gapLimit = 50_000

//go:embed sql/missing_places.sql
var missingPlacesSQL string

// discarding is a settlement under way: the voids by seq, and the letters that are settled by it.
type discarding struct {
	Settlement
	*lotWork
	a       *application
	letters []int64
	buried  [][]byte // digests of waiting events that became dead letters
	done    SettledLot
}

func (l *Ledger) discard(ctx context.Context, tx pgx.Tx, s Settlement, a *application) (SettledLot, error) {
	d := &discarding{Settlement: s, lotWork: a.lots[s.Lot], a: a}
	d.fresh = map[int64]item{}
	if err := d.giveUpGap(ctx, tx); err != nil {
		return d.done, err
	}
	if err := d.giveUpLetters(ctx, tx, l.installation.ID); err != nil {
		return d.done, err
	}
	if err := d.giveUpPlaces(ctx, tx); err != nil {
		return d.done, err
	}
	if d.lot != nil {
		d.changed = true
		if err := liftStop(ctx, tx, d.lot, d.letters); err != nil {
			return d.done, err
		}
	}
	d.neverIssued()
	if err := a.foldAll(ctx, tx); err != nil {
		return d.done, err
	}
	if len(d.buried) > 0 {
		if _, err := tx.Exec(ctx, `UPDATE dead_letters SET settled_at = now(), settled_how = 'discarded' WHERE digest = ANY($1)`, d.buried); err != nil {
			return d.done, err
		}
	}
	return d.done, markSettled(ctx, tx, d.letters, SettledDiscarded)
}

// void puts a void in a place of the open epoch beyond the watermark.
func (d *discarding) void(at drop.Watermark) error {
	if d.lot.Watermark.Seq == 0 && at.Seq == 1 {
		return fault.New(fault.Conflict, "the first event of the lot %s is its first load: without it nothing can be recorded", d.lot.Lot).
			WithHint("archive the lot, and seed a new one under another name")
	}
	d.fresh[at.Seq] = d.newVoid(at)
	return nil
}

func (d *discarding) newVoid(at drop.Watermark) item {
	ev := drop.Event{Installation: d.a.installation, Lot: d.lot.Lot, Epoch: at.Epoch, Seq: at.Seq, Kind: drop.KindVoid, Time: d.lot.EventAt, Actor: d.Actor, Reason: d.Reason}
	if ev.Time.IsZero() {
		ev.Time = time.Now().UTC().Truncate(time.Millisecond)
	}
	return item{ev, ev.Line()}
}

// ahead reports whether a place is still to be folded in the open epoch.
func (d *discarding) ahead(at drop.Watermark) bool {
	return d.lot != nil && at.Epoch == d.lot.OpenEpoch && at.Seq > d.lot.Watermark.Seq
}

// giveUpLetters settles the dead letters. One whose place nothing else has leaves a void there.
func (d *discarding) giveUpLetters(ctx context.Context, tx pgx.Tx, installation string) error {
	open, before, err := openLetters(ctx, tx, d.Settlement, append(d.Letters, d.letters...))
	if err != nil {
		return err
	}
	d.done.Items = append(d.done.Items, before...)
	d.letters = nil
	for _, letter := range open {
		d.letters = append(d.letters, letter.ID)
		d.done.Items = append(d.done.Items, letter.as(SettledDiscarded, string(letter.Code)+": "+letter.Reason))
		it, isEvent := letter.item(installation)
		if !isEvent {
			continue
		}
		if letter.Code != fault.StopGhost { // the money of a ghost is due already
			d.a.writes.refundDiscarded(it.Event)
		}
		at := it.Watermark()
		if !d.ahead(at) {
			continue
		}
		waits, err := d.waitsAt(ctx, tx, at)
		if err != nil {
			return err
		}
		if waits == nil { // else it is a fork of what waits, which stays
			if err := d.void(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitsAt returns the event that waits in a place; nil if there is none.
func (d *discarding) waitsAt(ctx context.Context, tx pgx.Tx, at drop.Watermark) (*item, error) {
	rows, err := tx.Query(ctx, `SELECT lot, epoch, seq, event_at, line FROM waiting_events WHERE lot = $1 AND epoch = $2 AND seq = $3`, string(d.lot.Lot), at.Epoch, at.Seq)
	if err != nil {
		return nil, err
	}
	list, err := collectStored(rows)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	ev, err := list[0].decode(d.a.installation)
	return &item{ev, list[0].line}, err
}

// giveUpPlaces discards what waits in the named places, or was lost.
func (d *discarding) giveUpPlaces(ctx context.Context, tx pgx.Tx) error {
	for _, at := range d.Places {
		if _, done := d.fresh[at.Seq]; done && d.ahead(at) {
			continue
		}
		one := Settled{Epoch: at.Epoch, From: at.Seq, To: at.Seq, Result: SettledDiscarded, Reason: "lost"}
		waits, err := d.waitsAt(ctx, tx, at)
		switch {
		case err != nil:
			return err
		case waits != nil && waits.Kind == drop.KindVoid:
			one.Result, one.Reason = SettledUnchanged, "it was discarded before"
		case waits != nil:
			one.Reason = string(waits.Kind) + " event that was waiting"
			err = d.replace(at, *waits)
		default:
			err = d.giveUpLost(ctx, tx, at, &one)
		}
		if err != nil {
			return err
		}
		d.done.Items = append(d.done.Items, one)
	}
	return nil
}

// replace puts a void in the place of an event that waits, which becomes a dead letter.
func (d *discarding) replace(at drop.Watermark, waits item) error {
	digest := waits.DigestOf(waits.line)
	d.buried = append(d.buried, digest[:])
	d.a.writes.bury(waits, fault.StopGhost, "it was discarded while it waited")
	d.a.writes.refundDiscarded(waits.Event)
	d.a.writes.unwait = append(d.a.writes.unwait, placeOf(waits.Event))
	d.lot.Waiting--
	return d.void(at)
}

// giveUpLost discards a place that holds no waiting event.
func (d *discarding) giveUpLost(ctx context.Context, tx pgx.Tx, at drop.Watermark, one *Settled) error {
	var line string
	var letter int64
	err := tx.QueryRow(ctx, `SELECT coalesce((SELECT line FROM reservation_events WHERE lot = $1 AND epoch = $2 AND seq = $3), ''),
		coalesce((SELECT min(id) FROM dead_letters WHERE lot = $1 AND epoch = $2 AND seq = $3 AND settled_at IS NULL), 0)`, string(d.lot.Lot), at.Epoch, at.Seq).Scan(&line, &letter)
	where := fmt.Sprintf("%s/%d/%d", d.lot.Lot, at.Epoch, at.Seq)
	switch {
	case err != nil:
		return err
	case line != "" && (knownEvent{stored: stored{line: line}}).isVoid():
		one.Result, one.Reason = SettledUnchanged, "it was discarded before"
		return nil
	case line != "":
		return fault.New(fault.Conflict, "the event %s is recorded: what is recorded stays", where).WithHint("see it: dropctl ledger show --lot %s", d.lot.Lot)
	case letter != 0:
		return fault.New(fault.Conflict, "the event %s is the dead letter %d", where, letter).WithHint("name that: dropctl outbox discard %d", letter)
	case d.Kept[at]:
		return fault.New(fault.Conflict, "the event %s is still in the outbox", where).WithHint("let a worker record it: dropctl worker --until-idle")
	case !d.ahead(at):
		return fault.New(fault.Conflict, "%s is no place that the ledger waits for: it stands at %d/%d, and the epoch %d is open", where,
			d.lot.Watermark.Epoch, d.lot.Watermark.Seq, d.lot.OpenEpoch)
	}
	return d.void(at)
}

// giveUpGap finds every place between the watermark and the newest known event that nobody has. The lines that were no
// events are what is lacking there, as far as anybody can tell.
func (d *discarding) giveUpGap(ctx context.Context, tx pgx.Tx) error {
	if !d.Gap {
		return nil
	}
	rows, err := tx.Query(ctx, `SELECT id FROM dead_letters WHERE lot = $1 AND epoch >= $2 AND seq = 0 AND settled_at IS NULL`, string(d.lot.Lot), d.lot.OpenEpoch)
	if err != nil {
		return err
	}
	if d.letters, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return err
	}
	until := d.Until.Seq
	if d.Until.Epoch != d.lot.OpenEpoch {
		until = 0
	}
	kept := make([]int64, 0, len(d.Kept))
	for at := range d.Kept {
		if at.Epoch == d.lot.OpenEpoch {
			kept = append(kept, at.Seq)
		}
	}
	rows, err = tx.Query(ctx, missingPlacesSQL, string(d.lot.Lot), d.lot.OpenEpoch, d.lot.Watermark.Seq, until, kept, gapLimit+1)
	if err != nil {
		return err
	}
	seqs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	if d.done.More = len(seqs) > gapLimit; d.done.More {
		seqs = seqs[:gapLimit]
	}
	return d.voidAll(seqs)
}

func (d *discarding) voidAll(seqs []int64) error {
	for _, seq := range seqs {
		if err := d.void(drop.Watermark{Epoch: d.lot.OpenEpoch, Seq: seq}); err != nil {
			return err
		}
		if last := len(d.done.Items) - 1; last >= 0 && d.done.Items[last].To == seq-1 {
			d.done.Items[last].To = seq
			continue
		}
		d.done.Items = append(d.done.Items, Settled{Epoch: d.lot.OpenEpoch, From: seq, To: seq, Result: SettledDiscarded, Reason: "lost"})
	}
	return nil
}

// neverIssued stops a lot of which Redis is in an epoch that this database never issued, as after it was put back: none
// of that can be recorded, and a rebuild has to use a number beyond. The dead letter keeps it.
func (d *discarding) neverIssued() {
	if !d.Gap || d.Until.Epoch <= d.lot.OpenEpoch {
		return
	}
	d.a.stopAt(d.lotWork, d.newVoid(d.Until), fault.StopUnfoldable, fmt.Sprintf("epoch %d was never issued", d.Until.Epoch))
	d.done.Items = append(d.done.Items, Settled{Epoch: d.Until.Epoch, From: d.Until.Seq, To: d.Until.Seq, Result: SettledDiscarded, Reason: "of an epoch that this ledger never issued"})
	slices.SortStableFunc(d.done.Items, func(x, y Settled) int {
		return compareWatermarks(drop.Watermark{Epoch: x.Epoch, Seq: x.From}, drop.Watermark{Epoch: y.Epoch, Seq: y.From})
	})
}
