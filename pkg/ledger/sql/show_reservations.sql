-- The events of a user's reservations, or of one. They lie between the hold and the last change, in any epoch; each epoch's
-- part is found along the primary key.
SELECT e.lot, e.epoch, e.seq, e.event_at, e.line, e.hash, e.recorded_at
FROM (SELECT lot, n, last_seq FROM reservations
      WHERE ($1 = '' OR lot = $1) AND ($2 = '' OR user_id = $2) AND ($4::bigint = 0 OR lot = $3 AND n = $4 AND attempt = $5)) AS r
JOIN lot_epochs p ON p.lot = r.lot
CROSS JOIN LATERAL (SELECT * FROM reservation_events j WHERE j.lot = r.lot AND j.epoch = p.epoch AND j.seq BETWEEN r.n AND r.last_seq AND j.reservation = r.n OFFSET 0) AS e
WHERE (e.lot, e.epoch, e.seq) > ($6, $7, $8)
ORDER BY e.lot, e.epoch, e.seq LIMIT $9
