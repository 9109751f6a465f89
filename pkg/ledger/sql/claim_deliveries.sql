-- $1 hook, $2 worker, $3 lease, $4 how many, $5 whether the receiver fails: then the pauses of single notices do not count.
-- A notice waits for an earlier one of its subject until that was tried $6 times. OFFSET 0 keeps the planner from joining
-- all that waits with itself.
WITH claimable AS MATERIALIZED (
    SELECT id FROM hook_deliveries d
    WHERE hook = $1 AND state = 'waiting' AND (due_at <= now() OR $5 AND worker = '')
      AND NOT EXISTS (SELECT FROM hook_deliveries e WHERE e.hook = d.hook AND e.lot = d.lot AND e.n = d.n AND e.id < d.id AND e.state = 'waiting' AND e.attempts < $6 OFFSET 0)
    ORDER BY due_at, id LIMIT $4 FOR UPDATE SKIP LOCKED
)
UPDATE hook_deliveries d SET worker = $2, due_at = now() + $3::interval, attempts = attempts + 1
FROM claimable c WHERE d.id = c.id
RETURNING d.id, d.notice, d.attempts
