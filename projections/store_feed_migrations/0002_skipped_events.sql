-- Events that an operator has let a projection pass without them: the read model lacks them. Never read by a runner.
CREATE TABLE skipped_events (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    skipped_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    position    bigint      NOT NULL,
    shard       integer     NOT NULL,
    version     integer     NOT NULL, -- of the projection whose rows lack it
    projection  text        NOT NULL COLLATE "C",
    event_id    text,                 -- NULL where it could not be mapped
    held_reason text        NOT NULL,
    reason      text        NOT NULL,
    skipped_by  text        NOT NULL
);
