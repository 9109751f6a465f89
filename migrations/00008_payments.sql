-- What a payment gateway was asked for, and what it said.

-- +goose Up

-- The number of the charge asked for last, 0: none. A reservation whose payment was declined is given up at its deadline.
ALTER TABLE pending_allocations
    ADD COLUMN charge integer NOT NULL DEFAULT 0,
    ADD COLUMN given_up_at timestamptz;

-- Each attempt to be paid for a reservation. It is here before the gateway is asked, so that nobody ever asks for the same
-- attempt under another key, and it stays open until the gateway's answer is known for sure.
CREATE TABLE charges (
    lot        text COLLATE "C" NOT NULL,
    n          bigint NOT NULL,
    number     integer NOT NULL,                -- of the attempt to be paid; part of the idempotency key
    units      bigint NOT NULL,
    state      text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'approved', 'declined')),
    sold       boolean NOT NULL DEFAULT false,  -- it paid for the sale
    pending    boolean NOT NULL DEFAULT false,  -- the gateway said that it needs longer
    asked      integer NOT NULL DEFAULT 1,      -- how often the gateway was asked
    worker     text NOT NULL,                   -- that asks; '' between two questions
    due_at     timestamptz NOT NULL,            -- when it is asked again: when the lease ends, then after a pause
    charged    text NOT NULL DEFAULT '',        -- the gateway's reference
    reason     text NOT NULL DEFAULT '',        -- of the decline
    begun_at   timestamptz NOT NULL DEFAULT now(),
    decided_at timestamptz,
    -- Serves: every answer.
    PRIMARY KEY (lot, n, number)
) WITH (fillfactor = 70);
-- Serves: asking again.
CREATE INDEX charges_due ON charges (due_at) WHERE state = 'open';
-- Serves: a refund's look for what was paid. A sale is paid once.
CREATE UNIQUE INDEX charges_sold ON charges (lot, n) WHERE sold;

-- Money that goes back through the gateway, until it has: of a sale's refund, or of a charge that paid for nothing.
CREATE TABLE charge_refunds (
    lot        text COLLATE "C" NOT NULL,
    n          bigint NOT NULL,
    number     integer NOT NULL,                -- of the charge
    entry      integer NOT NULL,                -- in order_ledger; 0: the charge paid for no sale
    units      bigint NOT NULL,
    refused    text NOT NULL DEFAULT '',        -- why the gateway will not; it is asked again nevertheless
    pending    boolean NOT NULL DEFAULT false,  -- the gateway said that it needs longer
    asked      integer NOT NULL DEFAULT 0,
    worker     text NOT NULL DEFAULT '',
    due_at     timestamptz NOT NULL DEFAULT now(),
    returned   text NOT NULL DEFAULT '',        -- the gateway's reference
    begun_at   timestamptz NOT NULL DEFAULT now(),
    done_at    timestamptz,
    PRIMARY KEY (lot, n, number, entry)
) WITH (fillfactor = 70);
-- Serves: asking, and counting what is not done.
CREATE INDEX charge_refunds_due ON charge_refunds (due_at) WHERE done_at IS NULL;

-- refunded: somebody has given the money back, and said who and why.
ALTER TABLE refunds_due
    DROP CONSTRAINT refunds_due_settled_why_check,
    ADD CONSTRAINT refunds_due_settled_why_check CHECK (settled_why IN ('', 'confirmed', 'refunded')),
    ADD COLUMN settled_by text NOT NULL DEFAULT '',
    ADD COLUMN settled_reason text NOT NULL DEFAULT '';

-- +goose Down

-- The wider constraint stays: rows may need it, and what was before never writes the new word. A reservation whose charge
-- is open looks as if a worker had let its lease run out: finish what is open before going back.
ALTER TABLE refunds_due DROP COLUMN settled_by, DROP COLUMN settled_reason;
DROP TABLE charge_refunds, charges;
UPDATE pending_allocations SET due_at = now() WHERE due_at = 'infinity';
ALTER TABLE pending_allocations DROP COLUMN charge, DROP COLUMN given_up_at;
