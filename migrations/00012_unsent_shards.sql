-- Which shards could not be sent again when PostgreSQL was replaced: they are sent when they come back.

-- +goose Up

-- Shards of which the server that settings name may lack what was acknowledged all the same.
ALTER TABLE settings ADD COLUMN unsent integer[] NOT NULL DEFAULT '{}';

-- +goose Down

ALTER TABLE settings DROP COLUMN unsent;
