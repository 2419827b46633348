CREATE TABLE stock (
    sku text COLLATE "C" PRIMARY KEY,
    on_hand bigint NOT NULL CHECK (on_hand >= 0),
    reserved bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    CONSTRAINT never_oversold CHECK (reserved <= on_hand)
);

-- One row per order that was heard of, by whichever event came first. A row is `undecided` only inside the
-- transaction that decides it: it is there to be locked.
CREATE TABLE reservations (
    order_id text COLLATE "C" PRIMARY KEY,
    status text NOT NULL CHECK (status IN ('undecided', 'reserved', 'rejected', 'cancelled'))
);

-- What was asked for, per sku, and how much of it was missing (0 everywhere when reserved).
-- A cancelled order has no lines, whether the cancellation came before or after the order.
CREATE TABLE reservation_lines (
    order_id text COLLATE "C" REFERENCES reservations,
    sku text COLLATE "C",
    quantity bigint NOT NULL CHECK (quantity > 0),
    missing bigint NOT NULL CHECK (missing BETWEEN 0 AND quantity),
    PRIMARY KEY (order_id, sku)
);
