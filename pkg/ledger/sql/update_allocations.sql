UPDATE pending_allocations p SET units = t.units, refunded = t.refunded, state = t.state, reason = t.reason, entries = t.entries, changed_at = now()
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::int[]) AS t(lot, n, units, refunded, state, reason, entries)
WHERE p.lot = t.lot AND p.n = t.n
