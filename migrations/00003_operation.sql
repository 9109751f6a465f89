-- What workers and reconcile runs share.

-- +goose Up

-- How many events the workers may still apply, all together. One row.
CREATE TABLE apply_budget (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    tokens    double precision NOT NULL,
    filled_at timestamptz NOT NULL
) WITH (fillfactor = 10);
INSERT INTO apply_budget (tokens, filled_at) VALUES (0, now());

CREATE TABLE workers (
    worker     text PRIMARY KEY,
    host       text NOT NULL,
    pid        integer NOT NULL,
    parts      text[] NOT NULL,
    version    text NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE reconcile_runs (
    -- Serves: the list, newest first, and the end of a run.
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    actor       text NOT NULL,
    request     jsonb NOT NULL,                 -- what was to be compared
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,                    -- null: still running, or ended with its process
    verdict     text NOT NULL DEFAULT '',
    report      jsonb
);

-- +goose Down

DROP TABLE reconcile_runs, workers, apply_budget;
