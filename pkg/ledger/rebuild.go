package ledger

import (
	"context"
	_ "embed"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// A rebuild takes three steps: PlanRebuild shows what there is to load, IssueEpoch closes the lot's life at its
// watermark, and EachRecord and EachUser read what it stood at. Between the epoch's issue and the opening of the
// rebuilt lot nothing changes.

var (
	//go:embed sql/rebuild_records.sql
	rebuildRecordsSQL string
	//go:embed sql/rebuild_users.sql
	rebuildUsersSQL string
)

// PlanRebuild counts what a rebuild of the lot would load; tombstones count if they ended at endedSince or later,
// in Redis time. Nothing is changed. The caller compares the plan's watermark with that of Redis, which must not
// be ahead.
// Errors: fault.NotFound; fault.Broken if the reservations do not add up to the lot's totals.
func (l *Ledger) PlanRebuild(ctx context.Context, lot drop.LotID, endedSince time.Time) (drop.RebuildPlan, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, planRebuildSQL, string(lot), endedSince)
	if err != nil {
		return drop.RebuildPlan{}, l.fail(err, "planning a rebuild")
	}
	plan, err := pgx.CollectExactlyOneRow(rows, scanPlan)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fault.New(fault.NotFound, "the ledger does not know the lot %s", lot)
	}
	return plan, l.fail(err, "planning a rebuild")
}

// planRebuildSQL is one statement, so that it sees the lot and its reservations at one moment.
var planRebuildSQL = `SELECT ` + lotColumns + `, t.* FROM lots, (
	SELECT count(*) FILTER (WHERE state = 'held' AND NOT rejected), count(*) FILTER (WHERE state = 'confirmed'),
		count(*) FILTER (WHERE state NOT IN ('held', 'confirmed') OR rejected AND state = 'held'),
		coalesce(sum(qty) FILTER (WHERE state = 'held' AND NOT rejected), 0)::bigint, coalesce(sum(qty) FILTER (WHERE state = 'confirmed'), 0)::bigint
	` + rebuildRecordsSQL + `) AS t (live, confirmed, tombstones, units_held, units_sold) WHERE lot = $1`

func scanPlan(row pgx.CollectableRow) (plan drop.RebuildPlan, err error) {
	var held, sold int64
	lot, err := scanLotAnd(row, &plan.Live, &plan.Confirmed, &plan.Tombstones, &held, &sold)
	plan.LedgerLot, plan.EventAt, plan.Waiting = lot.LedgerLot, lot.EventAt, lot.Waiting
	if err == nil && (held != lot.Held || sold != lot.Sold) {
		err = fault.New(fault.Broken, "the reservations of the lot %s add up to %d held and %d sold, the lot says %d and %d", lot.Lot, held, sold, lot.Held, lot.Sold).
			WithHint("find the first event that does not follow: dropctl ledger verify %s", lot.Lot)
	}
	return plan, err
}

// RebuildSource says what is read of a lot whose epoch was issued for a rebuild.
type RebuildSource struct {
	Lot        drop.LotID
	Epoch      int64     // as IssueEpoch issued it
	EndedSince time.Time // leaves out reservations that ended before, in Redis time
}

// rebuildPage is how many records or users come at a time.
const rebuildPage = 5000

// EachRecord calls fn with every record of the rebuild in pages, in the order of n, all from one moment. Of two
// records of one attempt (a key used again after its retention) the later is the one to keep. A page is valid
// until fn returns. Memory does not grow with the number of records; only the context bounds the whole.
// Errors: fault.Conflict if the lot went on since the epoch was issued; what fn returns.
func (l *Ledger) EachRecord(ctx context.Context, s RebuildSource, fn func(page []drop.Record) error) error {
	const columns = `SELECT r.lot, r.n, r.attempt, r.user_id, r.state, r.qty, r.refunded, r.rest, r.deadline, r.created_at, r.changed_at, r.last_seq, r.ref, r.taken_from, r.asked, r.rejected,
		(SELECT confirmed_at FROM pending_allocations p WHERE r.state IN ('confirmed', 'refunded') AND p.lot = r.lot AND p.n = r.n),
		coalesce((SELECT ref FROM refunds_due d WHERE d.lot = r.lot AND d.attempt = r.attempt AND d.why = 'paid_late' AND d.ref <> '' ORDER BY epoch DESC, seq DESC LIMIT 1), '') `
	return eachPage(ctx, l, s, "records", columns+rebuildRecordsSQL+` ORDER BY r.n`, []any{string(s.Lot), s.EndedSince}, scanRecord, fn)
}

func scanRecord(row pgx.CollectableRow) (drop.Record, error) {
	var r drop.Record
	var changed time.Time
	var rejected bool
	var confirmed *time.Time
	err := row.Scan(&r.ID.Lot, &r.ID.N, &r.ID.Attempt, &r.User, &r.State, &r.Qty, &r.Refunded, &r.Rest, &r.Deadline, &r.Created, &changed, &r.LastSeq, &r.Ref, &r.From, &r.Asked, &rejected,
		&confirmed, &r.LateRef)
	r.Deadline, r.Created, r.ConfirmedAt = r.Deadline.UTC(), r.Created.UTC(), timeOf(confirmed)
	if rejected && r.State == drop.Held {
		r.State = drop.Expired // as the fold of the load will say
	}
	if r.State != drop.Held && r.State != drop.Confirmed {
		r.Ended = changed.UTC()
	}
	return r, err
}

// EachUser calls fn with the counters of every user who holds or bought something, in pages and in no order, all
// from one moment. Memory does not grow with the number of users; only the context bounds the whole.
// Errors: as EachRecord.
func (l *Ledger) EachUser(ctx context.Context, s RebuildSource, fn func(page []drop.UserCount) error) error {
	return eachPage(ctx, l, s, "users", rebuildUsersSQL, []any{string(s.Lot)}, func(row pgx.CollectableRow) (drop.UserCount, error) {
		var u drop.UserCount
		err := row.Scan(&u.User, &u.Held, &u.Bought, &u.Live)
		return u, err
	}, fn)
}

// eachPage reads a query through a cursor. Each page is one bounded statement, while the reader may take his time
// between two; cursor names the query, since the driver remembers the columns of a FETCH by its text.
func eachPage[T any](ctx context.Context, l *Ledger, s RebuildSource, cursor, query string, args []any, scan pgx.RowToFunc[T], fn func([]T) error) error {
	err := pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := openCursor(ctx, l, tx, s, cursor, query, args); err != nil {
			return err
		}
		var page []T
		for {
			var err error
			if page, err = fetch(ctx, l, tx, cursor, page[:0], scan); err != nil || len(page) == 0 {
				return err
			}
			if err := fn(page); err != nil || len(page) < rebuildPage { // most lots do not fill one
				return err
			}
		}
	})
	return l.fail(err, "reading a lot for its rebuild")
}

func openCursor(ctx context.Context, l *Ledger, tx pgx.Tx, s RebuildSource, cursor, query string, args []any) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var batch pgx.Batch
	// Who loads may have to wait for Redis, longer than others may leave a transaction alone.
	batch.Queue(`SET LOCAL idle_in_transaction_session_timeout = '2min'`)
	stillClosed(&batch, s)
	batch.Queue(`DECLARE `+cursor+` NO SCROLL CURSOR FOR `+query, args...)
	return tx.SendBatch(ctx, &batch).Close()
}

func fetch[T any](ctx context.Context, l *Ledger, tx pgx.Tx, cursor string, page []T, scan pgx.RowToFunc[T]) ([]T, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := tx.Query(ctx, `FETCH `+strconv.Itoa(rebuildPage)+` FROM `+cursor)
	if err != nil {
		return nil, err
	}
	return pgx.AppendRows(page, rows, scan)
}

// stillClosed checks that the lot stands where its epoch was issued, or has only been loaded since.
func stillClosed(batch *pgx.Batch, s RebuildSource) {
	batch.Queue(`SELECT l.open_epoch = e.epoch AND ((l.epoch, l.seq) = (e.closed_epoch, e.closed_seq) OR (l.epoch, l.seq) = (e.epoch, e.closed_seq + 1))
		FROM lots l JOIN lot_epochs e USING (lot) WHERE e.lot = $1 AND e.epoch = $2`, string(s.Lot), s.Epoch).QueryRow(func(row pgx.Row) error {
		var still bool
		if err := row.Scan(&still); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if !still {
			return fault.New(fault.Conflict, "the lot %s went on since its epoch %d was issued", s.Lot, s.Epoch).WithHint("begin its rebuild anew: dropctl restore %s", s.Lot)
		}
		return nil
	})
}
