package compare

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
)

// pgForUpdate locks the lot's row, looks, writes, and lets go with the commit. Everybody else waits in line.
var pgForUpdate = Model{Name: "pg-for-update", Does: "SELECT … FOR UPDATE of the lot's row, insert, update", place: onPostgres, pool: 16,
	open: func(ctx context.Context, c client) (shop, error) {
		s, err := openPostgres(ctx, c)
		return forUpdate{s}, err
	}}

type forUpdate struct{ postgres }

func (s forUpdate) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var available int64
		if err := tx.QueryRow(ctx, `SELECT available FROM lots WHERE lot = $1 FOR UPDATE`, string(lot)).Scan(&available); err != nil {
			return err
		}
		if available == 0 {
			return soldOut(lot)
		}
		if err := insertHold(ctx, tx, lot, user, hold); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE lots SET available = available - 1, version = version + 1 WHERE lot = $1`, string(lot))
		return err
	})
	return claim{lot: lot, user: user}, err
}
