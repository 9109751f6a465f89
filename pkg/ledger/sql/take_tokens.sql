-- The lowest rate of all workers alive holds for everybody: it was set to spare the server. Nothing is granted below a
-- share, since many small transactions cost more than a few large ones; who only looks writes nothing and locks nobody out.
-- The row is locked before the clock is read; a clock that ran back fills nothing, and goes on from there.
WITH rate AS MATERIALIZED (
    SELECT least($1::float8, min(rate)) AS rate, greatest(1, least($2::float8, least($1::float8, min(rate)) * $5::float8)) AS share
    FROM workers WHERE rate > 0 AND seen_at >= now() - $3::interval
), look AS MATERIALIZED (
    SELECT rate, share, least(greatest(rate, 1), tokens + rate * greatest(0, extract(epoch FROM clock_timestamp() - filled_at))::float8) AS tokens
    FROM apply_budget, rate
), budget AS MATERIALIZED (
    SELECT tokens, pace, filled_at FROM apply_budget WHERE (SELECT tokens >= share OR filled_at > clock_timestamp() FROM look) FOR UPDATE
), filled AS (
    SELECT least(greatest(rate, 1), tokens + rate * elapsed) AS tokens, pace * exp(-least(elapsed, 600) / $4::float8) AS pace, at, share
    FROM rate, budget, LATERAL (SELECT clock_timestamp() AS at WHERE budget.tokens IS NOT NULL) AS clock,
        LATERAL (SELECT greatest(0, extract(epoch FROM at - filled_at))::float8 AS elapsed) AS since
), taken AS (
    SELECT CASE WHEN tokens >= share THEN least($2::int, floor(tokens))::int ELSE 0 END AS granted, tokens, pace, at FROM filled
), written AS (
    UPDATE apply_budget b SET tokens = t.tokens - t.granted, pace = t.pace + t.granted / $4::float8, filled_at = t.at FROM taken t
)
-- Nobody waits for a disk with the row locked: tokens that a crash brings back do no harm.
SELECT coalesce(t.granted, 0), greatest(0, look.share - coalesce(t.tokens, look.tokens)) / look.rate, set_config('synchronous_commit', 'off', true)
FROM look LEFT JOIN taken t ON true
