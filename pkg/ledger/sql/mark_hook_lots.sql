-- What hooks know of a lot whose stock they were never told of is what it was before.
INSERT INTO hook_lots AS h (lot, sold_out, stock_at, opens_at)
SELECT lot, CASE WHEN moved THEN was_sold_out END, CASE WHEN moved THEN now() + $5::interval END, opens_at
FROM unnest($1::text[], $2::boolean[], $3::boolean[], $4::timestamptz[]) AS t(lot, moved, was_sold_out, opens_at)
ON CONFLICT (lot) DO UPDATE SET sold_out = coalesce(h.sold_out, EXCLUDED.sold_out), stock_at = coalesce(h.stock_at, EXCLUDED.stock_at),
    opens_at = coalesce(EXCLUDED.opens_at, h.opens_at)
