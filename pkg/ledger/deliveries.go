package ledger

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Deliveries are claimed for the length of a lease, like charges. A receiver that does not answer fails as a whole: then
// one delivery at a time is tried, less and less often, whatever waits; the others keep their turn.

const (
	keepTold     = 24 * time.Hour      // what was delivered
	keepParked   = 30 * 24 * time.Hour // what was not
	pruneAtOnce  = 5000                // rows of one statement
	stepAside    = 5                   // attempts after which a notice holds up no later one of its subject
	longOutage   = 3                   // failures in a row after which a receiver that answers again gets everything at once
	lastErrorMax = 200                 // bytes
)

//go:embed sql/claim_deliveries.sql
var claimDeliveriesSQL string

// DueHooks returns the hooks that have something to be sent now.
func (l *Ledger) DueHooks(ctx context.Context) ([]string, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT id FROM hooks h WHERE removed_at IS NULL AND CASE WHEN failures = 0
			THEN EXISTS (SELECT FROM hook_deliveries d WHERE d.hook = h.id AND d.state = 'waiting' AND d.due_at <= now())
			ELSE retry_at <= now() AND EXISTS (SELECT FROM hook_deliveries d WHERE d.hook = h.id AND d.state = 'waiting') END ORDER BY id`)
	if err != nil {
		return nil, l.fail(err, "looking for notices to send")
	}
	hooks, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return hooks, l.fail(err, "looking for notices to send")
}

// ClaimDeliveries gives a worker up to limit notices of a hook to send within the lease, those that wait longest first. Of
// one subject (a reservation, or the lot itself) only the earliest is given. It is empty if there is nothing to send, another
// worker claims at the same moment, or the receiver fails and is to be left alone; otherwise of one that fails there is one.
func (l *Ledger) ClaimDeliveries(ctx context.Context, worker, hook string, lease time.Duration, limit int) (drop.HookClaim, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	claim := drop.HookClaim{Worker: worker, Until: time.Now().Add(lease)}
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+hookColumns+`, secret, failures FROM hooks
			WHERE id = $1 AND removed_at IS NULL AND (failures = 0 OR retry_at <= now()) FOR NO KEY UPDATE SKIP LOCKED`, hook)
		if err != nil {
			return err
		}
		claim.Hook, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (drop.Hook, error) { return scanHook(row, &claim.Secret, &claim.Failures) })
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if claim.Failures > 0 {
			limit = 1
		}
		rows, err = tx.Query(ctx, claimDeliveriesSQL, hook, worker, lease, limit, claim.Failures > 0, stepAside)
		if err != nil {
			return err
		}
		claim.Deliveries, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d drop.Delivery, err error) {
			err = row.Scan(&d.ID, &d.Notice, &d.Attempts)
			return d, err
		})
		slices.SortFunc(claim.Deliveries, func(a, b drop.Delivery) int { return int(a.ID - b.ID) })
		if err != nil || claim.Failures == 0 || len(claim.Deliveries) == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE hooks SET retry_at = now() + $2::interval WHERE id = $1`, hook, lease)
		return err
	})
	return claim, l.fail(err, "claiming notices")
}

// FinishDeliveries records how the attempts of a claim ended. A notice that another worker has claimed meanwhile, because
// the lease ran out, is left to that one, unless it was delivered. away says that the receiver answered none of them: it is
// left alone for that long, if it is still as it was when they were claimed; 0: it answers.
func (l *Ledger) FinishDeliveries(ctx context.Context, claim drop.HookClaim, sent []drop.Sent, away time.Duration) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var ids []int64
	var delivered []bool
	var pauses []time.Duration
	var whys []string
	why := ""
	for _, s := range sent {
		ids, delivered, pauses = append(ids, s.ID), append(delivered, s.Outcome == drop.Delivered), append(pauses, s.Retry)
		whys = append(whys, s.Why[:min(len(s.Why), lastErrorMax)])
		why = whys[len(whys)-1]
	}
	batch := &pgx.Batch{}
	batch.Queue(`UPDATE hook_deliveries d SET state = CASE WHEN t.delivered THEN 'delivered' ELSE 'waiting' END, ended_at = CASE WHEN t.delivered THEN now() END,
			worker = '', due_at = now() + t.pause, last_error = t.why
		FROM unnest($1::bigint[], $2::boolean[], $3::interval[], $4::text[]) AS t(id, delivered, pause, why)
		WHERE d.id = t.id AND d.state <> 'delivered' AND (t.delivered OR d.worker = $5)`, ids, delivered, pauses, whys, claim.Worker)
	switch {
	case away > 0:
		batch.Queue(`UPDATE hooks SET failures = $2 + 1, retry_at = now() + $3::interval, failing_since = coalesce(failing_since, now()), last_error = $4
			WHERE id = $1 AND failures = $2`, claim.ID, claim.Failures, away, why)
	case claim.Failures > 0:
		batch.Queue(`UPDATE hooks SET failures = 0, retry_at = NULL, failing_since = NULL, last_error = '' WHERE id = $1`, claim.ID)
	}
	if away == 0 && claim.Failures >= longOutage {
		batch.Queue(`UPDATE hook_deliveries SET due_at = created_at WHERE hook = $1 AND state = 'waiting' AND worker = '' AND attempts > 0 AND due_at > now()`, claim.ID)
	}
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	return l.fail(err, "recording what was sent")
}

// PruneDeliveries parks notices that were tried for three days, and returns how many; it deletes those that were delivered a
// day ago or parked a month ago, and what waits for removed hooks.
func (l *Ledger) PruneDeliveries(ctx context.Context) (parked int64, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	// One that nobody tried while its receiver answered, for want of a worker, is tried yet.
	tag, err := l.pool.Exec(ctx, `UPDATE hook_deliveries d SET state = 'parked', ended_at = now() FROM hooks h
		WHERE h.id = d.hook AND d.state = 'waiting' AND d.worker = '' AND d.retry_until < now() AND (d.attempts > 0 OR h.failing_since < now() - $1::interval)`, noticeLife)
	if err != nil {
		return 0, l.fail(err, "parking notices")
	}
	parked = tag.RowsAffected()
	for {
		tag, err := l.pool.Exec(ctx, `DELETE FROM hook_deliveries WHERE id = ANY(ARRAY(
			(SELECT id FROM hook_deliveries WHERE state <> 'waiting' AND ended_at < now() - $1::interval AND (state = 'delivered' OR ended_at < now() - $2::interval) LIMIT $3)
			UNION ALL (SELECT d.id FROM hooks h JOIN hook_deliveries d ON d.hook = h.id WHERE h.removed_at IS NOT NULL AND d.state = 'waiting' LIMIT $3)))`, keepTold, keepParked, pruneAtOnce)
		if err != nil || tag.RowsAffected() < pruneAtOnce {
			return parked, l.fail(err, "pruning notices")
		}
	}
}

// NoticesToSend returns how many notices wait, or are noted to be looked at within seconds, that a worker can do something
// about: those of a receiver that does not answer are left out.
func (l *Ledger) NoticesToSend(ctx context.Context) (n int64, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	err = l.pool.QueryRow(ctx, `SELECT CASE WHEN EXISTS (SELECT FROM hooks WHERE removed_at IS NULL) THEN
		(SELECT count(*) FROM hooks h JOIN hook_deliveries d ON d.hook = h.id WHERE h.removed_at IS NULL AND h.failures = 0 AND d.state = 'waiting' AND (d.worker <> '' OR d.due_at <= now()))
		+ (SELECT count(*) FROM hook_lots WHERE stock_at IS NOT NULL OR opens_at <= now()) + (SELECT count(*) FROM refunds_due WHERE NOT told) ELSE 0 END`).Scan(&n)
	return n, l.fail(err, "counting notices")
}
