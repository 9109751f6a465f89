package ledger

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Activity is what goes on in the database, by whomever.
type Activity struct {
	Commits, Rollbacks int64 // since its statistics were reset; sessions report theirs up to a second late
	Waiting            int64 // sessions that wait for a lock at the moment
	Hidden             bool  // this role may not see of all sessions whether they wait
}

// Activity asks for it, in a transaction that counts as well.
func (l *Ledger) Activity(ctx context.Context) (a Activity, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	a, err = ActivityOf(ctx, l.pool)
	return a, l.fail(err, "looking at what the database does")
}

// ActivityOf asks any database for it, which need not be a ledger's.
func ActivityOf(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (a Activity, err error) {
	var flushed *string // our own transactions are to be counted by the next look, so that they can be taken off
	err = db.QueryRow(ctx, `SELECT d.xact_commit, d.xact_rollback, s.waiting, s.hidden, pg_stat_force_next_flush()::text
		FROM pg_stat_database d,
			(SELECT count(*) FILTER (WHERE wait_event_type = 'Lock') AS waiting, coalesce(bool_or(query = '<insufficient privilege>'), false) AS hidden
			 FROM pg_stat_activity WHERE datname = current_database() AND usesysid IS NOT NULL) s -- sessions alone: autovacuum has no user
		WHERE d.datname = current_database()`).Scan(&a.Commits, &a.Rollbacks, &a.Waiting, &a.Hidden, &flushed)
	return a, err
}
