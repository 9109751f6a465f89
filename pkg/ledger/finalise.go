package ledger

import (
	"context"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
)

var (
	//go:embed sql/claim_pending.sql
	claimPendingSQL string
	//go:embed sql/finish_pending.sql
	finishPendingSQL string
)

// ClaimPending gives a worker up to limit allocations for the length of a lease: those nobody has begun, and
// those whose worker let its lease run out. The claim is committed when it returns, so that no transaction is
// open while a payment gateway is asked. The worker's name must be its own among all goroutines of all workers.
func (l *Ledger) ClaimPending(ctx context.Context, worker string, lease time.Duration, limit int) ([]drop.Pending, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, claimPendingSQL, worker, lease, limit)
	if err != nil {
		return nil, l.fail(err, "claiming allocations")
	}
	claimed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (drop.Pending, error) {
		var p drop.Pending
		err := row.Scan(&p.Reservation.Lot, &p.Reservation.N, &p.Reservation.Attempt, &p.User, &p.Units, &p.Ref, &p.Confirmed)
		p.Confirmed = p.Confirmed.UTC()
		return p, err
	})
	return claimed, l.fail(err, "claiming allocations")
}

// FinishPending records claimed allocations as sold, with their refunds if there were any meanwhile, and
// returns how many. One whose lease went to another worker is left to that one.
func (l *Ledger) FinishPending(ctx context.Context, worker string, claimed []drop.Pending) (int, error) {
	lots, ns := make([]string, len(claimed)), make([]int64, len(claimed))
	for i, p := range claimed {
		lots[i], ns[i] = string(p.Reservation.Lot), p.Reservation.N
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	var finished int
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		// Locked by one statement and read by the next, which sees a refund that was folded while this one waited.
		_, err := tx.Exec(ctx, `SELECT FROM pending_allocations WHERE (lot, n) IN (SELECT * FROM unnest($1::text[], $2::bigint[])) ORDER BY lot, n FOR UPDATE`, lots, ns)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, finishPendingSQL, lots, ns, worker).Scan(&finished)
	})
	return finished, l.fail(err, "finalising sales")
}
