-- What each consumer has applied. A row is written in the transaction of the effect, so that the two are one fact.
CREATE TABLE processed_events (
    consumer_name text NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_name, event_id)
);

-- Records that can never be applied as they are. Key, value and headers are kept as bytes, because what
-- is wrong with them may be that no text column takes them. Headers are two lists of one length, in order.
CREATE TABLE quarantined_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_name text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    record_timestamp_ms bigint,
    key bytea,
    value bytea,
    header_names bytea[] NOT NULL,
    header_values bytea[] NOT NULL,
    event_id text COLLATE "C",
    category text NOT NULL,
    reason text NOT NULL,
    quarantined_at timestamptz NOT NULL DEFAULT now(),
    content_hash bytea NOT NULL GENERATED ALWAYS AS (sha256(coalesce(key, '') || coalesce(value, ''))) STORED,
    CHECK (cardinality(header_names) = cardinality(header_values)),
    -- A redelivered record is the same row. The hash is there for a topic that was deleted and made anew:
    -- its offsets start again, and another record at a known offset must not be taken for a repeat.
    UNIQUE (consumer_name, topic, partition, "offset", content_hash)
);
