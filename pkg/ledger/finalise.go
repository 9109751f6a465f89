package ledger

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

var (
	//go:embed sql/claim_pending.sql
	claimPendingSQL string
	//go:embed sql/finish_pending.sql
	finishPendingSQL string
	//go:embed sql/contradicted.sql
	contradictedSQL string
)

// ClaimPending gives a worker up to limit allocations for the length of a lease: those nobody has begun, and
// those whose worker let its lease run out. The claim is committed when it returns, so that no transaction is
// open while a payment gateway is asked. The worker's name must be its own among all goroutines of all workers.
func (l *Ledger) ClaimPending(ctx context.Context, worker string, lease time.Duration, limit int) ([]drop.Pending, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var claimed []drop.Pending
	batch := &pgx.Batch{} // one transaction, as it is sent at once
	batch.Queue(oneByOneSQL)
	batch.Queue(claimPendingSQL, worker, lease, limit).Query(func(rows pgx.Rows) (err error) {
		claimed, err = pgx.CollectRows(rows, scanPending)
		return err
	})
	return claimed, l.fail(l.pool.SendBatch(ctx, batch).Close(), "claiming allocations")
}

// oneByOneSQL makes the rest of the transaction look up each row by itself: the planner takes the table for a small one, and
// would read all of it.
const oneByOneSQL = `SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`

func scanPending(row pgx.CollectableRow) (drop.Pending, error) {
	var p drop.Pending
	err := row.Scan(&p.Reservation.Lot, &p.Reservation.N, &p.Reservation.Attempt, &p.User, &p.Units, &p.Ref, &p.Confirmed)
	p.Confirmed = p.Confirmed.UTC()
	return p, err
}

// FinishPending records claimed allocations as sold, with their refunds if there were any meanwhile, and
// returns how many. One whose lease went to another worker is left to that one. A sale that is recorded already is
// not recorded again; where it is another one (other units, user or payment) the allocation is left as it is, the
// others are finished, and the error is fault.Failed.
func (l *Ledger) FinishPending(ctx context.Context, worker string, claimed []drop.Pending) (int, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	finished, contradicted, err := l.finish(ctx, worker, claimed)
	if err != nil || len(contradicted) == 0 {
		return finished, l.fail(err, "finalising sales")
	}
	others := slices.DeleteFunc(slices.Clone(claimed), func(p drop.Pending) bool { return slices.Contains(contradicted, p.Reservation) })
	if finished, _, err = l.finish(ctx, worker, others); err != nil {
		return 0, l.fail(err, "finalising sales")
	}
	return finished, fault.New(fault.Failed, "the order ledger has another sale of the reservation %s, and of %d more", contradicted[0], len(contradicted)-1).
		WithHint("see what was recorded: dropctl ledger show --reservation %s", contradicted[0])
}

// Unbooked returns how many confirmed reservations are not recorded as sold, those claimed by workers included. What a
// payment gateway was asked about is not among them: that is for a worker which asks it.
func (l *Ledger) Unbooked(ctx context.Context) (n int64, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	err = l.pool.QueryRow(ctx, `SELECT count(*) FROM pending_allocations WHERE state IN ('PENDING', 'PROCESSING') AND charge = 0`).Scan(&n)
	return n, l.fail(err, "counting allocations")
}

// finish does it in one transaction, or does nothing and returns those that are contradicted.
func (l *Ledger) finish(ctx context.Context, worker string, claimed []drop.Pending) (finished int, contradicted []drop.ReservationID, err error) {
	inOrder := slices.SortedFunc(slices.Values(claimed), func(a, b drop.Pending) int {
		return cmp.Or(strings.Compare(string(a.Reservation.Lot), string(b.Reservation.Lot)), cmp.Compare(a.Reservation.N, b.Reservation.N))
	})
	lots, ns := make([]string, len(claimed)), make([]int64, len(claimed))
	for i, p := range inOrder {
		lots[i], ns[i] = string(p.Reservation.Lot), p.Reservation.N
	}
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		var had int
		batch := &pgx.Batch{}
		// Locked by one statement and read by the next, which sees a refund that was folded while this one waited.
		batch.Queue(`SELECT FROM unnest($1::text[], $2::bigint[]) AS k(lot, n)
			CROSS JOIN LATERAL (SELECT FROM pending_allocations a WHERE a.lot = k.lot AND a.n = k.n OFFSET 0 FOR UPDATE) AS locked`, lots, ns)
		batch.Queue(oneByOneSQL)
		batch.Queue(finishPendingSQL, lots, ns, worker).QueryRow(func(row pgx.Row) error { return row.Scan(&finished, &had) })
		if err := tx.SendBatch(ctx, batch).Close(); err != nil || had == 0 {
			return err
		}
		rows, err := tx.Query(ctx, contradictedSQL, lots, ns, worker)
		if err != nil {
			return err
		}
		contradicted, err = pgx.CollectRows(rows, pgx.RowToStructByPos[drop.ReservationID])
		if err == nil && len(contradicted) > 0 {
			err = errContradicted
		}
		return err
	})
	if errors.Is(err, errContradicted) {
		return 0, contradicted, nil
	}
	return finished, nil, err
}

var errContradicted = errors.New("the order ledger says something else")
