-- A payment that came too late, or in a life of the lot that was lost, has its units now: a late confirmation took them
-- anew, or the confirmation was repeated.
UPDATE refunds_due d SET settled_at = now(), settled_why = 'confirmed'
FROM unnest($1::text[], $2::text[], $3::text[]) AS c(lot, attempt, ref)
WHERE d.lot = c.lot AND d.attempt = c.attempt AND d.ref = c.ref AND d.ref <> '' AND d.settled_at IS NULL
