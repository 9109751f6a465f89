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
	paid   []payment // that confirmed units: what was due of them is settled
	wait   []item
	unwait []place
}

// payment is a payment reference given for an attempt to buy.
type payment struct {
	lot     drop.LotID
	attempt string
	ref     string
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
	w.dead = append(w.dead, deadLetter{it.DigestOf(it.line), placeOf(it.Event), code, reason, it.Time, it.line})
}

// ghost keeps an event of a closed epoch that is not part of its history.
func (w *writes) ghost(it item) {
	w.bury(it, fault.StopGhost, "its epoch was closed without it")
	w.refundGhost(it.Event)
}

// late keeps an event whose place an operator has given up.
func (w *writes) late(it item) {
	w.bury(it, fault.StopGhost, "its place was discarded")
	w.refundDiscarded(it.Event)
}

// refundDiscarded makes the money of a discarded event due for refund.
func (w *writes) refundDiscarded(ev drop.Event) {
	if ev.Kind == drop.KindConfirmed || ev.Kind == drop.KindPaidLate {
		w.due = append(w.due, refundDue(ev, ev.User, WhyDiscarded))
	}
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
	w.dead = append(w.dead, deadLetter{poisonDigest(p), place{p.Lot, drop.Watermark{Epoch: p.Epoch}}, fault.Invalid, p.Reason, time.Time{}, line})
}

func poisonDigest(p drop.Poison) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join([]string{"poison", string(p.Lot), strconv.FormatInt(p.Epoch, 10), p.Raw}, "\t")))
}

var (
	//go:embed sql/update_reservations.sql
	updateReservationsSQL string
	//go:embed sql/update_allocations.sql
	updateAllocationsSQL string
	//go:embed sql/insert_refunds_due.sql
	insertRefundsDueSQL string
	//go:embed sql/settle_refunds_due.sql
	settleRefundsDueSQL string
	//go:embed sql/update_lots.sql
	updateLotsSQL string
)

// write sends everything: new rows of the large tables as COPY, which is the fastest way in, the rest in one trip.
func (a *application) write(ctx context.Context, tx pgx.Tx) error {
	var folded foldedRows
	var changed []*Lot
	for _, id := range a.ids() {
		w := a.lots[id]
		if w.lot != nil && w.changed {
			changed = append(changed, w.lot)
		}
		if w.fold != nil {
			folded.take(w.fold)
			a.writes.due = append(a.writes.due, w.fold.due...)
			a.writes.paid = append(a.writes.paid, w.fold.confirmations...)
		}
	}
	for _, c := range []copier{folded.journal, folded.newReservations, folded.newAllocations} {
		if err := copyIn(ctx, tx, c); err != nil {
			return err
		}
	}
	batch := &pgx.Batch{}
	folded.queue(batch)
	a.writes.queueWaiting(batch)
	var buried int64
	a.writes.queueDead(batch, &buried)
	// What is due is written first: the confirmation that settles it may be of the same call.
	a.writes.queueRefundsDue(batch)
	a.writes.queueSettled(batch)
	a.queueLots(batch, changed)
	if err := a.queueNotices(batch); err != nil {
		return err
	}
	if batch.Len() > 0 {
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
	}
	a.result.Dead = int(buried)
	a.result.Duplicates += len(a.writes.dead) - a.result.Dead
	return nil
}

// foldedRows are what folding adds to the large tables and changes in them.
type foldedRows struct {
	journal         journalCopy
	newReservations reservationCopy
	newAllocations  allocationCopy
	reservations    reservationUpdate
	allocations     allocationUpdate
	refunds         refundInsert
}

func (r *foldedRows) take(f *fold) {
	r.journal = append(r.journal, f.journal...)
	for _, n := range slices.Sorted(maps.Keys(f.touched)) {
		if res := f.reservations[n]; n > f.start {
			r.newReservations = append(r.newReservations, res)
		} else {
			r.reservations.add(res)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(f.paid)) {
		if p := f.allocations[n]; p.confirmed.Seq > f.start {
			r.newAllocations = append(r.newAllocations, p)
		} else {
			r.allocations.add(p)
		}
	}
	for _, e := range f.entries {
		r.refunds.add(e)
	}
}

func (r *foldedRows) queue(batch *pgx.Batch) {
	r.reservations.queue(batch)
	r.allocations.queue(batch)
	r.refunds.queue(batch)
}

// copier is a list of new rows of one table.
type copier interface {
	table() (name string, columns string)
	len() int
	row(i int) []any
}

func copyIn(ctx context.Context, tx pgx.Tx, c copier) error {
	if c.len() == 0 {
		return nil
	}
	name, columns := c.table()
	_, err := tx.CopyFrom(ctx, pgx.Identifier{name}, strings.Split(columns, ", "), pgx.CopyFromSlice(c.len(), func(i int) ([]any, error) { return c.row(i), nil }))
	return err
}

type journalCopy []journalRow

func (c journalCopy) table() (name, columns string) {
	return "reservation_events", "lot, epoch, seq, kind, reservation, event_at, line, hash"
}
func (c journalCopy) len() int { return len(c) }
func (c journalCopy) row(i int) []any {
	r := &c[i]
	var n *int64
	if !r.IsLotEvent() {
		n = &r.Reservation.N
	}
	return []any{string(r.Lot), r.Epoch, r.Seq, string(r.Kind), n, r.Time, r.line, r.hash}
}

type reservationCopy []*drop.Recorded

func (c reservationCopy) table() (name, columns string) { return "reservations", reservationColumns }
func (c reservationCopy) len() int                      { return len(c) }
func (c reservationCopy) row(i int) []any {
	r := c[i]
	return []any{string(r.ID.Lot), r.ID.N, r.ID.Attempt, r.User, string(r.State), r.Qty, r.Refunded, r.Rest, r.Deadline, r.Created, r.Changed, r.LastSeq, r.Ref, r.From, r.Key, r.Asked, r.Rejected}
}

type allocationCopy []*allocation

func (c allocationCopy) table() (name, columns string) {
	return "pending_allocations", "lot, n, attempt, user_id, units, refunded, ref, epoch, seq, confirmed_at, state, reason, entries"
}
func (c allocationCopy) len() int { return len(c) }
func (c allocationCopy) row(i int) []any {
	p := c[i]
	return []any{string(p.lot), p.n, p.attempt, p.user, p.units, p.refunded, p.ref, p.confirmed.Epoch, p.confirmed.Seq, p.at, p.state, p.reason, p.entries}
}

// The updates have one array a column.

type reservationUpdate struct {
	lots, states, refs                  []string
	ns, qtys, refunded, rests, lastSeqs []int64
	deadlines, changed                  []time.Time
}

func (u *reservationUpdate) add(r *drop.Recorded) {
	u.lots, u.ns, u.states, u.qtys = append(u.lots, string(r.ID.Lot)), append(u.ns, r.ID.N), append(u.states, string(r.State)), append(u.qtys, r.Qty)
	u.refunded, u.rests, u.deadlines = append(u.refunded, r.Refunded), append(u.rests, r.Rest), append(u.deadlines, r.Deadline)
	u.changed, u.lastSeqs, u.refs = append(u.changed, r.Changed), append(u.lastSeqs, r.LastSeq), append(u.refs, r.Ref)
}

func (u *reservationUpdate) queue(batch *pgx.Batch) {
	if len(u.lots) > 0 {
		batch.Queue(updateReservationsSQL, u.lots, u.ns, u.states, u.qtys, u.refunded, u.rests, u.deadlines, u.changed, u.lastSeqs, u.refs)
	}
}

type allocationUpdate struct {
	lots, states, reasons        []string
	ns, units, refunded, entries []int64
}

func (u *allocationUpdate) add(p *allocation) {
	u.lots, u.ns, u.units, u.refunded = append(u.lots, string(p.lot)), append(u.ns, p.n), append(u.units, p.units), append(u.refunded, p.refunded)
	u.states, u.reasons, u.entries = append(u.states, p.state), append(u.reasons, p.reason), append(u.entries, int64(p.entries))
}

func (u *allocationUpdate) queue(batch *pgx.Batch) {
	if len(u.lots) > 0 {
		batch.Queue(updateAllocationsSQL, u.lots, u.ns, u.units, u.refunded, u.states, u.reasons, u.entries)
	}
}

// refundInsert writes refund entries only: a sale is written when it is finalised.
type refundInsert struct {
	lots, attempts, users, refs []string
	ns, entries, units          []int64
}

func (c *refundInsert) add(e ledgerEntry) {
	c.lots, c.ns, c.entries, c.units = append(c.lots, string(e.lot)), append(c.ns, e.n), append(c.entries, int64(e.entry)), append(c.units, e.units)
	c.attempts, c.users, c.refs = append(c.attempts, e.attempt), append(c.users, e.user), append(c.refs, e.ref)
}

func (c *refundInsert) queue(batch *pgx.Batch) {
	if len(c.lots) > 0 {
		batch.Queue(`INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref)
			SELECT lot, n, entry, 'refund', units, attempt, user_id, ref
			FROM unnest($1::text[], $2::bigint[], $3::int[], $4::bigint[], $5::text[], $6::text[], $7::text[]) AS t(lot, n, entry, units, attempt, user_id, ref)`,
			c.lots, c.ns, c.entries, c.units, c.attempts, c.users, c.refs)
		// Of a sale that was charged, the money goes back the same way.
		batch.Queue(`INSERT INTO charge_refunds (lot, n, number, entry, units) SELECT k.lot, k.n, c.number, k.entry, -k.units
			FROM unnest($1::text[], $2::bigint[], $3::int[], $4::bigint[]) AS k(lot, n, entry, units)
			CROSS JOIN LATERAL (SELECT number FROM charges WHERE lot = k.lot AND n = k.n AND sold OFFSET 0) c`,
			c.lots, c.ns, c.entries, c.units)
	}
}

// queueWaiting removes what waits no more, and then writes what waits: perhaps in the same place.
func (w *writes) queueWaiting(batch *pgx.Batch) {
	if len(w.unwait) > 0 {
		var lots []string
		var epochs, seqs []int64
		for _, p := range w.unwait {
			lots, epochs, seqs = append(lots, string(p.lot)), append(epochs, p.Epoch), append(seqs, p.Seq)
		}
		batch.Queue(`DELETE FROM waiting_events w USING unnest($1::text[], $2::bigint[], $3::bigint[]) AS k(lot, epoch, seq)
			WHERE w.lot = k.lot AND w.epoch = k.epoch AND w.seq = k.seq`, lots, epochs, seqs)
	}
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

// queueSettled settles what was due of payments that have confirmed units now.
func (w *writes) queueSettled(batch *pgx.Batch) {
	if len(w.paid) == 0 {
		return
	}
	var lots, attempts, refs []string
	for _, p := range w.paid {
		lots, attempts, refs = append(lots, string(p.lot)), append(attempts, p.attempt), append(refs, p.ref)
	}
	batch.Queue(settleRefundsDueSQL, lots, attempts, refs)
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
			a.result.Stopped = append(a.result.Stopped, drop.StoppedLot{Lot: l.Lot, Code: l.Stopped, Reason: l.StoppedReason})
		}
	}
	batch.Queue(updateLotsSQL, ids, names, capacity, limits, holds, maxHolds, opens, closes, lates, statuses, held, sold, epochs, seqs, hashes,
		waiting, eventAt, stopped, reasons, actors, adjustReasons)
}
