-- The plan is made for the values given, so that a condition whose parameter is empty costs nothing.
FROM reservations
WHERE ($1 = '' OR lot = $1)
  AND ($2 = '' OR user_id = $2)
  AND ($8 = '' OR starts_with(user_id, $8 || ':'))
  AND ($3::text[] = '{}' OR state = ANY($3::text[]))
  AND ($4::timestamptz IS NULL OR state IN ('held', 'confirmed') OR changed_at >= $4)
  AND ($5 = '' OR (lot, n) > ($5, $6::bigint))
ORDER BY lot, n
LIMIT $7
