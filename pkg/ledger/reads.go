package ledger

import (
	"context"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

//go:embed sql/reservations.sql
var reservationsSQL string

// Reservations returns one page, in the order of lot and n.
func (l *Ledger) Reservations(ctx context.Context, f drop.ReservationFilter) ([]drop.Recorded, error) {
	if f.Limit <= 0 {
		f.Limit = 1000
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT `+reservationColumns+` `+reservationsSQL, string(f.Lot), f.User, texts(f.States), nullTime(f.EndedFrom),
		string(f.After.Lot), f.After.N, f.Limit, f.Tenant)
	if err != nil {
		return nil, l.fail(err, "reading reservations")
	}
	list, err := pgx.CollectRows(rows, scanReservation)
	return list, l.fail(err, "reading reservations")
}

// EachReservation calls fn with every reservation that the filter selects, in pages. One that begins or ends
// meanwhile may be in or not; one that stays is never left out.
func (l *Ledger) EachReservation(ctx context.Context, f drop.ReservationFilter, fn func(page []drop.Recorded) error) error {
	if f.Limit <= 0 {
		f.Limit = 5000
	}
	for {
		page, err := l.Reservations(ctx, f)
		if err != nil || len(page) == 0 {
			return err
		}
		if err := fn(page); err != nil || len(page) < f.Limit {
			return err
		}
		f.After = page[len(page)-1].ID
	}
}

// ReservationsByID returns these reservations; one that the ledger does not know is absent.
func (l *Ledger) ReservationsByID(ctx context.Context, ids []drop.ReservationID) (map[drop.ReservationID]drop.Recorded, error) {
	lots, ns := make([]string, len(ids)), make([]int64, len(ids))
	asked := make(map[drop.ReservationID]bool, len(ids))
	for i, id := range ids {
		lots[i], ns[i] = string(id.Lot), id.N
		asked[id] = true
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, reservationsByKeySQL, lots, ns)
	if err != nil {
		return nil, l.fail(err, "reading reservations")
	}
	list, err := pgx.CollectRows(rows, scanReservation)
	found := make(map[drop.ReservationID]drop.Recorded, len(list))
	for _, r := range list {
		if asked[r.ID] { // the attempt must be right too
			found[r.ID] = r
		}
	}
	return found, l.fail(err, "reading reservations")
}

// Sales are the finalised units of a lot.
type Sales struct {
	Sold    int64 // folded as sold
	Net     int64 // units of the sales less those of the refunds
	Pending int64 // units of allocations that are not finalised yet; Sold = Net + Pending
	Open    int64 // number of those allocations
}

// SalesOf returns the sales of lots, all from one moment. A lot that the ledger does not know is absent.
func (l *Ledger) SalesOf(ctx context.Context, ids []drop.LotID) (map[drop.LotID]Sales, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT l.lot, l.sold, coalesce(o.units, 0), coalesce(p.units, 0), coalesce(p.open, 0) FROM lots l
		LEFT JOIN (SELECT lot, sum(units)::bigint AS units FROM order_ledger WHERE lot = ANY($1) GROUP BY lot) o USING (lot)
		LEFT JOIN (SELECT lot, sum(units - refunded)::bigint AS units, count(*) AS open FROM pending_allocations
			WHERE lot = ANY($1) AND state IN ('PENDING', 'PROCESSING') GROUP BY lot) p USING (lot)
		WHERE lot = ANY($1)`, texts(ids))
	if err != nil {
		return nil, l.fail(err, "adding up sales")
	}
	sales := map[drop.LotID]Sales{}
	var lot drop.LotID
	var s Sales
	_, err = pgx.ForEachRow(rows, []any{&lot, &s.Sold, &s.Net, &s.Pending, &s.Open}, func() error {
		sales[lot] = s
		return nil
	})
	return sales, l.fail(err, "adding up sales")
}

// LedgerEntry is one row of the order ledger: a sale, or a refund with negative units.
type LedgerEntry struct {
	Reservation drop.ReservationID
	Entry       int
	Kind        string
	Units       int64
	User        string
	Ref         string
	RecordedAt  time.Time
	Charge      string // the payment gateway's own reference of the money that moved; read by Show alone
}

// Entries returns a page of a lot's order ledger in the order of reservation and entry, behind the
// reservation `after` (its n; 0: from the beginning).
func (l *Ledger) Entries(ctx context.Context, lot drop.LotID, after int64, limit int) ([]LedgerEntry, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT lot, attempt, n, entry, kind, units, user_id, ref, recorded_at FROM order_ledger
		WHERE lot = $1 AND n > $2 ORDER BY n, entry FETCH FIRST $3 ROWS ONLY`, string(lot), after, limit)
	if err != nil {
		return nil, l.fail(err, "reading the order ledger")
	}
	list, err := pgx.CollectRows(rows, scanEntry)
	return list, l.fail(err, "reading the order ledger")
}

func scanEntry(row pgx.CollectableRow) (LedgerEntry, error) {
	var e LedgerEntry
	err := row.Scan(e.columns()...)
	e.RecordedAt = e.RecordedAt.UTC()
	return e, err
}

func (e *LedgerEntry) columns() []any {
	return []any{&e.Reservation.Lot, &e.Reservation.Attempt, &e.Reservation.N, &e.Entry, &e.Kind, &e.Units, &e.User, &e.Ref, &e.RecordedAt}
}

// Journal returns up to limit folded events of a lot behind a watermark, in order.
func (l *Ledger) Journal(ctx context.Context, lot drop.LotID, after drop.Watermark, limit int) ([]drop.Event, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT lot, epoch, seq, event_at, line FROM reservation_events
		WHERE lot = $1 AND (epoch, seq) > ($2, $3) ORDER BY epoch, seq LIMIT $4`, string(lot), after.Epoch, after.Seq, limit)
	if err != nil {
		return nil, l.fail(err, "reading the journal")
	}
	events, err := l.decodeAll(rows)
	return events, l.fail(err, "reading the journal")
}

// WaitingEvents returns the events of lots that the ledger has but cannot fold yet, in order.
func (l *Ledger) WaitingEvents(ctx context.Context, ids []drop.LotID) (map[drop.LotID][]drop.Event, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT lot, epoch, seq, event_at, line FROM waiting_events WHERE lot = ANY($1) ORDER BY lot, epoch, seq`, texts(ids))
	if err != nil {
		return nil, l.fail(err, "reading waiting events")
	}
	events, err := l.decodeAll(rows)
	byLot := map[drop.LotID][]drop.Event{}
	for _, ev := range events {
		byLot[ev.Lot] = append(byLot[ev.Lot], ev)
	}
	return byLot, l.fail(err, "reading waiting events")
}

func (l *Ledger) decodeAll(rows pgx.Rows) ([]drop.Event, error) {
	list, err := collectStored(rows)
	if err != nil {
		return nil, err
	}
	events := make([]drop.Event, len(list))
	for i, s := range list {
		if events[i], err = s.decode(l.installation.ID); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// DeadLetter is what could not be applied, and why.
type DeadLetter struct {
	ID         int64
	Lot        drop.LotID // "" where it is not known
	Epoch      int64
	Seq        int64      // 0 where it is not known
	Code       fault.Code // ghost, fork, unfoldable, load_mismatch; not_found: unknown lot; invalid: not an event
	Reason     string
	At         time.Time // of the event; zero: not an event
	Line       string    // as it came; bytes that are no text are quoted
	RecordedAt time.Time
	Settled    string // "" as long as it has to be looked at; then applied or discarded
}

// DeadLetters lists the dead letters that have to be looked at, newest first: of one lot or, for "", of all, with an id
// below before (0: any).
func (l *Ledger) DeadLetters(ctx context.Context, lot drop.LotID, before int64, limit int) ([]DeadLetter, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT `+deadColumns+` FROM dead_letters
		WHERE settled_at IS NULL AND ($1 = '' OR lot = $1) AND ($2 = 0 OR id < $2) ORDER BY id DESC LIMIT $3`, string(lot), before, limit)
	if err != nil {
		return nil, l.fail(err, "listing dead letters")
	}
	list, err := pgx.CollectRows(rows, scanDead)
	return list, l.fail(err, "listing dead letters")
}

const deadColumns = `id, lot, epoch, seq, code, reason, event_at, line, recorded_at, settled_how`

func scanDead(row pgx.CollectableRow) (DeadLetter, error) {
	var d DeadLetter
	var at *time.Time
	err := row.Scan(&d.ID, &d.Lot, &d.Epoch, &d.Seq, &d.Code, &d.Reason, &at, &d.Line, &d.RecordedAt, &d.Settled)
	d.At, d.RecordedAt = timeOf(at), d.RecordedAt.UTC()
	return d, err
}

// DeadGroup are the dead letters of one lot with one code and reason.
type DeadGroup struct {
	Code   fault.Code
	Lot    drop.LotID // "" where it is not known
	Reason string
	Count  int64
	Newest time.Time
}

// DeadGroups returns the groups with the newest dead letters, newest first.
func (l *Ledger) DeadGroups(ctx context.Context, limit int) ([]DeadGroup, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT code, lot, reason, count(*), max(recorded_at) FROM dead_letters
		WHERE settled_at IS NULL GROUP BY code, lot, reason ORDER BY max(id) DESC LIMIT $1`, limit)
	if err != nil {
		return nil, l.fail(err, "listing dead letters")
	}
	groups, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (DeadGroup, error) {
		var g DeadGroup
		err := row.Scan(&g.Code, &g.Lot, &g.Reason, &g.Count, &g.Newest)
		g.Newest = g.Newest.UTC()
		return g, err
	})
	return groups, l.fail(err, "listing dead letters")
}
