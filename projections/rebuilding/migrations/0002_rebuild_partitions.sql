-- Where the events come from when it is not the store: a row per partition. The position of the worker of that number
-- is the offset of the record that comes next there.
CREATE TABLE rebuild_partitions (
    first_offset bigint  NOT NULL, -- of the oldest record that was there when the rebuild began
    worker       integer NOT NULL,
    partition    integer NOT NULL,
    projection   text    NOT NULL COLLATE "C" REFERENCES rebuilds ON DELETE CASCADE,
    topic        text    NOT NULL,
    PRIMARY KEY (projection, worker)
);
