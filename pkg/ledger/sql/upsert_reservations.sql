INSERT INTO reservations AS r (lot, n, attempt, user_id, state, qty, refunded, rest, deadline, created_at, changed_at, last_seq, ref, taken_from, key, asked, rejected)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::bigint[], $13::text[], $14::bigint[], $15::text[], $16::text[], $17::boolean[])
ON CONFLICT (lot, n) DO UPDATE SET state = EXCLUDED.state, qty = EXCLUDED.qty, refunded = EXCLUDED.refunded, rest = EXCLUDED.rest,
    deadline = EXCLUDED.deadline, changed_at = EXCLUDED.changed_at, last_seq = EXCLUDED.last_seq, ref = EXCLUDED.ref
