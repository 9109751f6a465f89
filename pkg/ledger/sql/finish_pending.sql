-- How many were finished, and how many rows of theirs the order ledger had already. The rows are locked, so that their place
-- (ctid) stays; OFFSET 0 keeps the planner from joining what it takes for a small table.
WITH finished AS (
    UPDATE pending_allocations p SET state = 'PROCESSED', entries = CASE WHEN refunded > 0 THEN 2 ELSE 1 END, changed_at = now()
    FROM unnest($1::text[], $2::bigint[]) AS k(lot, n)
        CROSS JOIN LATERAL (SELECT a.ctid, a.state, a.worker FROM pending_allocations a WHERE a.lot = k.lot AND a.n = k.n OFFSET 0) AS found
    WHERE p.ctid = found.ctid AND found.state = 'PROCESSING' AND found.worker = $3
    RETURNING p.lot, p.n, p.units, p.refunded, p.attempt, p.user_id, p.ref
), recorded AS (
    INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref)
    SELECT lot, n, 1, 'sale', units, attempt, user_id, ref FROM finished
    UNION ALL
    SELECT lot, n, 2, 'refund', -refunded, attempt, user_id, ref FROM finished WHERE refunded > 0
    ON CONFLICT (lot, n, entry) DO NOTHING
    RETURNING 1
)
SELECT count(*), coalesce(sum(CASE WHEN refunded > 0 THEN 2 ELSE 1 END), 0) - (SELECT count(*) FROM recorded) FROM finished
