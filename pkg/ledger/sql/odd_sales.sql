-- The first reservation of a lot whose sales are not what the ledger has folded of it. Its units are those of the order
-- ledger, and of an allocation that is not finalised; order rows of no confirmed reservation have none. A confirmed
-- reservation without a sound allocation could not be refunded: that would stop the lot.
WITH r AS (SELECT n, attempt, user_id, ref, CASE WHEN state = 'confirmed' THEN qty ELSE 0 END AS units FROM reservations WHERE lot = $1),
o AS (SELECT n, sum(units)::bigint AS units, count(*) AS entries, min(attempt) AS attempt, max(attempt) AS last_attempt, min(user_id) AS user_id,
        max(user_id) AS last_user, max(ref) FILTER (WHERE kind = 'sale') AS ref FROM order_ledger WHERE lot = $1 GROUP BY n),
p AS (SELECT n, CASE WHEN state IN ('PENDING', 'PROCESSING') THEN units - refunded ELSE 0 END AS units, entries, attempt, user_id
        FROM pending_allocations WHERE lot = $1)
SELECT n, coalesce(r.units, 0), coalesce(o.units, 0), coalesce(p.units, 0), r.n IS NOT NULL
FROM r FULL JOIN o USING (n) FULL JOIN p USING (n)
WHERE coalesce(r.units, 0) <> coalesce(o.units, 0) + coalesce(p.units, 0) OR r.n IS NULL
    OR o.attempt <> r.attempt OR o.last_attempt <> r.attempt OR o.user_id <> r.user_id OR o.last_user <> r.user_id OR o.ref <> r.ref AND r.ref <> ''
    OR r.units > 0 AND p.n IS NULL OR p.attempt <> r.attempt OR p.user_id <> r.user_id OR p.entries <> coalesce(o.entries, 0)
ORDER BY n LIMIT 1
