package ledger

import (
	"context"
	_ "embed"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Notices come from three places. What an event says is queued by the transaction that folds it. What would flap (sold out,
// available again) or lies ahead (a window that begins) is only noted there, in hook_lots, and told by RaiseNotices once its
// time has come and if it still is so. Refunds and freezes are compared with what was told of them.

const (
	stockQuiet  = time.Second        // how long a lot that was sold out, or is not any more, has to make up its mind
	thawQuiet   = 30 * time.Second   // a lot that freezes again sooner is not told of twice
	noticeLife  = 3 * 24 * time.Hour // how long a notice is tried
	raiseAtOnce = 1000               // lots, and refunds, of one transaction
)

var (
	//go:embed sql/insert_deliveries.sql
	insertDeliveriesSQL string
	//go:embed sql/mark_hook_lots.sql
	markHookLotsSQL string
	//go:embed sql/due_hook_lots.sql
	dueHookLotsSQL string
)

// wantedKindsSQL is cheap where nobody wants anything: the table is empty or tiny.
const wantedKindsSQL = `SELECT DISTINCT unnest(kinds) FROM hooks WHERE removed_at IS NULL`

// lock locks the lots of the application, and asks in the same trip what hooks want to know.
func (a *application) lock(ctx context.Context, tx pgx.Tx) error {
	batch := &pgx.Batch{}
	batch.Queue(lockLotsSQL, texts(a.ids())).Query(func(rows pgx.Rows) error {
		locked, err := lotsByID(rows)
		for id, w := range a.lots {
			w.lot = locked[id]
		}
		return err
	})
	batch.Queue(wantedKindsSQL).Query(func(rows pgx.Rows) error {
		kinds, err := pgx.CollectRows(rows, pgx.RowTo[drop.NoticeKind])
		for _, k := range kinds {
			if a.wanted == nil {
				a.wanted = map[drop.NoticeKind]bool{}
			}
			a.wanted[k] = true
		}
		return err
	})
	return tx.SendBatch(ctx, batch).Close()
}

// glance is what of a lot makes a notice when it changes.
type glance struct {
	known   bool
	selling bool // open, and within its window
	soldOut bool
}

func (l *Lot) glance(at time.Time) glance {
	if l.Watermark.Seq == 0 {
		return glance{}
	}
	inWindow := !at.Before(l.Opens) && (l.Closes.IsZero() || at.Before(l.Closes))
	return glance{known: true, selling: l.Status == drop.Open && inWindow, soldOut: l.Totals().Available <= 0}
}

// marks are what folding leaves to RaiseNotices.
type marks struct {
	moved   bool      // the lot was sold out and is not any more, or the other way round, perhaps many times
	wasSold bool      // before the first such change
	opensAt time.Time // when the window of the open lot begins; zero: it lies not ahead
}

// tell notes what hooks want to know of an event that was folded; was is the lot before it.
func (f *fold) tell(ev drop.Event, was glance) {
	switch ev.Kind {
	case drop.KindHeld, drop.KindConfirmed, drop.KindExpired:
		f.tellReservation(ev)
	case drop.KindLoaded, drop.KindAdjusted, drop.KindChanged:
		f.tellLot(ev, was)
	}
	now := f.lot.glance(ev.Time)
	if now.soldOut != was.soldOut && !f.marks.moved && (f.wanted[drop.NoticeSoldOut] || f.wanted[drop.NoticeAvailableAgain]) {
		f.marks.moved, f.marks.wasSold = true, was.soldOut
	}
}

// tellReservation leaves out units that the lot does not have: nobody got them.
func (f *fold) tellReservation(ev drop.Event) {
	kind := drop.NoticeKind(ev.Kind)
	r := f.reservations[ev.Reservation.N]
	if !f.wanted[kind] || r.Rejected {
		return
	}
	n := drop.Notice{Kind: kind, Lot: ev.Lot, At: ev.Time, Epoch: ev.Epoch, Seq: ev.Seq, Reservation: ev.Reservation.String(), User: r.User, Qty: ev.Qty, Payment: ev.Ref}
	if kind == drop.NoticeHeld {
		n.Deadline = &ev.Deadline
	}
	f.notices = append(f.notices, noticeRow{Notice: n, n: ev.Reservation.N})
}

func (f *fold) tellLot(ev drop.Event, was glance) {
	now := f.lot.glance(ev.Time)
	if now.known && !was.known && ev.Kind == drop.KindLoaded {
		f.tellOf(drop.NoticeLotLoaded, ev)
	}
	if now.selling && !was.selling {
		f.tellOf(drop.NoticeLotOpened, ev)
	}
	if f.lot.Status == drop.Open && ev.Time.Before(f.lot.Opens) && f.wanted[drop.NoticeLotOpened] {
		f.marks.opensAt = f.lot.Opens
	}
}

func (f *fold) tellOf(kind drop.NoticeKind, ev drop.Event) {
	if f.wanted[kind] {
		f.notices = append(f.notices, noticeRow{Notice: lotNotice(kind, f.lot, ev.Time)})
	}
}

// lotNotice is a notice about a lot as it stands.
func lotNotice(kind drop.NoticeKind, l *Lot, at time.Time) drop.Notice {
	t := l.Totals()
	return drop.Notice{Kind: kind, Lot: l.Lot, At: at, Epoch: l.Watermark.Epoch, Seq: l.Watermark.Seq, State: &drop.NoticeLot{
		Name: l.Name, Status: l.Status, Capacity: t.Capacity, Available: max(t.Available, 0), Held: t.Held, Sold: t.Sold, Opens: nullTime(l.Opens), Closes: nullTime(l.Closes)}}
}

// noticeRow is a notice and what the queue has to know of it.
type noticeRow struct {
	drop.Notice
	n      int64     // of the reservation; 0: about the lot
	freeze int64     // how many the lot had, which makes the place of an event for a freeze, which is none
	since  time.Time // only hooks that were there by then; zero: all
}

// queueNotices queues what hooks are told of the events that were folded, in their order.
func (a *application) queueNotices(batch *pgx.Batch) error {
	if len(a.wanted) == 0 {
		return nil
	}
	var rows []noticeRow
	var lots []string
	var moved, sold []bool
	var opens []*time.Time
	for _, id := range a.ids() {
		f := a.lots[id].fold
		if f == nil {
			continue
		}
		rows = append(rows, f.notices...)
		if m := f.marks; m.moved || !m.opensAt.IsZero() {
			lots, moved, sold, opens = append(lots, string(id)), append(moved, m.moved), append(sold, m.wasSold), append(opens, nullTime(m.opensAt))
		}
	}
	if len(lots) > 0 {
		batch.Queue(markHookLotsSQL, lots, moved, sold, opens, stockQuiet)
	}
	a.result.Notices = len(rows) + len(lots)
	return queueDeliveries(batch, rows)
}

// queueDeliveries queues a delivery for each notice and each hook that wants it.
func queueDeliveries(batch *pgx.Batch, rows []noticeRow) error {
	if len(rows) == 0 {
		return nil
	}
	var kinds, lots, bodies []string
	var ns, epochs, seqs []int64
	var since []*time.Time
	for _, r := range rows {
		body, err := json.Marshal(r.Notice)
		if err != nil {
			return err
		}
		epoch, seq := r.Epoch, r.Seq
		if r.freeze > 0 {
			epoch, seq = 0, r.freeze
		}
		kinds, lots, bodies = append(kinds, string(r.Kind)), append(lots, string(r.Lot)), append(bodies, string(body))
		ns, epochs, seqs, since = append(ns, r.n), append(epochs, epoch), append(seqs, seq), append(since, nullTime(r.since))
	}
	batch.Queue(insertDeliveriesSQL, kinds, lots, ns, epochs, seqs, bodies, since, noticeLife)
	return nil
}

// RaiseNotices queues what was only noted before and whose time has come, and what hooks have not been told of payments that
// are due for refund. It returns how much that was; as long as there is no hook it does nothing. Any number may do so at once.
func (l *Ledger) RaiseNotices(ctx context.Context) (int, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	raised := 0
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		var any bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM hooks WHERE removed_at IS NULL)`).Scan(&any); err != nil || !any {
			return err
		}
		batch := &pgx.Batch{}
		lots, err := raiseLots(ctx, tx, batch)
		if err != nil {
			return err
		}
		refunds, err := raiseRefunds(ctx, tx, batch)
		raised = lots + refunds
		if err != nil || batch.Len() == 0 {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	return raised, l.fail(err, "raising notices")
}

// hookLot is a row of hook_lots whose time has come.
type hookLot struct {
	lot     drop.LotID
	soldOut bool // hooks were told so
	stock   bool // to be compared
	opens   bool
	now     time.Time
}

// raiseLots looks again at lots that were sold out or are no more, and at those whose window begins. Their rows are locked
// before the lots are read: what is folded meanwhile notes them again.
func raiseLots(ctx context.Context, tx pgx.Tx, batch *pgx.Batch) (int, error) {
	rows, err := tx.Query(ctx, dueHookLotsSQL, raiseAtOnce)
	if err != nil {
		return 0, err
	}
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h hookLot, err error) {
		err = row.Scan(&h.lot, &h.soldOut, &h.stock, &h.opens, &h.now)
		h.now = h.now.UTC()
		return h, err
	})
	if err != nil || len(due) == 0 {
		return 0, err
	}
	ids := make([]drop.LotID, len(due))
	for i, h := range due {
		ids[i] = h.lot
	}
	if rows, err = tx.Query(ctx, `SELECT `+lotColumns+` FROM lots WHERE lot = ANY($1)`, texts(ids)); err != nil {
		return 0, err
	}
	known, err := lotsByID(rows)
	if err != nil {
		return 0, err
	}
	var notices []noticeRow
	var stock, soldOut []bool
	var opens []*time.Time
	for _, h := range due {
		told, sold, next := h.raise(known[h.lot])
		notices, stock, soldOut, opens = append(notices, told...), append(stock, h.stock), append(soldOut, sold), append(opens, nullTime(next))
	}
	batch.Queue(`UPDATE hook_lots h SET sold_out = CASE WHEN t.stock THEN t.sold_out ELSE h.sold_out END, stock_at = CASE WHEN t.stock THEN NULL ELSE h.stock_at END,
			opens_at = CASE WHEN h.opens_at <= now() THEN t.opens_at ELSE h.opens_at END
		FROM unnest($1::text[], $2::boolean[], $3::boolean[], $4::timestamptz[]) AS t(lot, stock, sold_out, opens_at) WHERE h.lot = t.lot`, texts(ids), stock, soldOut, opens)
	return len(due), queueDeliveries(batch, notices)
}

// raise returns what hooks are told of the lot now, whether they then know it as sold out, and when to look again for its
// window, which may have been moved.
func (h hookLot) raise(l *Lot) (notices []noticeRow, soldOut bool, opens time.Time) {
	if l == nil {
		return nil, h.soldOut, time.Time{}
	}
	now := l.glance(h.now)
	soldOut = h.soldOut
	if h.stock && now.soldOut != h.soldOut {
		kind := drop.NoticeAvailableAgain
		if now.soldOut {
			kind = drop.NoticeSoldOut
		}
		soldOut = now.soldOut
		notices = append(notices, noticeRow{Notice: lotNotice(kind, l, h.now)})
	}
	switch {
	case h.opens && now.selling:
		notices = append(notices, noticeRow{Notice: lotNotice(drop.NoticeLotOpened, l, h.now)})
	case h.opens && l.Status == drop.Open && h.now.Before(l.Opens):
		opens = l.Opens
	}
	return notices, soldOut, opens
}

// raiseRefunds tells of payments that became due since a hook is there and still are: one that was settled by the very
// transaction that found it is nobody's business.
func raiseRefunds(ctx context.Context, tx pgx.Tx, batch *pgx.Batch) (int, error) {
	rows, err := tx.Query(ctx, `SELECT `+refundDueColumns+`, id, recorded_at, settled_at IS NULL FROM refunds_due WHERE NOT told ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`, raiseAtOnce)
	if err != nil {
		return 0, err
	}
	var notices []noticeRow
	ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (id int64, err error) {
		var recorded time.Time
		var due bool
		d, err := scanRefundDue(row, &id, &recorded, &due)
		if due {
			notices = append(notices, noticeRow{n: d.Reservation.N, since: recorded, Notice: drop.Notice{Kind: drop.NoticeRefundDue, Lot: d.Reservation.Lot, At: d.At,
				Epoch: d.Event.Epoch, Seq: d.Event.Seq, Reservation: d.Reservation.String(), User: d.User, Qty: d.Units, Payment: d.Ref, Reason: string(d.Why)}})
		}
		return id, err
	})
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	batch.Queue(`UPDATE refunds_due SET told = true WHERE id = ANY($1)`, ids)
	return len(ids), queueDeliveries(batch, notices)
}

// NoteFrozen queues a notice for each of these lots, which sell nothing until somebody acts, unless hooks know already. It
// is called again and again for as long as they are frozen; who has thawed for half a minute is told of again.
func (l *Ledger) NoteFrozen(ctx context.Context, frozen map[drop.LotID]fault.Code) error {
	if len(frozen) == 0 {
		return nil
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error { return noteFrozen(ctx, tx, frozen) })
	return l.fail(err, "noting frozen lots")
}

func noteFrozen(ctx context.Context, tx pgx.Tx, frozen map[drop.LotID]fault.Code) error {
	var wanted bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM hooks WHERE removed_at IS NULL AND $1 = ANY(kinds))`, drop.NoticeLotFrozen).Scan(&wanted)
	if err != nil || !wanted {
		return err
	}
	lots := slices.Sorted(maps.Keys(frozen)) // in the order in which all lock them
	rows, err := tx.Query(ctx, `INSERT INTO hook_lots AS h (lot, freezes, frozen_at) SELECT lot, 1, now() FROM unnest($1::text[]) WITH ORDINALITY AS t(lot, nth) ORDER BY nth
		ON CONFLICT (lot) DO UPDATE SET freezes = h.freezes + 1, frozen_at = now() WHERE h.frozen_at IS NULL OR h.frozen_at < now() - $2::interval
		RETURNING lot, freezes, now()`, texts(lots), thawQuiet)
	if err != nil {
		return err
	}
	var news []noticeRow
	var r noticeRow
	_, err = pgx.ForEachRow(rows, []any{&r.Lot, &r.freeze, &r.At}, func() error {
		r.Kind, r.At, r.Reason = drop.NoticeLotFrozen, r.At.UTC(), string(frozen[r.Lot])
		news = append(news, r)
		return nil
	})
	if err != nil {
		return err
	}
	batch := &pgx.Batch{}
	batch.Queue(`UPDATE hook_lots SET frozen_at = now() WHERE lot = ANY($1) AND frozen_at < now() - $2::interval / 3`, texts(lots), thawQuiet)
	if err := queueDeliveries(batch, news); err != nil {
		return err
	}
	return tx.SendBatch(ctx, batch).Close()
}
