-- A relay is N shards, each with a checkpoint and a lease of its own. What a relay had so far is the one shard of one.
-- What must be judged together with the lease stands in the same row, so that one statement does it atomically.
ALTER TABLE relay_checkpoints
    ADD COLUMN shard        integer NOT NULL DEFAULT 0,
    ADD COLUMN shards       integer NOT NULL DEFAULT 1,
    ADD COLUMN generation   bigint  NOT NULL DEFAULT 1, -- how often the position was moved back or the shards changed
    ADD COLUMN paused_since timestamptz,
    ADD COLUMN paused_until timestamptz,                -- nobody gets the lease before; infinity: until it is resumed
    ADD CHECK (0 <= shard AND shard < shards),
    ADD CHECK (generation > 0),
    ADD CHECK ((paused_since IS NULL) = (paused_until IS NULL)),
    DROP CONSTRAINT relay_checkpoints_epoch_check,
    ADD CONSTRAINT relay_checkpoints_epoch_check CHECK (epoch >= 0), -- 0: a shard that has never been leased
    DROP CONSTRAINT relay_checkpoints_pkey,
    ADD PRIMARY KEY (relay, shard);

-- The processes of each relay that are alive, so that each takes its fair share of the shards.
CREATE TABLE relay_processes (
    relay      text        NOT NULL COLLATE "C",
    process    text        NOT NULL COLLATE "C",
    joined_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (relay, process)
) WITH (
    fillfactor = 50, -- updated every second: as for relay_checkpoints
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);
