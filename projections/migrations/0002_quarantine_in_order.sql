-- A culprit is here for what it is, a follower because an earlier event of its key is. Parked entries hold back the
-- later events of their key. Of a released entry the bytes are removed; it stays as a record that it was here.
ALTER TABLE quarantined_events
    ADD COLUMN kind text NOT NULL DEFAULT 'culprit' CHECK (kind IN ('culprit', 'follower')),
    ADD COLUMN state text NOT NULL DEFAULT 'parked' CHECK (state IN ('parked', 'released', 'discarded')),
    ADD COLUMN attempts integer NOT NULL DEFAULT 0, -- redrives in which it failed again
    ADD COLUMN exported_at timestamptz,
    ADD COLUMN closed_at timestamptz,
    ADD COLUMN closed_by text,
    ADD COLUMN closed_reason text,
    -- A key may be longer than what an index takes. NULL for a record without a key: nothing waits behind that.
    ADD COLUMN key_hash bytea GENERATED ALWAYS AS (sha256(key)) STORED,
    ADD CHECK ((state = 'parked') = (closed_at IS NULL)),
    ADD CHECK ((state = 'discarded') = (closed_reason IS NOT NULL));

ALTER TABLE quarantined_events
    ALTER COLUMN kind DROP DEFAULT,
    -- Written with the row from now on, so that it still tells what the bytes were when they have been removed.
    ALTER COLUMN content_hash DROP EXPRESSION;

-- Asked by every batch for its keys: what is parked, and what was discarded and must stay so. Nearly always empty.
CREATE INDEX quarantined_events_by_key ON quarantined_events (consumer_name, key_hash, id) WHERE state <> 'released';

CREATE INDEX quarantined_events_parked ON quarantined_events (consumer_name, id) WHERE state = 'parked';
