UPDATE lots l SET name = t.name, capacity = t.capacity, user_limit = t.user_limit, hold_ms = t.hold_ms, max_hold_ms = t.max_hold_ms,
    opens = t.opens, closes = t.closes, late = t.late, status = t.status, held = t.held, sold = t.sold,
    folded_at = CASE WHEN (t.epoch, t.seq) > (l.epoch, l.seq) THEN now() ELSE l.folded_at END,
    epoch = t.epoch, seq = t.seq, hash = t.hash, waiting = t.waiting, seen = true, event_at = t.event_at,
    stopped = t.stopped, stopped_reason = t.stopped_reason, stopped_at = CASE WHEN t.stopped = '' THEN NULL ELSE coalesce(l.stopped_at, now()) END,
    adjust_actor = t.adjust_actor, adjust_reason = t.adjust_reason,
    archive = CASE WHEN l.archive = 'begun' AND t.status <> 'closed' THEN '' ELSE l.archive END, -- it may sell again
    archived_by = CASE WHEN l.archive = 'begun' AND t.status <> 'closed' THEN '' ELSE l.archived_by END
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::timestamptz[], $8::timestamptz[], $9::text[], $10::text[],
    $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bytea[], $16::bigint[], $17::timestamptz[], $18::text[], $19::text[], $20::text[], $21::text[])
    AS t(lot, name, capacity, user_limit, hold_ms, max_hold_ms, opens, closes, late, status, held, sold, epoch, seq, hash, waiting, event_at,
         stopped, stopped_reason, adjust_actor, adjust_reason)
WHERE l.lot = t.lot
