package compare

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dropctl/dropctl/pkg/drop"
)

// pgOptimistic reads the row with its version, and writes only if nobody has written since; else it begins again.
var pgOptimistic = Model{Name: "pg-optimistic", Does: "a version column, compared when writing; begins again if it has changed", place: onPostgres, pool: 4,
	open: func(ctx context.Context, c client) (shop, error) {
		s, err := openPostgres(ctx, c)
		return optimistic{s}, err
	}}

type optimistic struct{ postgres }

var errStale = errors.New("somebody has written since")

const takeVersion = `
	WITH taken AS (
		UPDATE lots SET available = available - 1, version = version + 1 WHERE lot = $1 AND version = $4 RETURNING lot)
	INSERT INTO holds (lot, user_id, deadline) SELECT lot, $2, now() + $3::interval FROM taken`

func (s optimistic) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	// Both statements on one connection: whoever waits for another one in between comes too late.
	attempt := func() error {
		return s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return takeUnchanged(ctx, conn, lot, user, hold) })
	}
	err := s.count.untilDone(ctx, attempt, func(err error) bool { return errors.Is(err, errStale) })
	return claim{lot: lot, user: user}, err
}

func takeUnchanged(ctx context.Context, conn *pgxpool.Conn, lot drop.LotID, user string, hold time.Duration) error {
	var available, version int64
	if err := conn.QueryRow(ctx, `SELECT available, version FROM lots WHERE lot = $1`, string(lot)).Scan(&available, &version); err != nil {
		return err
	}
	if available == 0 {
		return soldOut(lot)
	}
	tag, err := conn.Exec(ctx, takeVersion, string(lot), user, hold, version)
	switch {
	case sqlState(err, uniqueViolation):
		return overLimit(user)
	case err == nil && tag.RowsAffected() == 0:
		return errStale
	}
	return err
}
