-- What each consumer has applied, in ranges of the event id: a range whose ids cannot come again is dropped whole,
-- and an insert stays as cheap as into a small table. Our ids begin with `evt_` and twelve hexadecimal digits,
-- the event's milliseconds. A range is what begins with the same five of them, 2^28 ms or three days, and nothing
-- else: in this collation it ends before the next character, whether that is a digit of ours or not.
--
-- The table is locked while this runs, and read twice. A consumer that meets the lock waits; nothing else does.
LOCK TABLE processed_events IN ACCESS EXCLUSIVE MODE;
ALTER TABLE processed_events RENAME TO processed_events_before;
ALTER INDEX processed_events_pkey RENAME TO processed_events_before_pkey;

CREATE TABLE processed_events (
    consumer_name text NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_name, event_id)
) PARTITION BY RANGE (event_id);

-- Ids of other shapes, and times before 2004 or after 2109.
CREATE TABLE processed_events_lower PARTITION OF processed_events FOR VALUES FROM (MINVALUE) TO ('evt_01');
CREATE TABLE processed_events_upper PARTITION OF processed_events FOR VALUES FROM ('evt_04') TO (MAXVALUE);
-- Whatever has no range: a missing one must never stop the inbox.
CREATE TABLE processed_events_rest PARTITION OF processed_events DEFAULT;

-- Below this id, events of the consumer may have been forgotten.
CREATE TABLE inbox_horizons (
    consumer_name text PRIMARY KEY,
    event_id text COLLATE "C" NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT now()
);

DO $$
DECLARE
    present integer := floor(extract(epoch FROM clock_timestamp()) * 1000 / 2 ^ 28);
    next_digits text := lpad(to_hex(present + 1), 5, '0');
    next_id text COLLATE "C" := 'evt_' || next_digits;
    earliest integer := present + 1;
    digits text;
    granted record;
BEGIN
    FOR granted IN
        SELECT privilege_type, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS role
        FROM pg_class, aclexplode(relacl) WHERE pg_class.oid = 'processed_events_before'::regclass
    LOOP
        EXECUTE format('GRANT %s ON processed_events TO %s', granted.privilege_type, granted.role);
        EXECUTE format('GRANT SELECT ON inbox_horizons TO %s', granted.role);
    END LOOP;

    -- The table as it was becomes the range of all that came before; what does not belong there is moved out.
    CREATE TEMPORARY TABLE moved ON COMMIT DROP AS
        SELECT * FROM processed_events_before WHERE event_id < 'evt_01' OR event_id >= next_id;
    IF EXISTS (SELECT FROM moved) THEN
        DELETE FROM processed_events_before WHERE event_id < 'evt_01' OR event_id >= next_id;
    END IF;
    IF EXISTS (SELECT FROM processed_events_before) THEN
        EXECUTE format('ALTER TABLE processed_events_before RENAME TO %I', 'processed_events_before_' || next_digits);
        EXECUTE format(
            'ALTER TABLE processed_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
            'processed_events_before_' || next_digits, 'evt_01', next_id
        );
    ELSE
        DROP TABLE processed_events_before;
        earliest := present - 4;
    END IF;
    FOR number IN earliest .. present + 10 LOOP
        digits := lpad(to_hex(number), 5, '0');
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF processed_events FOR VALUES FROM (%L) TO (%L)',
            'processed_events_' || digits, 'evt_' || digits,
            'evt_' || left(digits, 4) || chr(ascii(right(digits, 1)) + 1)
        );
    END LOOP;
    -- ULIDs behind our `evt_`, such as evt_01JQ8X8F: between the digits 9 and a, where no time of ours is.
    IF earliest <= present OR next_id < 'evt_01:' THEN
        CREATE TABLE processed_events_other PARTITION OF processed_events FOR VALUES FROM ('evt_01:') TO ('evt_01a');
    END IF;
    INSERT INTO processed_events SELECT * FROM moved;
END $$;
