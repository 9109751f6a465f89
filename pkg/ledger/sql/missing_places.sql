-- The places of a lot behind its watermark ($3) that nobody has: up to where Redis stands ($4), or to the newest event that
-- waits. $5 are those that the outbox still has. A million at a time: a damaged number in Redis must not fill the disk.
SELECT s FROM generate_series($3::bigint + 1,
    least($3::bigint + 1000000, greatest($4::bigint, (SELECT max(seq) FROM waiting_events WHERE lot = $1 AND epoch = $2)))) AS s
WHERE NOT EXISTS (SELECT FROM waiting_events w WHERE w.lot = $1 AND w.epoch = $2 AND w.seq = s)
    AND NOT EXISTS (SELECT FROM dead_letters d WHERE d.lot = $1 AND d.epoch = $2 AND d.seq = s AND d.settled_at IS NULL)
    AND NOT s = ANY($5::bigint[])
ORDER BY s LIMIT $6
