package compare

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
)

// postgres is what the models have in common that count a lot's units in one row. They differ in how they take one.
type postgres struct {
	pool  *pgxpool.Pool
	count *counts
}

func openPostgres(ctx context.Context, c client) (postgres, error) {
	config, err := pgxpool.ParseConfig(c.url)
	if err != nil {
		return postgres{}, fault.New(fault.Failed, "the private server's address cannot be read") // without it: it has a password
	}
	config.MaxConns = int32(c.pool)
	config.MinConns = config.MaxConns // opened before the sale, not in it
	config.ConnConfig.RuntimeParams["application_name"] = "compare"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return postgres{}, fault.Wrap(fault.Unavailable, err, "connecting to the private PostgreSQL")
	}
	return postgres{pool, c.count}, nil
}

func (s postgres) Close() error {
	s.pool.Close()
	return nil
}

// The fill factor leaves room for new versions of a hot row on its page.
const countTables = `
DROP TABLE IF EXISTS lots, holds, units;
CREATE TABLE lots (lot text PRIMARY KEY, available bigint NOT NULL CHECK (available >= 0), version bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
CREATE TABLE holds (lot text, user_id text, state text NOT NULL DEFAULT 'held', deadline timestamptz NOT NULL, PRIMARY KEY (lot, user_id));
CREATE INDEX holds_due ON holds (deadline) WHERE state = 'held';`

func (s postgres) Stock(ctx context.Context, lots []drop.LotID, units int64) error {
	if _, err := s.pool.Exec(ctx, countTables); err != nil {
		return err
	}
	_, err := s.pool.Exec(ctx, `INSERT INTO lots (lot, available) SELECT unnest($1::text[]), $2`, names(lots), units)
	return err
}

func names(lots []drop.LotID) []string {
	var list []string
	for _, lot := range lots {
		list = append(list, string(lot))
	}
	return list
}

// insertHold writes the hold; the key of the table allows one to a user.
func insertHold(ctx context.Context, tx pgx.Tx, lot drop.LotID, user string, hold time.Duration) error {
	tag, err := tx.Exec(ctx, `INSERT INTO holds (lot, user_id, deadline) VALUES ($1, $2, now() + $3::interval) ON CONFLICT DO NOTHING`, string(lot), user, hold)
	if err == nil && tag.RowsAffected() == 0 {
		return overLimit(user)
	}
	return err
}

func (s postgres) Confirm(ctx context.Context, c claim) error {
	tag, err := s.pool.Exec(ctx, `UPDATE holds SET state = 'sold' WHERE lot = $1 AND user_id = $2 AND state = 'held' AND deadline > now()`, string(c.lot), c.user)
	if err == nil && tag.RowsAffected() == 0 {
		return tooLate(c)
	}
	return err
}

func (s postgres) Sweep(ctx context.Context) error {
	return sweepUntilClean(ctx, s.pool, `
		WITH due AS (
			DELETE FROM holds WHERE (lot, user_id) IN (
				SELECT lot, user_id FROM holds WHERE state = 'held' AND deadline <= now() LIMIT 1000 FOR UPDATE SKIP LOCKED)
			RETURNING lot),
		back AS (SELECT lot, count(*) AS units FROM due GROUP BY lot)
		UPDATE lots SET available = available + units, version = version + 1 FROM back WHERE lots.lot = back.lot`)
}

func sweepUntilClean(ctx context.Context, pool *pgxpool.Pool, sweep string) error {
	for {
		if tag, err := pool.Exec(ctx, sweep); err != nil || tag.RowsAffected() == 0 {
			return err
		}
	}
}

func (s postgres) Knows(ctx context.Context, c claim) (known bool, err error) {
	err = s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM holds WHERE lot = $1 AND user_id = $2)`, string(c.lot), c.user).Scan(&known)
	return known, err
}

// refusal says why a statement that takes a unit took none.
func (s postgres) refusal(ctx context.Context, lot drop.LotID, user string) error {
	switch known, err := s.Knows(ctx, claim{lot: lot, user: user}); {
	case err != nil:
		return err
	case known:
		return overLimit(user)
	}
	return soldOut(lot)
}

// untilDone tries until an attempt is not in vain because of somebody else. It waits ever longer in between, as two who
// met once would meet again.
func (c *counts) untilDone(ctx context.Context, attempt func() error, inVain func(error) bool) error {
	for failures := 1; ; failures++ {
		err := attempt()
		if err == nil || !inVain(err) {
			return err
		}
		c.aborts.Add(1)
		if err := retry.Sleep(ctx, retry.Pause(failures, time.Millisecond, 32*time.Millisecond)); err != nil {
			return err
		}
		c.retries.Add(1)
	}
}

// sqlState reports whether PostgreSQL answered with one of these codes.
func sqlState(err error, codes ...string) bool {
	var problem *pgconn.PgError
	if !errors.As(err, &problem) {
		return false
	}
	for _, code := range codes {
		if problem.Code == code {
			return true
		}
	}
	return false
}

const (
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
)
