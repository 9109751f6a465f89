-- Nobody is asked in between, so that taking and finalising are one change of each row. What a payment gateway was asked about is
-- not finalised without it, whatever the settings say now. A row that is locked keeps its place (ctid), and one that changed just
-- before it was locked has another than this statement can see: it is left for the next one. Only workers of older versions leave
-- a row in PROCESSING without a charge, and refunds folded meanwhile in refunded.
WITH finalised AS (
    UPDATE pending_allocations SET state = 'PROCESSED', entries = CASE WHEN refunded > 0 THEN 2 ELSE 1 END, changed_at = now()
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM pending_allocations
        WHERE state IN ('PENDING', 'PROCESSING') AND due_at <= now() AND charge = 0
        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING lot, n, units, refunded, attempt, user_id, ref
), recorded AS (
    INSERT INTO order_ledger (lot, n, entry, kind, units, attempt, user_id, ref)
    SELECT lot, n, 1, 'sale', units, attempt, user_id, ref FROM finalised
    UNION ALL
    SELECT lot, n, 2, 'refund', -refunded, attempt, user_id, ref FROM finalised WHERE refunded > 0
)
SELECT count(*) FROM finalised
