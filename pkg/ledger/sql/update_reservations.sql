-- The lot is locked and the row was read: it exists, and what it becomes follows from what it is. Written as an upsert
-- because that always goes through the primary key, whatever the planner thinks of partitions; the values for an
-- insert are never used.
INSERT INTO reservations AS r (lot, n, state, qty, refunded, rest, deadline, changed_at, last_seq, ref, attempt, user_id, created_at, taken_from, key, asked, rejected)
SELECT t.*, '', '', t.changed_at, 0, '', '', false
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::timestamptz[], $8::timestamptz[], $9::bigint[], $10::text[])
    AS t(lot, n, state, qty, refunded, rest, deadline, changed_at, last_seq, ref)
ON CONFLICT (lot, n) DO UPDATE SET state = EXCLUDED.state, qty = EXCLUDED.qty, refunded = EXCLUDED.refunded, rest = EXCLUDED.rest,
    deadline = EXCLUDED.deadline, changed_at = EXCLUDED.changed_at, last_seq = EXCLUDED.last_seq, ref = EXCLUDED.ref
