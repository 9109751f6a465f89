-- The lots are locked and every event was looked up, so that a conflict here can only be a mistake of ours.
INSERT INTO reservation_events (lot, epoch, seq, kind, reservation, event_at, line, hash)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::timestamptz[], $7::text[], $8::bytea[])
