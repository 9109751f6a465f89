package compare

import (
	"context"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// pgUnitRows has a row for each unit. Whoever wants one takes the first that nobody else has his hands on, so nobody
// waits; but a lot of a million units is a million rows before the first is sold.
var pgUnitRows = Model{Name: "pg-unit-rows", Does: "a row for each unit, taken with FOR UPDATE SKIP LOCKED", place: onPostgres, pool: 16,
	open: func(ctx context.Context, c client) (shop, error) {
		s, err := openPostgres(ctx, c)
		return unitRows{s}, err
	}}

type unitRows struct{ postgres }

const unitTables = `
DROP TABLE IF EXISTS lots, holds, units;
CREATE TABLE units (lot text, n bigint, user_id text, state text NOT NULL DEFAULT 'free', deadline timestamptz, PRIMARY KEY (lot, n)) WITH (fillfactor = 70);`

const unitIndexes = `
CREATE INDEX units_free ON units (lot, n) WHERE state = 'free';
CREATE UNIQUE INDEX units_user ON units (lot, user_id) WHERE user_id IS NOT NULL;
CREATE INDEX units_due ON units (deadline) WHERE state = 'held';
ANALYZE units;`

func (s unitRows) Stock(ctx context.Context, lots []drop.LotID, units int64) error {
	if _, err := s.pool.Exec(ctx, unitTables); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, `INSERT INTO units (lot, n) SELECT lot, n FROM unnest($1::text[]) lot, generate_series(1, $2::bigint) n`, names(lots), units); err != nil {
		return err
	}
	_, err := s.pool.Exec(ctx, unitIndexes)
	return err
}

const takeUnit = `
	UPDATE units SET user_id = $2, state = 'held', deadline = now() + $3::interval
	WHERE (lot, n) = (SELECT lot, n FROM units WHERE lot = $1 AND state = 'free' ORDER BY n LIMIT 1 FOR UPDATE SKIP LOCKED)`

func (s unitRows) Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error) {
	c := claim{lot: lot, user: user}
	tag, err := s.pool.Exec(ctx, takeUnit, string(lot), user, hold)
	switch {
	case sqlState(err, uniqueViolation):
		return c, overLimit(user)
	case err == nil && tag.RowsAffected() == 0: // or others have their hands on the last ones and may let go
		return c, soldOut(lot)
	}
	return c, err
}

func (s unitRows) Confirm(ctx context.Context, c claim) error {
	tag, err := s.pool.Exec(ctx, `UPDATE units SET state = 'sold' WHERE lot = $1 AND user_id = $2 AND state = 'held' AND deadline > now()`, string(c.lot), c.user)
	if err == nil && tag.RowsAffected() == 0 {
		return tooLate(c)
	}
	return err
}

func (s unitRows) Sweep(ctx context.Context) error {
	return sweepUntilClean(ctx, s.pool, `
		UPDATE units SET state = 'free', user_id = NULL, deadline = NULL WHERE (lot, n) IN (
			SELECT lot, n FROM units WHERE state = 'held' AND deadline <= now() LIMIT 1000 FOR UPDATE SKIP LOCKED)`)
}

func (s unitRows) Knows(ctx context.Context, c claim) (known bool, err error) {
	err = s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM units WHERE lot = $1 AND user_id = $2)`, string(c.lot), c.user).Scan(&known)
	return known, err
}
