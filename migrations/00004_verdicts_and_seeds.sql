-- What the last look at each lot found, and the stock each seed agreed to.

-- +goose Up

CREATE TABLE lot_verdicts (
    lot        text COLLATE "C" PRIMARY KEY,    -- Redis may have a lot that the ledger does not know
    verdict    text NOT NULL,
    finding    boolean NOT NULL,
    run        bigint NOT NULL REFERENCES reconcile_runs,
    checked_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70);

-- Null: no seed named a stock since this column exists.
ALTER TABLE lots ADD COLUMN seeded_stock bigint;

-- +goose Down

ALTER TABLE lots DROP COLUMN seeded_stock;
DROP TABLE lot_verdicts;
