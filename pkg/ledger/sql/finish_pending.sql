-- How many were finished, and how many rows of theirs the order ledger had already.
WITH finished AS (
    UPDATE pending_allocations p SET state = 'PROCESSED', entries = CASE WHEN refunded > 0 THEN 2 ELSE 1 END, changed_at = now()
    FROM unnest($1::text[], $2::bigint[]) AS k(lot, n)
    WHERE p.lot = k.lot AND p.n = k.n AND p.state = 'PROCESSING' AND p.worker = $3
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
