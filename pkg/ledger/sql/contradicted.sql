-- Of these finished allocations, those whose rows in the order ledger say something else.
SELECT p.lot, p.attempt, p.n FROM pending_allocations p JOIN unnest($1::text[], $2::bigint[]) AS k(lot, n) ON p.lot = k.lot AND p.n = k.n
WHERE p.state = 'PROCESSED' AND p.worker = $3
  AND (SELECT array_agg((o.units, o.attempt, o.user_id, o.ref) ORDER BY o.entry) FROM order_ledger o WHERE o.lot = p.lot AND o.n = p.n)
      IS DISTINCT FROM CASE WHEN p.refunded > 0
          THEN ARRAY[(p.units, p.attempt, p.user_id, p.ref), (-p.refunded, p.attempt, p.user_id, p.ref)]
          ELSE ARRAY[(p.units, p.attempt, p.user_id, p.ref)] END
ORDER BY p.lot, p.n
