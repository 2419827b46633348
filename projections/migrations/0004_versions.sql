-- Which version of a projection's code its tables belong to.
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
