-- How far each relay has published, and who may publish for it now.
CREATE TABLE relay_checkpoints (
    relay            text        PRIMARY KEY COLLATE "C",
    position         bigint      NOT NULL CHECK (position >= 0),
    anchor           bytea,      -- fingerprint of the event at `position`: another one there means a store set back
    epoch            bigint      NOT NULL CHECK (epoch > 0),
    owner            text,
    lease_expires_at timestamptz,
    beat_at          timestamptz NOT NULL,
    held_position    bigint,
    held_reason      text,
    held_since       timestamptz,
    CHECK ((owner IS NULL) = (lease_expires_at IS NULL)),
    CHECK ((held_position IS NULL) = (held_reason IS NULL))
) WITH (
    -- One row per relay, updated many times a second: room on its page and no index on what changes keep
    -- every update heap-only, so that neither the table nor its index grows.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);
