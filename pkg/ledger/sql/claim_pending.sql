-- Materialised, since a plan that ran the inner part twice would claim more than was asked for. What a payment gateway was
-- asked about is not booked without it, whatever the settings say now.
WITH claimable AS MATERIALIZED (
    SELECT lot, n FROM pending_allocations
    WHERE state IN ('PENDING', 'PROCESSING') AND due_at <= now() AND charge = 0
    ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE pending_allocations p SET state = 'PROCESSING', worker = $1, due_at = now() + $2::interval, changed_at = now()
FROM claimable c WHERE p.lot = c.lot AND p.n = c.n
RETURNING p.lot, p.n, p.attempt, p.user_id, p.units, p.ref, p.confirmed_at
