-- Of what would be finalised next, that of which the order ledger has rows already: it is finalised if they say what would be written,
-- else left alone for a while.
WITH next AS MATERIALIZED (
    SELECT ctid AS place, lot, n FROM pending_allocations
    WHERE state IN ('PENDING', 'PROCESSING') AND due_at <= now() AND charge = 0
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
), known AS MATERIALIZED (
    SELECT place, recorded FROM next
    CROSS JOIN LATERAL (SELECT array_agg((o.units, o.attempt, o.user_id, o.ref) ORDER BY o.entry) AS recorded
        FROM order_ledger o WHERE o.lot = next.lot AND o.n = next.n OFFSET 0) AS entries
    WHERE recorded IS NOT NULL
), judged AS MATERIALIZED (
    SELECT place, recorded IS NOT DISTINCT FROM CASE WHEN p.refunded > 0
        THEN ARRAY[(p.units, p.attempt, p.user_id, p.ref), (-p.refunded, p.attempt, p.user_id, p.ref)]
        ELSE ARRAY[(p.units, p.attempt, p.user_id, p.ref)] END AS same
    FROM known JOIN pending_allocations p ON p.ctid = place
)
UPDATE pending_allocations p SET changed_at = now(),
    state = CASE WHEN same THEN 'PROCESSED' ELSE p.state END,
    entries = CASE WHEN NOT same THEN p.entries WHEN refunded > 0 THEN 2 ELSE 1 END,
    due_at = CASE WHEN same THEN p.due_at ELSE now() + $2::interval END
FROM judged WHERE p.ctid = place
RETURNING p.lot, p.attempt, p.n, same
