-- First what was asked before and has no answer yet, then what nobody was asked to pay so far, or not since it was
-- declined. A charge is written together with the claim, before any gateway hears of it. OFFSET 0 keeps the planner from
-- joining what it takes for a small table.
WITH again AS MATERIALIZED (
    SELECT lot, n, number FROM charges WHERE state = 'open' AND due_at <= now() ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED
), asked AS (
    UPDATE charges c SET worker = $1, due_at = now() + $2::interval, asked = c.asked + 1
    FROM again a WHERE c.lot = a.lot AND c.n = a.n AND c.number = a.number
    RETURNING c.lot, c.n, c.number, c.units, c.asked
), claimable AS MATERIALIZED (
    SELECT lot, n FROM pending_allocations
    WHERE state IN ('PENDING', 'PROCESSING') AND (state = 'PENDING' OR charge = 0) AND due_at <= now() AND (given_up_at IS NULL OR given_up_at > now())
    ORDER BY due_at LIMIT $3 - (SELECT count(*) FROM again) FOR UPDATE SKIP LOCKED
), begun AS (
    UPDATE pending_allocations p SET state = 'PROCESSING', charge = p.charge + 1, worker = $1, due_at = 'infinity', changed_at = now()
    FROM claimable c WHERE p.lot = c.lot AND p.n = c.n
    RETURNING p.lot, p.n, p.charge, p.units
), made AS (
    INSERT INTO charges (lot, n, number, units, worker, due_at) SELECT lot, n, charge, units, $1, now() + $2::interval FROM begun
    RETURNING lot, n, number, units, asked
)
SELECT c.lot, c.n, p.attempt, c.number, p.user_id, c.units, p.ref, p.confirmed_at, c.asked
FROM (SELECT * FROM asked UNION ALL SELECT * FROM made) c
CROSS JOIN LATERAL (SELECT * FROM pending_allocations a WHERE a.lot = c.lot AND a.n = c.n OFFSET 0) p
