-- Stored events that a relay has passed without publishing them. Their bytes stay where they are: stored events are
-- never changed, so the place is enough, and the fingerprint tells whether the event there is still the same one.
CREATE TABLE outgoing_quarantine (
    id                 bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    relay              text        NOT NULL COLLATE "C",
    position           bigint      NOT NULL,
    originator_id      text        NOT NULL COLLATE "C",
    originator_version bigint      NOT NULL,
    fingerprint        bytea       NOT NULL,
    hash               bigint      NOT NULL, -- of originator_id; modulo the number of shards it names the shard
    kind               text        NOT NULL CHECK (kind IN ('culprit', 'follower')),
    category           text        NOT NULL,
    problem            text        NOT NULL,
    quarantined_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts           integer     NOT NULL DEFAULT 0, -- redrives in which it failed again
    tried_at           timestamptz,                    -- the last of them
    released_at        timestamptz,
    discarded_at       timestamptz,
    discarded_by       text,
    discard_reason     text,
    CHECK ((discarded_at IS NULL) = (discard_reason IS NULL))
);

-- Of the aggregates that are parked, in the order of their events. A relay that was set back meets events again that
-- it has parked before: they are not parked twice.
CREATE UNIQUE INDEX outgoing_quarantine_open ON outgoing_quarantine (relay, originator_id, position, fingerprint)
    WHERE released_at IS NULL AND discarded_at IS NULL;
CREATE INDEX outgoing_quarantine_discarded ON outgoing_quarantine (relay, position) WHERE discarded_at IS NOT NULL;

-- For which aggregates somebody has asked for another attempt. The relay takes a row away when it has made it.
CREATE TABLE outgoing_redrives (
    relay         text        NOT NULL COLLATE "C",
    originator_id text        NOT NULL COLLATE "C",
    hash          bigint      NOT NULL,
    asked_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (relay, originator_id)
);

-- No event holds a relay any more.
ALTER TABLE relay_checkpoints DROP COLUMN held_position, DROP COLUMN held_reason, DROP COLUMN held_since;
