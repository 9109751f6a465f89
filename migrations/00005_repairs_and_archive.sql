-- What was repaired, by whom and why, and lots whose sale is over for good.

-- +goose Up

-- Written before a repair acts, so that none is ever done unseen; how it ended is added afterwards.
CREATE TABLE repairs (
    -- Serves: the list, newest first, and the end of a repair.
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run      bigint REFERENCES reconcile_runs,  -- null: of no reconcile run
    lot      text COLLATE "C" NOT NULL,
    what     text NOT NULL,
    actor    text NOT NULL,
    reason   text NOT NULL,
    evidence jsonb NOT NULL,
    begun_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,                       -- null: under way, or ended with its process
    outcome  text NOT NULL DEFAULT '' CHECK (outcome IN ('', 'done', 'nothing', 'failed')),
    detail   text NOT NULL DEFAULT ''
);
-- Serves: the repairs of a page of runs.
CREATE INDEX repairs_run ON repairs (run, id);

-- begun: to be taken out of Redis, which has not been confirmed yet; done: Redis has it no more.
ALTER TABLE lots
    ADD COLUMN archive text NOT NULL DEFAULT '' CHECK (archive IN ('', 'begun', 'done')),
    ADD COLUMN archived_by text NOT NULL DEFAULT '',
    ADD COLUMN archived_at timestamptz;

-- Serves: a rebuild, which leaves out a hold that was taken anew: both have one record in Redis.
CREATE INDEX reservations_taken_from ON reservations (lot, taken_from) WHERE taken_from > 0;

-- +goose Down

DROP INDEX reservations_taken_from;
ALTER TABLE lots DROP COLUMN archive, DROP COLUMN archived_by, DROP COLUMN archived_at;
DROP TABLE repairs;
