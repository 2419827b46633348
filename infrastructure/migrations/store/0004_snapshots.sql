-- The latest snapshot of each aggregate that takes any: a cache. `DELETE FROM snapshots` at any time: loads get
-- slower and no answer changes. Do so after stored events were changed by hand, against all advice. (TRUNCATE
-- makes every load queue behind it while it waits for a backup.)
CREATE TABLE snapshots (
    originator_version bigint      NOT NULL,
    snapshot_version   bigint      NOT NULL,
    taken_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    originator_id      text        NOT NULL COLLATE "C" PRIMARY KEY,
    topic              text        NOT NULL COLLATE "C",
    fingerprint        text        NOT NULL COLLATE "C",
    seal               bytea       NOT NULL,
    state              bytea       NOT NULL
);
