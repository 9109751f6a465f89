-- How fast workers may write, and how fast they did of late: a drain estimate needs both.

-- +goose Up

-- Events a second, over about the last ten: as of filled_at, from where it fades.
ALTER TABLE apply_budget ADD COLUMN pace double precision NOT NULL DEFAULT 0;
-- What the worker may write at most, in events a second; 0: it writes none.
ALTER TABLE workers ADD COLUMN rate double precision NOT NULL DEFAULT 0;

-- +goose Down

ALTER TABLE workers DROP COLUMN rate;
ALTER TABLE apply_budget DROP COLUMN pace;
