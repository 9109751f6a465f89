-- A row that exists was locked and read before, so that what it becomes follows from what it is.
INSERT INTO pending_allocations (lot, n, attempt, user_id, units, refunded, ref, epoch, seq, confirmed_at, state, reason, entries)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::bigint[], $9::bigint[],
    $10::timestamptz[], $11::text[], $12::text[], $13::int[])
ON CONFLICT (lot, n) DO UPDATE SET units = EXCLUDED.units, refunded = EXCLUDED.refunded, state = EXCLUDED.state, reason = EXCLUDED.reason,
    entries = EXCLUDED.entries, changed_at = now()
