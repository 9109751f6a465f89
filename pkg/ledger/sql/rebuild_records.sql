-- $1 lot, $2 when a reservation may have ended at the earliest.
-- A hold that a late confirm took anew has the same record in Redis as what became of it, so that it is left out.
FROM reservations r
WHERE r.lot = $1
  AND (r.state = 'held' AND NOT r.rejected OR r.state = 'confirmed' OR r.changed_at >= $2)
  AND NOT (r.state = 'expired' AND EXISTS (SELECT FROM reservations t WHERE t.lot = $1 AND t.taken_from = r.n AND t.taken_from > 0))
