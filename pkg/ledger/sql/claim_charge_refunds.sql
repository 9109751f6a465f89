WITH claimable AS MATERIALIZED (
    SELECT lot, n, number, entry FROM charge_refunds WHERE done_at IS NULL AND due_at <= now() ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE charge_refunds r SET worker = $1, due_at = now() + $2::interval, asked = r.asked + 1
    FROM claimable c WHERE r.lot = c.lot AND r.n = c.n AND r.number = c.number AND r.entry = c.entry
    RETURNING r.lot, r.n, r.number, r.entry, r.units, r.asked
)
SELECT r.lot, r.n, p.attempt, r.number, r.entry, c.charged, p.user_id, r.units, c.units, p.ref, r.asked
FROM claimed r
CROSS JOIN LATERAL (SELECT * FROM charges WHERE lot = r.lot AND n = r.n AND number = r.number OFFSET 0) c
CROSS JOIN LATERAL (SELECT * FROM pending_allocations a WHERE a.lot = r.lot AND a.n = r.n OFFSET 0) p
