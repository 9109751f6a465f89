-- What became of dead letters: tried again with success, or given up by an operator.

-- +goose Up

ALTER TABLE dead_letters
    ADD COLUMN settled_at timestamptz,          -- null: it still has to be looked at
    ADD COLUMN settled_how text NOT NULL DEFAULT '' CHECK (settled_how IN ('', 'applied', 'discarded'));
-- Serves: the list and the numbers of those that have to be looked at.
CREATE INDEX dead_letters_open ON dead_letters (id) WHERE settled_at IS NULL;

ALTER TABLE refunds_due
    DROP CONSTRAINT refunds_due_why_check,
    ADD CONSTRAINT refunds_due_why_check CHECK (why IN ('paid_late', 'rejected', 'ghost', 'discarded'));

-- +goose Down

-- The wider constraint stays: rows may need it, and what was before never writes the new word.
DROP INDEX dead_letters_open;
ALTER TABLE dead_letters DROP COLUMN settled_at, DROP COLUMN settled_how;
