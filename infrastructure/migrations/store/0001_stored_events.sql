-- The events, and at once the outbox: there is no second table.
--
-- Readers follow `position`. Their proof that a missing position will never appear (event_reader.py) needs
-- that nobody draws a position before holding a lock on this table: hence GENERATED ALWAYS, drawn by the
-- INSERT itself, and a sequence cache of 1, so that no session keeps a stock of positions.
CREATE TABLE stored_events (
    position           bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1),
    originator_version bigint      NOT NULL CHECK (originator_version > 0),
    stored_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    originator_id      text        NOT NULL COLLATE "C",
    topic              text        NOT NULL COLLATE "C",
    state              bytea       NOT NULL,
    CONSTRAINT stored_events_pkey PRIMARY KEY (originator_id, originator_version),
    CONSTRAINT stored_events_position_key UNIQUE (position)
) WITH (
    -- Rows never change: freeze them the first time, and in small portions however large the table grows.
    autovacuum_freeze_min_age = 0,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0.02
);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% refused: rows of % are never changed or deleted', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON stored_events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON stored_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- ALWAYS: also where session_replication_role is replica.
ALTER TABLE stored_events ENABLE ALWAYS TRIGGER append_only;
ALTER TABLE stored_events ENABLE ALWAYS TRIGGER append_only_truncate;
