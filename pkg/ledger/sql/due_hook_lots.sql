SELECT lot, coalesce(sold_out, false), coalesce(stock_at <= now(), false), coalesce(opens_at <= now(), false), now() FROM hook_lots
WHERE (stock_at IS NOT NULL OR opens_at IS NOT NULL) AND least(stock_at, opens_at) <= now()
ORDER BY lot LIMIT $1 FOR UPDATE SKIP LOCKED
