SELECT lot, epoch, seq, event_at, line, hash, recorded_at FROM reservation_events
WHERE lot = $1 AND (epoch, seq) > ($2, $3) ORDER BY lot, epoch, seq LIMIT $4
