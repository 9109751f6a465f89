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
	//go:embed sql/finalise.sql
	finaliseSQL string
	//go:embed sql/settle_recorded.sql
	settleRecordedSQL string
)

// contradictedFor is how long an allocation is left alone that the order ledger contradicts: somebody has to look at it.
const contradictedFor = 30 * time.Second

// Finalise records up to limit confirmed reservations as sold, with their refunds if there were any meanwhile, and returns how
// many. What another worker is finalising is left to that one, as is what a payment gateway was asked about, and what a worker
// of an older version has a lease on. A sale that is recorded already is not recorded again; where it is another one (other
// units, user or payment) the allocation stays open and is left alone for half a minute, the others are finalised, and the error
// is fault.Failed.
func (l *Ledger) Finalise(ctx context.Context, limit int) (int, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	finalised, err := l.finalise(ctx, limit)
	if !hasState(err, stateNotUnique) {
		return finalised, l.fail(err, "finalising sales")
	}
	known, contradicted, err := l.settleRecorded(ctx, limit)
	if err == nil {
		finalised, err = l.finalise(ctx, limit-known)
	}
	if err != nil || len(contradicted) == 0 {
		return known + finalised, l.fail(err, "finalising sales")
	}
	return known + finalised, fault.New(fault.Failed, "the order ledger has another sale of the reservation %s, and of %d more", contradicted[0], len(contradicted)-1).
		WithHint("see what was recorded: dropctl ledger show --reservation %s", contradicted[0])
}

// finalise does so if the order ledger has none of them yet.
func (l *Ledger) finalise(ctx context.Context, limit int) (finalised int, err error) {
	err = l.oneByOne(ctx, finaliseSQL, []any{limit}, func(rows pgx.Rows) (err error) {
		finalised, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
		return err
	})
	return finalised, err
}

// settleRecorded ends the allocations whose sale the order ledger has, and returns how many, and those whose sale it has
// otherwise.
func (l *Ledger) settleRecorded(ctx context.Context, limit int) (settled int, contradicted []drop.ReservationID, err error) {
	var id drop.ReservationID
	var same bool
	err = l.oneByOne(ctx, settleRecordedSQL, []any{limit, contradictedFor}, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&id.Lot, &id.Attempt, &id.N, &same}, func() error {
			if same {
				settled++
			} else {
				contradicted = append(contradicted, id)
			}
			return nil
		})
		return err
	})
	return settled, contradicted, err
}

// oneByOne runs a statement in a transaction that looks up each row by itself: the planner takes the tables for small ones,
// and would read all of them.
func (l *Ledger) oneByOne(ctx context.Context, sql string, args []any, read func(pgx.Rows) error) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('enable_seqscan', 'off', true)`)
		batch.Queue(sql, args...).Query(read)
		return tx.SendBatch(ctx, batch).Close()
	})
}

// Unfinalised returns how many confirmed reservations are not recorded as sold, those left alone for now included. What a
// payment gateway was asked about is not among them: that is for a worker which asks it.
func (l *Ledger) Unfinalised(ctx context.Context) (n int64, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	err = l.pool.QueryRow(ctx, `SELECT count(*) FROM pending_allocations WHERE state IN ('PENDING', 'PROCESSING') AND charge = 0`).Scan(&n)
	return n, l.fail(err, "counting allocations")
}
