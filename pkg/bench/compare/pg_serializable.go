package compare

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
)

// pgSerializable locks nothing itself: the database lets only those transactions commit that could have run one after
// the other, and the rest begin again.
var pgSerializable = Model{Name: "pg-serializable", Does: "isolation level SERIALIZABLE; begins again after a serialization failure", place: onPostgres, pool: 4,
	open: func(ctx context.Context, c client) (shop, error) {
		s, err := openPostgres(ctx, c)
		return serializable{s}, err
	}}

type serializable struct{ postgres }

func (s serializable) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	attempt := func() error {
		return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			var available int64
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
	}
	err := s.count.untilDone(ctx, attempt, func(err error) bool { return sqlState(err, serializationFailure, deadlockDetected) })
	return claim{lot: lot, user: user}, err
}
