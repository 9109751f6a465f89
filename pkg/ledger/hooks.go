package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const hookColumns = `id, url, lot, lot_group, kinds, allow_private, created_at, created_by`

// AddHook records a hook with its secret, which nothing but HookSecret and a claim ever returns. Error: fault.Conflict if
// the same receiver is told of the same lots already.
func (l *Ledger) AddHook(ctx context.Context, h drop.Hook, secret string) (drop.Hook, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		// What was told of the stock is old where nobody has listened since.
		_, err := tx.Exec(ctx, `UPDATE hook_lots SET sold_out = NULL, stock_at = NULL WHERE sold_out IS NOT NULL
			AND NOT EXISTS (SELECT FROM hooks WHERE removed_at IS NULL AND kinds && ARRAY['sold_out', 'available_again'])`)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO hooks (id, url, secret, lot, lot_group, kinds, allow_private, created_by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
			ON CONFLICT DO NOTHING`, h.ID, h.URL, secret, string(h.Lot), h.Group, texts(h.Kinds), h.AllowPrivate, h.CreatedBy)
		if err != nil || tag.RowsAffected() == 1 {
			return err
		}
		var other string
		err = tx.QueryRow(ctx, `SELECT id FROM hooks WHERE url = $1 AND lot = $2 AND lot_group = $3 AND removed_at IS NULL`, h.URL, string(h.Lot), h.Group).Scan(&other)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return fault.New(fault.Conflict, "the hook %s tells the same receiver of the same lots", other).WithField("url").
			WithHint("to change it, remove it first: dropctl hook remove %s", other)
	})
	if err != nil {
		return drop.Hook{}, l.fail(err, "adding a hook")
	}
	made, _, err := l.HookSecret(ctx, h.ID)
	return made, err
}

// HookSecret returns a hook in force, and the secret that it signs with. Error: fault.NotFound.
func (l *Ledger) HookSecret(ctx context.Context, id string) (h drop.Hook, secret string, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT `+hookColumns+`, secret FROM hooks WHERE id = $1 AND removed_at IS NULL`, id)
	if err != nil {
		return drop.Hook{}, "", l.fail(err, "looking up a hook")
	}
	h, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (drop.Hook, error) { return scanHook(row, &secret) })
	if errors.Is(err, pgx.ErrNoRows) {
		return drop.Hook{}, "", noHook(id)
	}
	return h, secret, l.fail(err, "looking up a hook")
}

func noHook(id string) error {
	return fault.New(fault.NotFound, "there is no hook %s", id).WithField("id").WithHint("see the hooks: dropctl hook list")
}

// scanHook reads the columns of a hook, and what stands behind them.
func scanHook(row pgx.CollectableRow, more ...any) (drop.Hook, error) {
	var h drop.Hook
	err := row.Scan(append([]any{&h.ID, &h.URL, &h.Lot, &h.Group, &h.Kinds, &h.AllowPrivate, &h.Created, &h.CreatedBy}, more...)...)
	h.Created = h.Created.UTC()
	return h, err
}

// mostCounted is how many waiting notices of a hook are counted: whoever asks, every few seconds, has to know no better.
const mostCounted = 20_000

// Hooks returns the hooks in force, oldest first, and how their receivers are doing: of waiting notices at most 20,000 are
// counted. Nothing of a secret is among it.
func (l *Ledger) Hooks(ctx context.Context) ([]drop.HookState, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	hooks, err := readHooks(ctx, l.pool)
	return hooks, l.fail(err, "reading the hooks")
}

func readHooks(ctx context.Context, q querier) ([]drop.HookState, error) {
	rows, err := q.Query(ctx, `SELECT `+hookColumns+`, failing_since, last_error, coalesce(w.n, 0), w.oldest, coalesce(p.n, 0)
		FROM hooks h LEFT JOIN LATERAL (SELECT count(*) AS n, min(created_at) AS oldest FROM (
			SELECT created_at FROM hook_deliveries d WHERE d.hook = h.id AND d.state = 'waiting' ORDER BY due_at, id LIMIT $1) AS first) w ON true
		LEFT JOIN LATERAL (SELECT count(*) AS n FROM hook_deliveries d WHERE d.hook = h.id AND d.state = 'parked') p ON true
		WHERE removed_at IS NULL ORDER BY h.created_at, h.id`, mostCounted)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s drop.HookState, err error) {
		var failing, oldest *time.Time
		s.Hook, err = scanHook(row, &failing, &s.LastError, &s.Waiting, &oldest, &s.Parked)
		s.FailingSince, s.Oldest = timeOf(failing), timeOf(oldest)
		return s, err
	})
}

// RemoveHook ends a hook for good, forgets its secret, and drops what its receiver has not been told yet; changed is false
// if it was removed before. Error: fault.NotFound.
func (l *Ledger) RemoveHook(ctx context.Context, id, actor string) (changed bool, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	tag, err := l.pool.Exec(ctx, `UPDATE hooks SET removed_at = now(), removed_by = $2, secret = '' WHERE id = $1 AND removed_at IS NULL`, id, actor)
	if err != nil || tag.RowsAffected() == 1 {
		return err == nil, l.fail(err, "removing a hook")
	}
	var known bool
	if err := l.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM hooks WHERE id = $1)`, id).Scan(&known); err != nil {
		return false, l.fail(err, "looking up a hook")
	}
	if !known {
		return false, noHook(id)
	}
	return false, nil
}

// RetryParked lets the notices that were given up be tried for three days more, and returns how many. Error: fault.NotFound.
func (l *Ledger) RetryParked(ctx context.Context, id string) (int64, error) {
	if _, _, err := l.HookSecret(ctx, id); err != nil {
		return 0, err
	}
	ctx, cancel := l.within(ctx)
	defer cancel()
	tag, err := l.pool.Exec(ctx, `UPDATE hook_deliveries SET state = 'waiting', ended_at = NULL, attempts = 0, due_at = now(), retry_until = now() + $2::interval
		WHERE hook = $1 AND state = 'parked'`, id, noticeLife)
	return tag.RowsAffected(), l.fail(err, "taking up parked notices")
}
