-- Who may call the HTTP API.

-- +goose Up

-- Of a token only the hash is here: what is in a backup lets nobody in.
CREATE TABLE api_keys (
    id         text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[a-z2-7]{8}$'),
    tenant     text COLLATE "C" NOT NULL CHECK (tenant ~ '^[a-z0-9][a-z0-9-]{0,31}$'),
    name       text NOT NULL,
    scopes     text[] NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'reserve', 'settle', 'admin']),
    hash       bytea NOT NULL CHECK (length(hash) = 32), -- SHA-256 of the token
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz,                     -- null: never
    revoked_at timestamptz,                     -- null: it is not
    revoked_by text NOT NULL DEFAULT ''
);

-- +goose Down

DROP TABLE api_keys;
