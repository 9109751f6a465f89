-- Who is told what happens, and what they have not been told yet.

-- +goose Up

CREATE TABLE hooks (
    id            text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[a-z2-7]{8}$'),
    url           text NOT NULL,
    secret        text NOT NULL,                -- signs what is sent; '' once the hook is removed
    lot           text COLLATE "C" NOT NULL,    -- '': any lot
    lot_group     text COLLATE "C" NOT NULL,    -- '': any group
    kinds         text[] NOT NULL CHECK (cardinality(kinds) > 0),
    allow_private boolean NOT NULL,             -- plain http and addresses within private networks are fine
    created_at    timestamptz NOT NULL DEFAULT now(),
    created_by    text NOT NULL,
    removed_at    timestamptz,                  -- null: it is in force
    removed_by    text NOT NULL DEFAULT '',
    failures      integer NOT NULL DEFAULT 0,   -- attempts in a row that the receiver did not answer
    failing_since timestamptz,
    retry_at      timestamptz,                  -- null, or when a receiver that fails is tried again
    last_error    text NOT NULL DEFAULT '',
    CHECK (lot = '' OR lot_group = '')
) WITH (fillfactor = 50);
-- Serves: adding, which is refused for a receiver that is told the same already.
CREATE UNIQUE INDEX hooks_once ON hooks (url, lot, lot_group) WHERE removed_at IS NULL;

-- The queue of notices, one row for each hook and event.
CREATE TABLE hook_deliveries (
    -- Serves: noting how an attempt ended.
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hook        text COLLATE "C" NOT NULL,
    kind        text NOT NULL,
    lot         text COLLATE "C" NOT NULL,
    n           bigint NOT NULL,                -- of the reservation; 0: about the lot itself
    epoch       bigint NOT NULL,                -- of the event; 0: a freeze, which is none
    seq         bigint NOT NULL,                -- of a freeze how many the lot had
    notice      jsonb NOT NULL,
    state       text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'parked')),
    worker      text NOT NULL DEFAULT '',       -- that sends it now
    due_at      timestamptz NOT NULL DEFAULT now(), -- when it may be claimed: at once, after a failure, or when the lease ends
    attempts    integer NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now(),
    retry_until timestamptz NOT NULL,           -- then it is parked
    ended_at    timestamptz,
    last_error  text NOT NULL DEFAULT ''
) WITH (fillfactor = 70);
-- Serves: inserting, ON CONFLICT. It and that of subjects do not begin with the hook, so that no planner takes either for
-- claiming, where it would sort all that waits.
CREATE UNIQUE INDEX hook_deliveries_once ON hook_deliveries (lot, n, hook, kind, epoch, seq);
-- Serves: claiming, and what waits.
CREATE INDEX hook_deliveries_due ON hook_deliveries (hook, due_at, id) WHERE state = 'waiting';
-- Serves: claiming, which leaves out what an earlier notice of the same subject has to precede.
CREATE INDEX hook_deliveries_subject ON hook_deliveries (lot, n, hook, id) WHERE state = 'waiting';
-- Serves: counting, and taking up again.
CREATE INDEX hook_deliveries_parked ON hook_deliveries (hook) WHERE state = 'parked';
-- Serves: pruning.
CREATE INDEX hook_deliveries_ended ON hook_deliveries (ended_at) WHERE state <> 'waiting';

-- What hooks were told of a lot last, and when to look at it again. A lot of which nothing was ever told has no row.
CREATE TABLE hook_lots (
    lot       text COLLATE "C" PRIMARY KEY,
    sold_out  boolean,                          -- told so; null: nothing was told of its stock
    stock_at  timestamptz,                      -- when to compare that with the lot; null: nothing has changed
    opens_at  timestamptz,                      -- when the window of an open lot begins; null: it is told
    freezes   bigint NOT NULL DEFAULT 0,        -- told so far
    frozen_at timestamptz                       -- when it was last seen frozen
) WITH (fillfactor = 50);
-- Serves: looking for lots to look at.
CREATE INDEX hook_lots_due ON hook_lots (least(stock_at, opens_at)) WHERE stock_at IS NOT NULL OR opens_at IS NOT NULL;

ALTER TABLE refunds_due ADD COLUMN told boolean NOT NULL DEFAULT false; -- hooks know of it, or it was settled before
-- Serves: looking for payments that hooks have to be told of.
CREATE INDEX refunds_due_untold ON refunds_due (id) WHERE NOT told;

-- +goose Down

DROP INDEX refunds_due_untold;
ALTER TABLE refunds_due DROP COLUMN told;
DROP TABLE hook_lots, hook_deliveries, hooks;
