WITH c AS (
    SELECT count(*) AS open, count(*) FILTER (WHERE pending) AS pending, count(*) FILTER (WHERE pending AND worker = '') AS waits,
           count(*) FILTER (WHERE NOT pending AND begun_at < now() - interval '5 minutes') AS stuck
    FROM charges WHERE state = 'open'
), r AS (
    SELECT count(*) AS open, count(*) FILTER (WHERE refused <> '') AS refused, count(*) FILTER (WHERE worker = '' AND (pending OR refused <> '')) AS waits,
           count(*) FILTER (WHERE NOT pending AND refused = '' AND begun_at < now() - interval '5 minutes') AS stuck
    FROM charge_refunds WHERE done_at IS NULL
), a AS ( -- not begun, or declined
    SELECT count(*) FILTER (WHERE charge > 0) AS declined, count(*) FILTER (WHERE charge = 0 OR due_at <= now() OR given_up_at <= now()) AS ready
    FROM pending_allocations WHERE state IN ('PENDING', 'PROCESSING') AND (state = 'PENDING' OR charge = 0)
)
SELECT c.open - c.waits + r.open - r.waits + a.ready, c.open, c.pending, a.declined, r.open, r.refused, c.stuck + r.stuck FROM c, r, a
