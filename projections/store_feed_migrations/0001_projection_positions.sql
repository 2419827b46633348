-- Up to where each projection that is fed by the store has applied its events, per shard. A row moves in the
-- transaction of the effects. Without its row a projection begins at position 0 again: never delete one by hand.
CREATE TABLE projection_positions (
    position      bigint      NOT NULL CHECK (position >= 0),
    moved_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    held_position bigint,
    held_since    timestamptz,
    shard         integer     NOT NULL,
    shards        integer     NOT NULL CHECK (shards > 0),
    version       integer     NOT NULL,
    projection    text        NOT NULL COLLATE "C",
    anchor        bytea,      -- fingerprint of the event at `position`: another one there means a store set back
    held_event_id text,
    held_reason   text,
    PRIMARY KEY (projection, shard),
    CHECK (shard BETWEEN 0 AND shards - 1),
    CHECK ((held_reason IS NULL) = (held_position IS NULL)),
    CHECK ((held_reason IS NULL) = (held_since IS NULL))
) WITH (
    -- Few rows, updated many times a second: room on the page and no index on what changes keep every update heap-only.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);
