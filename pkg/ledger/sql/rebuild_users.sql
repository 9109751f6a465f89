SELECT user_id, coalesce(sum(qty) FILTER (WHERE state = 'held'), 0)::bigint, coalesce(sum(qty) FILTER (WHERE state = 'confirmed'), 0)::bigint,
    coalesce(max(attempt) FILTER (WHERE state = 'held'), '')
FROM reservations
WHERE lot = $1 AND (state = 'held' AND NOT rejected OR state = 'confirmed')
GROUP BY user_id
