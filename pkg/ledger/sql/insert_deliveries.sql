-- One row for each notice and each hook that wants it, in the order of the notices.
INSERT INTO hook_deliveries (hook, kind, lot, n, epoch, seq, notice, retry_until)
SELECT h.id, t.kind, t.lot, t.n, t.epoch, t.seq, t.notice::jsonb, now() + $8::interval
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::timestamptz[])
    WITH ORDINALITY AS t(kind, lot, n, epoch, seq, notice, since, nth)
JOIN hooks h ON h.removed_at IS NULL AND t.kind = ANY(h.kinds) AND (t.since IS NULL OR h.created_at <= t.since)
    AND (h.lot = '' OR h.lot = t.lot) AND (h.lot_group = '' OR starts_with(t.lot, h.lot_group || ':'))
ORDER BY t.nth
ON CONFLICT DO NOTHING
