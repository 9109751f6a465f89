package ledger

import (
	"context"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

var (
	//go:embed sql/show_lot.sql
	showLotSQL string
	//go:embed sql/show_reservations.sql
	showReservationsSQL string
)

// ShowFilter selects rows of the journal; at least one of the first three is set.
type ShowFilter struct {
	Lot   drop.LotID
	User  string
	ID    drop.ReservationID
	After drop.LotID // with Mark: of the last event of the page before
	Mark  drop.Watermark
	Limit int
}

// JournalRow is a folded event as it was recorded, and what the order ledger has of it.
type JournalRow struct {
	drop.Event
	Hash       []byte
	RecordedAt time.Time
	Orders     []LedgerEntry // of a confirmation: its sale, and what of that was refunded
}

// Show returns one page of the journal, in the order of lot and place.
func (l *Ledger) Show(ctx context.Context, f ShowFilter) ([]JournalRow, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var rows pgx.Rows
	var err error
	if f.User == "" && f.ID.IsZero() {
		if f.After != f.Lot {
			f.Mark = drop.Watermark{}
		}
		rows, err = l.pool.Query(ctx, showLotSQL, string(f.Lot), f.Mark.Epoch, f.Mark.Seq, f.Limit)
	} else {
		rows, err = l.pool.Query(ctx, showReservationsSQL, string(f.Lot), f.User, string(f.ID.Lot), f.ID.N, f.ID.Attempt,
			string(f.After), f.Mark.Epoch, f.Mark.Seq, f.Limit)
	}
	if err != nil {
		return nil, l.fail(err, "reading the journal")
	}
	list, err := pgx.CollectRows(rows, l.scanJournalRow)
	if err == nil {
		err = l.addOrders(ctx, list)
	}
	return list, l.fail(err, "reading the journal")
}

func (l *Ledger) scanJournalRow(row pgx.CollectableRow) (JournalRow, error) {
	var r JournalRow
	var s stored
	err := row.Scan(&s.lot, &s.Epoch, &s.Seq, &s.at, &s.line, &r.Hash, &r.RecordedAt)
	if err != nil {
		return r, err
	}
	s.at, r.RecordedAt = s.at.UTC(), r.RecordedAt.UTC()
	r.Event, err = s.decode(l.installation.ID)
	return r, err
}

// addOrders adds the rows of the order ledger to the confirmations they belong to.
func (l *Ledger) addOrders(ctx context.Context, list []JournalRow) error {
	var lots []string
	var ns []int64
	at := map[drop.ReservationID]int{}
	for i, r := range list {
		if r.Kind == drop.KindConfirmed {
			lots, ns = append(lots, string(r.Lot)), append(ns, r.Reservation.N)
			at[r.Reservation] = i
		}
	}
	rows, err := l.pool.Query(ctx, `SELECT o.lot, o.attempt, o.n, o.entry, o.kind, o.units, o.user_id, o.ref, o.recorded_at,
			coalesce(CASE WHEN o.kind = 'sale' THEN c.charged ELSE r.returned END, '')
		FROM unnest($1::text[], $2::bigint[]) AS k(of, nth) CROSS JOIN LATERAL (SELECT * FROM order_ledger WHERE lot = k.of AND n = k.nth OFFSET 0) AS o
		LEFT JOIN charges c ON c.lot = o.lot AND c.n = o.n AND c.sold LEFT JOIN charge_refunds r ON r.lot = o.lot AND r.n = o.n AND r.number = c.number AND r.entry = o.entry
		ORDER BY o.lot, o.n, o.entry`, lots, ns)
	if err != nil {
		return err
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e LedgerEntry, err error) {
		err = row.Scan(append(e.columns(), &e.Charge)...)
		e.RecordedAt = e.RecordedAt.UTC()
		return e, err
	})
	for _, e := range entries {
		if i, shown := at[e.Reservation]; shown {
			list[i].Orders = append(list[i].Orders, e)
		}
	}
	return err
}

// DueFilter selects payments that are due for refund; zero fields do not restrict.
type DueFilter struct {
	Lot   drop.LotID
	User  string
	ID    drop.ReservationID
	After int64 // id of the last one of the page before
	Limit int
}

// DueRow is a payment due for refund as it was recorded.
type DueRow struct {
	ID int64
	RefundDue
	RecordedAt time.Time
}

// ShowDue returns one page of what is still due, oldest first.
func (l *Ledger) ShowDue(ctx context.Context, f DueFilter) ([]DueRow, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT id, `+refundDueColumns+`, recorded_at FROM refunds_due
		WHERE settled_at IS NULL AND id > $1 AND ($2 = '' OR lot = $2) AND ($3 = '' OR user_id = $3) AND ($4 = 0 OR lot = $5 AND n = $4 AND attempt = $6)
		ORDER BY id LIMIT $7`, f.After, string(f.Lot), f.User, f.ID.N, string(f.ID.Lot), f.ID.Attempt, f.Limit)
	if err != nil {
		return nil, l.fail(err, "listing refunds due")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (DueRow, error) {
		var d DueRow
		err := row.Scan(&d.ID, &d.Reservation.Lot, &d.Reservation.N, &d.Reservation.Attempt, &d.User, &d.Units, &d.Ref, &d.Why, &d.Event.Epoch, &d.Event.Seq, &d.At, &d.RecordedAt)
		d.At, d.RecordedAt = d.At.UTC(), d.RecordedAt.UTC()
		return d, err
	})
	return list, l.fail(err, "listing refunds due")
}

// WaitingEvent is an event that the ledger has but cannot fold yet.
type WaitingEvent struct {
	drop.Event
	Line       string
	RecordedAt time.Time
	Mark       drop.Watermark // up to which its lot is folded
	Stopped    fault.Code     // of its lot
}

// WaitingList returns events that wait, of one lot or, for "", of all, in the order of lot and place.
func (l *Ledger) WaitingList(ctx context.Context, lot drop.LotID, limit int) ([]WaitingEvent, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT w.lot, w.epoch, w.seq, w.event_at, w.line, w.recorded_at, l.epoch, l.seq, l.stopped FROM waiting_events w JOIN lots l USING (lot)
		WHERE $1 = '' OR lot = $1 ORDER BY lot, w.epoch, w.seq LIMIT $2`, string(lot), limit)
	if err != nil {
		return nil, l.fail(err, "reading waiting events")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (WaitingEvent, error) {
		var w WaitingEvent
		var s stored
		err := row.Scan(&s.lot, &s.Epoch, &s.Seq, &s.at, &s.line, &w.RecordedAt, &w.Mark.Epoch, &w.Mark.Seq, &w.Stopped)
		if err != nil {
			return w, err
		}
		s.at, w.RecordedAt, w.Line = s.at.UTC(), w.RecordedAt.UTC(), s.line
		w.Event, err = s.decode(l.installation.ID)
		return w, err
	})
	return list, l.fail(err, "reading waiting events")
}
