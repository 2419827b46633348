-- What the pretended mail provider has delivered. A real one keeps this on its own side.
CREATE TABLE delivered_notifications (
    idempotency_key text COLLATE "C" PRIMARY KEY,
    customer_id text NOT NULL,
    text text NOT NULL,
    delivered_at timestamptz NOT NULL DEFAULT now()
);
