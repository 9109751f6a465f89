-- Lots, their history and the reservations it adds up to.
--
-- Lot ids compare byte by byte (COLLATE "C"): every program sorts them alike, which the order of locks relies on.
-- Large tables are partitioned by hash of the lot, because a unique key must contain the partition key.

-- +goose Up

CREATE TABLE settings (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    installation text NOT NULL CHECK (installation <> ''),
    shards       integer NOT NULL CHECK (shards BETWEEN 1 AND 16384),
    server       text NOT NULL DEFAULT '',       -- the server and timeline that is known to have all that was acknowledged
    created_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE lots (
    lot            text COLLATE "C" PRIMARY KEY,
    name           text NOT NULL,
    capacity       bigint NOT NULL,
    user_limit     bigint NOT NULL,             -- 0: none
    hold_ms        bigint NOT NULL,
    max_hold_ms    bigint NOT NULL,
    opens          timestamptz,
    closes         timestamptz,
    late           text NOT NULL CHECK (late IN ('refuse', 'reclaim')),
    status         text NOT NULL CHECK (status IN ('open', 'paused', 'closed')),
    held           bigint NOT NULL DEFAULT 0,
    sold           bigint NOT NULL DEFAULT 0,
    epoch          bigint NOT NULL DEFAULT 0,   -- watermark: the newest event folded
    seq            bigint NOT NULL DEFAULT 0,
    hash           bytea NOT NULL DEFAULT '',   -- of the newest journal row
    open_epoch     bigint NOT NULL DEFAULT 0,   -- issued last; beyond epoch until its load is folded
    waiting        bigint NOT NULL DEFAULT 0,   -- rows in waiting_events
    seen           boolean NOT NULL DEFAULT false, -- an event of the lot ever arrived
    event_at       timestamptz,                 -- Redis time of the newest event folded
    folded_at      timestamptz,
    stopped        text NOT NULL DEFAULT '',    -- why nothing more is folded
    stopped_reason text NOT NULL DEFAULT '',
    stopped_at     timestamptz,
    adjust_actor   text NOT NULL DEFAULT '',    -- of the newest change of the capacity
    adjust_reason  text NOT NULL DEFAULT '',
    created_by     text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT never_oversold CHECK (0 <= held AND 0 <= sold AND held + sold <= capacity)
) WITH (fillfactor = 50);

CREATE TABLE lot_epochs (
    lot          text COLLATE "C" NOT NULL,
    epoch        bigint NOT NULL,
    closed_epoch bigint NOT NULL,               -- watermark at which the epoch before was closed
    closed_seq   bigint NOT NULL,
    actor        text NOT NULL,
    reason       text NOT NULL,
    issued_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (lot, epoch)
);

-- The journal: what was folded, in order. `line` is the event as the scripts write it; with lot, epoch and time
-- it is the whole event. kind and reservation are copies for people who look with psql.
CREATE TABLE reservation_events (
    lot         text COLLATE "C" NOT NULL,
    epoch       bigint NOT NULL,
    seq         bigint NOT NULL,
    kind        text NOT NULL,
    reservation bigint,                         -- n of the reservation's id; null for events of the lot itself
    event_at    timestamptz NOT NULL,
    line        text NOT NULL,
    hash        bytea NOT NULL,                 -- of the row before and this event
    recorded_at timestamptz NOT NULL DEFAULT now(),
    -- Serves: apply's look for known events, journal pages, verify.
    PRIMARY KEY (lot, epoch, seq)
) PARTITION BY HASH (lot);

-- Events that the ledger has but cannot fold yet: one before them is missing, or their lot is stopped.
CREATE TABLE waiting_events (
    lot         text COLLATE "C" NOT NULL,
    epoch       bigint NOT NULL,
    seq         bigint NOT NULL,
    event_at    timestamptz NOT NULL,
    line        text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    -- Serves: apply's look for known events and for the run after a watermark, the first row behind a gap.
    PRIMARY KEY (lot, epoch, seq)
);

CREATE TABLE dead_letters (
    -- Serves: the list of dead letters, newest first.
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest      bytea NOT NULL,                 -- of the content, so that a repetition is one row
    lot         text COLLATE "C" NOT NULL,      -- '' where it is not known
    epoch       bigint NOT NULL,
    seq         bigint NOT NULL,                -- 0 where it is not known
    code        text NOT NULL,
    reason      text NOT NULL,
    event_at    timestamptz,
    line        text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    -- Serves: apply, ON CONFLICT.
    CONSTRAINT dead_letters_once UNIQUE (digest)
);
-- Serves: apply's look for known events of a stopped lot, what an epoch leaves behind, a lot's list.
CREATE INDEX dead_letters_lot ON dead_letters (lot, epoch, seq);

CREATE TABLE reservations (
    lot        text COLLATE "C" NOT NULL,
    n          bigint NOT NULL,                 -- the seq that held it
    attempt    text COLLATE "C" NOT NULL,
    user_id    text NOT NULL,
    state      text NOT NULL CHECK (state IN ('held', 'confirmed', 'released', 'expired', 'refunded')),
    qty        bigint NOT NULL CHECK (qty >= 0),
    refunded   bigint NOT NULL CHECK (refunded >= 0),
    rest       bigint NOT NULL CHECK (rest >= 0),
    deadline   timestamptz NOT NULL,
    created_at timestamptz NOT NULL,            -- Redis time, as all times of this table
    changed_at timestamptz NOT NULL,
    last_seq   bigint NOT NULL,
    ref        text NOT NULL,
    taken_from bigint NOT NULL,                 -- n of the expired hold that a late confirm took anew; 0: none
    key        text NOT NULL,
    asked      text NOT NULL,
    rejected   boolean NOT NULL,                -- Redis held units that the lot does not have
    -- Serves: apply's look-up and upsert, pages of a lot or of all lots.
    PRIMARY KEY (lot, n)
) PARTITION BY HASH (lot);

-- +goose StatementBegin
DO $$
BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE TABLE reservation_events_%s PARTITION OF reservation_events FOR VALUES WITH (MODULUS 8, REMAINDER %s)', i, i);
        EXECUTE format('CREATE TABLE reservations_%s PARTITION OF reservations FOR VALUES WITH (MODULUS 8, REMAINDER %s) WITH (fillfactor = 70)', i, i);
    END LOOP;
END $$;
-- +goose StatementEnd

-- Serves: reservations of a user, in one lot or in all.
CREATE INDEX reservations_user ON reservations (user_id, lot, n);
-- No index has the state: a change of state then stays within its page (HOT). Who wants the live reservations of a
-- lot (rebuild, deep reconcile, a load that ends rejected holds) reads the lot along the primary key.

-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: its rows are written once and stay', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;
-- +goose StatementEnd

-- make_append_only refuses UPDATE, DELETE and TRUNCATE on a partitioned table and on each of its partitions.
-- Row triggers are inherited, statement triggers are not; TRUNCATE has statement triggers only.
-- +goose StatementBegin
CREATE FUNCTION make_append_only(parent regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    t regclass;
BEGIN
    EXECUTE format('CREATE TRIGGER append_only_row BEFORE UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION refuse_change()', parent);
    FOR t IN SELECT relid FROM pg_partition_tree(parent) LOOP
        EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', t);
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER append_only', t);
    END LOOP;
END $$;
-- +goose StatementEnd

SELECT make_append_only('reservation_events');

-- +goose Down

DROP TABLE reservations, dead_letters, waiting_events, reservation_events, lot_epochs, lots, settings;
DROP FUNCTION make_append_only(regclass), refuse_change();
