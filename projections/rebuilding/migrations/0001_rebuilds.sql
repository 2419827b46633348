-- Which version of each projection's code its tables belong to.
CREATE TABLE projection_versions (
    projection text        PRIMARY KEY COLLATE "C",
    version    integer     NOT NULL CHECK (version > 0),
    since      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The version that may write, held until the caller's transaction ends. Who writes holds the lock shared, a swap
-- alone, and locks are given in the order of asking: so a swap waits for the writers of this moment and no longer.
-- It is a function because the row must be read by a statement that begins after the wait has ended.
CREATE FUNCTION hold_projection_version(name text, ours integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    found_version integer;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(name, 6));
    SELECT version INTO found_version FROM projection_versions WHERE projection = name;
    IF found_version IS NULL THEN
        INSERT INTO projection_versions (projection, version) VALUES (name, ours) ON CONFLICT DO NOTHING;
        SELECT version INTO found_version FROM projection_versions WHERE projection = name;
    END IF;
    RETURN found_version;
END
$$;

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
