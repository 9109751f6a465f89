package ledger

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// writes collects what a transaction writes, so that each table takes one statement and all of them one trip.
type writes struct {
	dead   []deadLetter
	due    []RefundDue
	wait   []item
	unwait []place
}

type deadLetter struct {
	digest [sha256.Size]byte
	place
	code   fault.Code
	reason string
	at     time.Time // zero: not an event
	line   string
}

// bury keeps an event that will not be folded.
func (w *writes) bury(it item, code fault.Code, reason string) {
	w.dead = append(w.dead, deadLetter{it.Digest(), placeOf(it.Event), code, reason, it.Time, it.line})
}

// ghost keeps an event of a closed epoch that is not part of its history.
func (w *writes) ghost(it item) {
	w.bury(it, fault.StopGhost, "its epoch was closed without it")
	w.refundGhost(it.Event)
}

// refundGhost makes the money of a ghost due for refund. A confirmation counts as paid, with a reference or not.
func (w *writes) refundGhost(ev drop.Event) {
	if ev.Kind == drop.KindConfirmed || ev.Kind == drop.KindPaidLate {
		w.due = append(w.due, refundDue(ev, ev.User, WhyGhost))
	}
}

// poison keeps a line that is not an event. Bytes that no text column takes are written as a quoted string.
func (w *writes) poison(p drop.Poison) {
	line := p.Raw
	if !utf8.ValidString(line) || strings.ContainsRune(line, 0) {
		line = strconv.QuoteToASCII(line)
	}
	digest := sha256.Sum256([]byte(strings.Join([]string{"poison", string(p.Lot), strconv.FormatInt(p.Epoch, 10), p.Raw}, "\t")))
	w.dead = append(w.dead, deadLetter{digest, place{p.Lot, drop.Watermark{Epoch: p.Epoch}}, fault.Invalid, p.Reason, time.Time{}, line})
}

// The statements. Each takes one array a column; a reader of a file sees the table's columns in order.
var (
	//go:embed sql/insert_journal.sql
	insertJournalSQL string
	//go:embed sql/upsert_reservations.sql
	upsertReservationsSQL string
	//go:embed sql/upsert_allocations.sql
	upsertAllocationsSQL string
	//go:embed sql/insert_refunds_due.sql
	insertRefundsDueSQL string
	//go:embed sql/update_lots.sql
	updateLotsSQL string
)

// write sends everything in one trip.
func (a *application) write(ctx context.Context, tx pgx.Tx) error {
	batch := &pgx.Batch{}
	var folds []*fold
	var changed []*Lot
	for _, id := range a.ids() {
		w := a.lots[id]
		if w.fold != nil && len(w.fold.journal) > 0 {
			folds = append(folds, w.fold)
			a.writes.due = append(a.writes.due, w.fold.due...)
		}
		if w.lot != nil && w.changed {
			changed = append(changed, w.lot)
		}
	}
	queueFolds(batch, folds)
	a.writes.queueWaiting(batch)
	var buried int64
	a.writes.queueDead(batch, &buried)
	a.writes.queueRefundsDue(batch)
	a.queueLots(batch, changed)
	if batch.Len() > 0 {
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
	}
	a.result.Dead = int(buried)
	a.result.Duplicates += len(a.writes.dead) - a.result.Dead
	return nil
}

func queueFolds(batch *pgx.Batch, folds []*fold) {
	var j journalColumns
	var r reservationColumnsOf
	var p allocationColumns
	var e entryColumns
	for _, f := range folds {
		lot := string(f.lot.Lot)
		for _, row := range f.journal {
			j.add(lot, row)
		}
		for _, n := range slices.Sorted(maps.Keys(f.touched)) {
			r.add(lot, f.reservations[n])
		}
		for _, n := range slices.Sorted(maps.Keys(f.paid)) {
			p.add(lot, f.allocations[n])
		}
		for _, entry := range f.entries {
			e.add(lot, entry)
		}
	}
	j.queue(batch)
	r.queue(batch)
	p.queue(batch)
	e.queue(batch)
}

type journalColumns struct {
	lots, kinds, lines []string
	epochs, seqs       []int64
	reservations       []*int64
	times              []time.Time
	hashes             [][]byte
}

func (c *journalColumns) add(lot string, row journalRow) {
	c.lots, c.kinds, c.lines = append(c.lots, lot), append(c.kinds, string(row.Kind)), append(c.lines, row.line)
	c.epochs, c.seqs = append(c.epochs, row.Epoch), append(c.seqs, row.Seq)
	c.times, c.hashes = append(c.times, row.Time), append(c.hashes, row.hash)
	var n *int64
	if !row.IsLotEvent() {
		n = &row.Reservation.N
	}
	c.reservations = append(c.reservations, n)
}

func (c *journalColumns) queue(batch *pgx.Batch) {
	if len(c.lots) > 0 {
		batch.Queue(insertJournalSQL, c.lots, c.epochs, c.seqs, c.kinds, c.reservations, c.times, c.lines, c.hashes)
	}
}

type reservationColumnsOf struct {
	lots, attempts, users, states, refs, keys, asked []string
	ns, qtys, refunded, rests, lastSeqs, from        []int64
	deadlines, created, changed                      []time.Time
	rejected                                         []bool
}

func (c *reservationColumnsOf) add(lot string, r *Reservation) {
	c.lots, c.ns, c.attempts, c.users = append(c.lots, lot), append(c.ns, r.ID.N), append(c.attempts, r.ID.Attempt), append(c.users, r.User)
	c.states, c.qtys, c.refunded, c.rests = append(c.states, string(r.State)), append(c.qtys, r.Qty), append(c.refunded, r.Refunded), append(c.rests, r.Rest)
	c.deadlines, c.created, c.changed = append(c.deadlines, r.Deadline), append(c.created, r.Created), append(c.changed, r.Changed)
	c.lastSeqs, c.refs, c.from = append(c.lastSeqs, r.LastSeq), append(c.refs, r.Ref), append(c.from, r.From)
	c.keys, c.asked, c.rejected = append(c.keys, r.Key), append(c.asked, r.Asked), append(c.rejected, r.Rejected)
}

func (c *reservationColumnsOf) queue(batch *pgx.Batch) {
	if len(c.lots) > 0 {
		batch.Queue(upsertReservationsSQL, c.lots, c.ns, c.attempts, c.users, c.states, c.qtys, c.refunded, c.rests,
			c.deadlines, c.created, c.changed, c.lastSeqs, c.refs, c.from, c.keys, c.asked, c.rejected)
	}
}

type allocationColumns struct {
	lots, attempts, users, refs, states, reasons []string
	ns, units, refunded, epochs, seqs, entries   []int64
	times                                        []time.Time
}

func (c *allocationColumns) add(lot string, p *allocation) {
	c.lots, c.ns, c.attempts, c.users = append(c.lots, lot), append(c.ns, p.n), append(c.attempts, p.attempt), append(c.users, p.user)
	c.units, c.refunded, c.refs = append(c.units, p.units), append(c.refunded, p.refunded), append(c.refs, p.ref)
	c.epochs, c.seqs, c.times = append(c.epochs, p.confirmed.Epoch), append(c.seqs, p.confirmed.Seq), append(c.times, p.at)
	c.states, c.reasons, c.entries = append(c.states, p.state), append(c.reasons, p.reason), append(c.entries, int64(p.entries))
}

func (c *allocationColumns) queue(batch *pgx.Batch) {
	if len(c.lots) > 0 {
		batch.Queue(upsertAllocationsSQL, c.lots, c.ns, c.attempts, c.users, c.units, c.refunded, c.refs, c.epochs, c.seqs, c.times, c.states, c.reasons, c.entries)
	}
}

// entryColumns are refunds: a sale is written when it is finalised.
type entryColumns struct {
	lots, attempts, users, refs []string
	ns, entries, units          []int64
}

func (c *entryColumns) add(lot string, e ledgerEntry) {
	c.lots, c.ns, c.entries, c.units = append(c.lots, lot), append(c.ns, e.n), append(c.entries, int64(e.entry)), append(c.units, e.units)
	c.attempts, c.users, c.refs = append(c.attempts, e.attempt), append(c.users, e.user), append(c.refs, e.ref)
}

func (c *entryColumns) queue(batch *pgx.Batch) {
	if len(c.lots) > 0 {
		batch.Queue(`INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref)
			SELECT lot, n, entry, 'refund', units, attempt, user_id, ref
			FROM unnest($1::text[], $2::bigint[], $3::int[], $4::bigint[], $5::text[], $6::text[], $7::text[]) AS t(lot, n, entry, units, attempt, user_id, ref)`,
			c.lots, c.ns, c.entries, c.units, c.attempts, c.users, c.refs)
	}
}

// queueWaiting writes what waits and removes what waits no more.
func (w *writes) queueWaiting(batch *pgx.Batch) {
	if len(w.wait) > 0 {
		var lots, lines []string
		var epochs, seqs []int64
		var times []time.Time
		for _, it := range w.wait {
			lots, epochs, seqs = append(lots, string(it.Lot)), append(epochs, it.Epoch), append(seqs, it.Seq)
			times, lines = append(times, it.Time), append(lines, it.line)
		}
		batch.Queue(`INSERT INTO waiting_events (lot, epoch, seq, event_at, line) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::timestamptz[], $5::text[])`,
			lots, epochs, seqs, times, lines)
	}
	if len(w.unwait) > 0 {
		var lots []string
		var epochs, seqs []int64
		for _, p := range w.unwait {
			lots, epochs, seqs = append(lots, string(p.lot)), append(epochs, p.Epoch), append(seqs, p.Seq)
		}
		batch.Queue(`DELETE FROM waiting_events w USING unnest($1::text[], $2::bigint[], $3::bigint[]) AS k(lot, epoch, seq)
			WHERE w.lot = k.lot AND w.epoch = k.epoch AND w.seq = k.seq`, lots, epochs, seqs)
	}
}

// queueDead writes the dead letters and counts those that are new into written.
func (w *writes) queueDead(batch *pgx.Batch, written *int64) {
	if len(w.dead) == 0 {
		return
	}
	var digests [][]byte
	var lots, codes, reasons, lines []string
	var epochs, seqs []int64
	var times []*time.Time
	for _, d := range w.dead {
		digests, lots, epochs, seqs = append(digests, d.digest[:]), append(lots, string(d.lot)), append(epochs, d.Epoch), append(seqs, d.Seq)
		codes, reasons, times, lines = append(codes, string(d.code)), append(reasons, d.reason), append(times, nullTime(d.at)), append(lines, d.line)
	}
	batch.Queue(`INSERT INTO dead_letters (digest, lot, epoch, seq, code, reason, event_at, line)
		SELECT * FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::timestamptz[], $8::text[])
		ON CONFLICT (digest) DO NOTHING`, digests, lots, epochs, seqs, codes, reasons, times, lines).
		Exec(func(tag pgconn.CommandTag) error {
			*written = tag.RowsAffected()
			return nil
		})
}

func (w *writes) queueRefundsDue(batch *pgx.Batch) {
	if len(w.due) == 0 {
		return
	}
	var lots, attempts, users, refs, whys []string
	var epochs, seqs, ns, units []int64
	var times []time.Time
	for _, d := range w.due {
		lots, epochs, seqs = append(lots, string(d.Reservation.Lot)), append(epochs, d.Event.Epoch), append(seqs, d.Event.Seq)
		ns, attempts, users = append(ns, d.Reservation.N), append(attempts, d.Reservation.Attempt), append(users, d.User)
		units, refs, whys, times = append(units, d.Units), append(refs, d.Ref), append(whys, string(d.Why)), append(times, d.At)
	}
	batch.Queue(insertRefundsDueSQL, lots, epochs, seqs, ns, attempts, users, units, refs, whys, times)
}

// queueLots writes the lots and reports those that this call stopped.
func (a *application) queueLots(batch *pgx.Batch, changed []*Lot) {
	if len(changed) == 0 {
		return
	}
	var ids, names, lates, statuses, stopped, reasons, actors, adjustReasons []string
	var capacity, limits, holds, maxHolds, held, sold, epochs, seqs, waiting []int64
	var opens, closes, eventAt []*time.Time
	var hashes [][]byte
	for _, l := range changed {
		ids, names, capacity, limits = append(ids, string(l.Lot)), append(names, l.Name), append(capacity, l.Stock), append(limits, l.Limit)
		holds, maxHolds = append(holds, l.Hold.Milliseconds()), append(maxHolds, l.MaxHold.Milliseconds())
		opens, closes = append(opens, nullTime(l.Opens)), append(closes, nullTime(l.Closes))
		lates, statuses = append(lates, string(l.Late)), append(statuses, string(l.Status))
		held, sold, epochs, seqs = append(held, l.Held), append(sold, l.Sold), append(epochs, l.Watermark.Epoch), append(seqs, l.Watermark.Seq)
		hashes, waiting, eventAt = append(hashes, l.hash), append(waiting, l.Waiting), append(eventAt, nullTime(l.EventAt))
		stopped, reasons = append(stopped, string(l.Stopped)), append(reasons, l.StoppedReason)
		actors, adjustReasons = append(actors, l.AdjustActor), append(adjustReasons, l.AdjustReason)
		if l.Stopped != "" && l.StoppedAt.IsZero() {
			a.result.Stopped = append(a.result.Stopped, StoppedLot{l.Lot, l.Stopped, l.StoppedReason})
		}
	}
	batch.Queue(updateLotsSQL, ids, names, capacity, limits, holds, maxHolds, opens, closes, lates, statuses, held, sold, epochs, seqs, hashes,
		waiting, eventAt, stopped, reasons, actors, adjustReasons)
}
