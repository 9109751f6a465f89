-- A payment that the ledger has recorded is not due: Redis lost the confirmation and was told again (a ghost), or the
-- sale is refunded and its confirmation was repeated (paid_late). Nor is a payment due twice (refunds_due_payment).
INSERT INTO refunds_due (lot, epoch, seq, n, attempt, user_id, units, ref, why, event_at)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::text[], $10::timestamptz[])
    AS t(lot, epoch, seq, n, attempt, user_id, units, ref, why, event_at)
WHERE NOT (why <> 'rejected' AND EXISTS (SELECT FROM reservations r
    WHERE r.lot = t.lot AND r.n = t.n AND r.attempt = t.attempt AND r.ref = t.ref AND r.state IN ('confirmed', 'refunded') AND NOT r.rejected))
ON CONFLICT DO NOTHING
