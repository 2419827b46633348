-- One row per projection while there are two sets of its tables: the live one, and another in a schema of its own.
-- filling: the other one is being made from the events. swapped: it is what was live before the swap.
CREATE TABLE rebuilds (
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    swapped_at   timestamptz,
    run          integer     NOT NULL DEFAULT 1, -- counts the processes that worked at it: an earlier one is refused
    version      integer     NOT NULL CHECK (version > 0), -- of the code that the other tables belong to
    returnable   boolean     NOT NULL DEFAULT true, -- whether it is known which events the other tables hold
    projection   text        PRIMARY KEY COLLATE "C",
    state        text        NOT NULL CHECK (state IN ('filling', 'swapped')),
    other_schema text        NOT NULL,
    tables       text[]      NOT NULL,
    components   text[]      NOT NULL,
    CHECK ((state = 'swapped') = (swapped_at IS NOT NULL))
);

-- The other tables hold the events of each worker's aggregates up to its position, which moves in the transaction of
-- the effects. A worker's number is that of its shard.
CREATE TABLE rebuild_workers (
    position   bigint  NOT NULL DEFAULT 0 CHECK (position >= 0),
    applied    bigint  NOT NULL DEFAULT 0,
    worker     integer NOT NULL,
    projection text    NOT NULL COLLATE "C" REFERENCES rebuilds ON DELETE CASCADE,
    PRIMARY KEY (projection, worker)
) WITH (fillfactor = 50);

-- Events beyond those positions that the other tables hold all the same.
CREATE TABLE rebuild_ahead (
    projection text NOT NULL COLLATE "C" REFERENCES rebuilds ON DELETE CASCADE,
    event_id   text NOT NULL COLLATE "C",
    PRIMARY KEY (projection, event_id)
);

-- Events up to those positions that they lack, because the handler refuses them, or refused an earlier one of the key.
CREATE TABLE rebuild_refused (
    position   bigint NOT NULL,
    projection text   NOT NULL COLLATE "C" REFERENCES rebuilds ON DELETE CASCADE,
    event_id   text   NOT NULL COLLATE "C",
    key        text   NOT NULL,
    reason     text   NOT NULL,
    PRIMARY KEY (projection, event_id)
);
