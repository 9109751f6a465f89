-- Money: what is to be finalised, what was, and what must be given back.

-- +goose Up

CREATE TABLE pending_allocations (
    lot          text COLLATE "C" NOT NULL,
    n            bigint NOT NULL,
    attempt      text COLLATE "C" NOT NULL,
    user_id      text NOT NULL,
    units        bigint NOT NULL CHECK (units >= 0), -- to be sold; a refund before the first lease lowers it
    refunded     bigint NOT NULL DEFAULT 0,     -- units refunded while a worker had the lease
    ref          text NOT NULL,
    epoch        bigint NOT NULL,               -- of the confirmation
    seq          bigint NOT NULL,
    confirmed_at timestamptz NOT NULL,
    state        text NOT NULL CHECK (state IN ('PENDING', 'PROCESSING', 'PROCESSED', 'REJECTED')),
    reason       text NOT NULL DEFAULT '',      -- of REJECTED
    worker       text NOT NULL DEFAULT '',
    due_at       timestamptz NOT NULL DEFAULT now(), -- when a worker may claim it: at once, then when the lease ends
    entries      integer NOT NULL DEFAULT 0,    -- rows in order_ledger
    changed_at   timestamptz NOT NULL DEFAULT now(),
    -- Serves: apply (a refund), finishing; the sum of a lot's unfinished units.
    PRIMARY KEY (lot, n)
) WITH (fillfactor = 70);
-- Serves: claiming, and counting what is not finished.
CREATE INDEX pending_allocations_due ON pending_allocations (due_at) WHERE state IN ('PENDING', 'PROCESSING');
-- Serves: the sum of one lot's unfinished units.
CREATE INDEX pending_allocations_open ON pending_allocations (lot) WHERE state IN ('PENDING', 'PROCESSING');

-- Sales and refunds. A reservation's entry 1 is its sale, later entries are refunds with negative units.
CREATE TABLE order_ledger (
    lot         text COLLATE "C" NOT NULL,
    n           bigint NOT NULL,
    entry       integer NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('sale', 'refund')),
    units       bigint NOT NULL,
    attempt     text COLLATE "C" NOT NULL,
    user_id     text NOT NULL,
    ref         text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((kind = 'sale' AND entry = 1 AND units > 0) OR (kind = 'refund' AND entry > 1 AND units < 0)),
    -- Serves: the sum of a lot's sales, the entries of a reservation.
    PRIMARY KEY (lot, n, entry)
) PARTITION BY HASH (lot);

-- +goose StatementBegin
DO $$
BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE TABLE order_ledger_%s PARTITION OF order_ledger FOR VALUES WITH (MODULUS 8, REMAINDER %s)', i, i);
    END LOOP;
END $$;
-- +goose StatementEnd

SELECT make_append_only('order_ledger');

-- Money for units nobody got: paid too late, rejected, or confirmed in a life of the lot that Redis lost.
CREATE TABLE refunds_due (
    -- Serves: the list, oldest first.
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lot         text COLLATE "C" NOT NULL,
    epoch       bigint NOT NULL,
    seq         bigint NOT NULL,
    n           bigint NOT NULL,
    attempt     text COLLATE "C" NOT NULL,
    user_id     text NOT NULL,
    units       bigint NOT NULL,
    ref         text NOT NULL,
    why         text NOT NULL CHECK (why IN ('paid_late', 'rejected', 'ghost')),
    event_at    timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    settled_at  timestamptz,                    -- no longer due since then
    settled_why text NOT NULL DEFAULT '' CHECK (settled_why IN ('', 'confirmed')),
    -- Serves: apply, ON CONFLICT; a lot's list.
    CONSTRAINT refunds_due_once UNIQUE (lot, epoch, seq, n)
);
-- One payment is due once, however often it is reported.
-- Serves: apply, ON CONFLICT, and its look for what a confirmation settles.
CREATE UNIQUE INDEX refunds_due_payment ON refunds_due (lot, attempt, ref) WHERE ref <> '';

-- +goose Down

DROP TABLE refunds_due, order_ledger, pending_allocations;
