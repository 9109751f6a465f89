-- The row is locked first and the clock read afterwards; a clock that ran back fills nothing, and goes on from there. The
-- lowest rate of all workers alive holds for everybody: it was set to spare the server.
WITH budget AS (
    SELECT tokens, pace, filled_at FROM apply_budget FOR UPDATE
), clock AS (
    SELECT tokens, pace, at, greatest(0, extract(epoch FROM at - filled_at))::float8 AS elapsed, least($1::float8, lowest) AS rate
    FROM budget,
        LATERAL (SELECT clock_timestamp() AS at WHERE budget.tokens IS NOT NULL) AS clock,
        (SELECT min(rate) AS lowest FROM workers WHERE rate > 0 AND seen_at >= now() - $3::interval) AS others
), filled AS (
    SELECT least(greatest(rate, 1), tokens + rate * elapsed) AS tokens, pace * exp(-least(elapsed, 600) / $4::float8) AS pace, at, rate FROM clock
), taken AS (
    SELECT greatest(0, least($2::int, floor(tokens)))::int AS granted, tokens, pace, at, rate FROM filled
)
UPDATE apply_budget b SET tokens = t.tokens - t.granted, pace = t.pace + t.granted / $4::float8, filled_at = t.at
FROM taken t RETURNING t.granted, b.tokens, t.rate
