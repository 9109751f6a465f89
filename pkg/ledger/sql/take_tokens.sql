-- The row is locked first and the clock read afterwards; a clock that ran back fills nothing.
WITH budget AS (
    SELECT tokens, filled_at FROM apply_budget FOR UPDATE
), filled AS (
    SELECT least(greatest($1::float8, 1), tokens + $1::float8 * greatest(0, extract(epoch FROM at - filled_at))) AS tokens, greatest(at, filled_at) AS at
    FROM budget, LATERAL (SELECT clock_timestamp() AS at WHERE budget.tokens IS NOT NULL) AS clock
), taken AS (
    SELECT greatest(0, least($2::int, floor(tokens)))::int AS granted, tokens, at FROM filled
)
UPDATE apply_budget b SET tokens = t.tokens - t.granted, filled_at = t.at FROM taken t RETURNING t.granted, b.tokens
