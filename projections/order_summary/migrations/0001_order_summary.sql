-- One row per order that was heard of. Where only the cancellation has come so far, nothing but that is known.
CREATE TABLE order_summaries (
    cancelled         boolean NOT NULL,
    total_minor       bigint CHECK (total_minor >= 0),
    placed_at         timestamptz,
    order_id          text COLLATE "C" PRIMARY KEY,
    customer_id       text COLLATE "C",
    currency          text COLLATE "C",
    cancelled_because text,
    CHECK (num_nulls(customer_id, currency, total_minor, placed_at) IN (0, 4)),
    CHECK (cancelled = (cancelled_because IS NOT NULL))
) WITH (fillfactor = 90); -- room for the cancellation on the same page

-- What a customer ever placed, and what of that was cancelled: numbers that only grow, so that events may come
-- in any order. A sum of many totals may exceed what bigint holds, so it is numeric; it is whole all the same.
CREATE TABLE customer_totals (
    placed          bigint NOT NULL CHECK (placed >= 0),
    placed_minor    numeric(38, 0) NOT NULL CHECK (placed_minor >= 0),
    cancelled       bigint NOT NULL CHECK (cancelled >= 0),
    cancelled_minor numeric(38, 0) NOT NULL CHECK (cancelled_minor >= 0),
    customer_id     text COLLATE "C",
    currency        text COLLATE "C",
    PRIMARY KEY (customer_id, currency)
) WITH (fillfactor = 50); -- every order of a customer changes the row, and nothing that an index holds
