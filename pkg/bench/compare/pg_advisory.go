package compare

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
)

// pgAdvisory asks for a lock of the lot's name, which the database keeps until the transaction ends. Unlike that of a row
// it costs no write.
var pgAdvisory = Model{Name: "pg-advisory", Does: "pg_advisory_xact_lock of the lot, then look and write", place: onPostgres, pool: 16,
	open: func(ctx context.Context, c client) (shop, error) {
		s, err := openPostgres(ctx, c)
		return advisory{s}, err
	}}

type advisory struct{ postgres }

func (s advisory) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, string(lot)); err != nil {
			return err
		}
		var available int64
		// A statement of its own: it must see what the one before us has committed.
		if err := tx.QueryRow(ctx, `SELECT available FROM lots WHERE lot = $1`, string(lot)).Scan(&available); err != nil {
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
