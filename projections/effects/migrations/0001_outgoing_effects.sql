-- External effects that were asked for. The id is the idempotency key that the provider gets: the event and the
-- effect's name, so that nothing that is delivered, applied or sent twice can have another one.
CREATE TABLE outgoing_effects (
    id text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL GENERATED ALWAYS AS IDENTITY UNIQUE,
    consumer_name text NOT NULL,
    effect text NOT NULL,
    key text NOT NULL, -- effects of one key are called for in order of position
    content json NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT now(), -- also: until when a worker has it to itself
    worker text, -- the claim of the worker that had it last; one that lost it may not say what became of it
    last_problem text,
    sent_at timestamptz,
    failed_at timestamptz, -- the provider refused it for good
    CHECK (sent_at IS NULL OR failed_at IS NULL)
);

CREATE INDEX outgoing_effects_by_key ON outgoing_effects (consumer_name, key, position)
    WHERE sent_at IS NULL AND failed_at IS NULL;
CREATE INDEX outgoing_effects_due ON outgoing_effects (consumer_name, due_at)
    WHERE sent_at IS NULL AND failed_at IS NULL;
CREATE INDEX outgoing_effects_failed ON outgoing_effects (consumer_name, position) WHERE failed_at IS NOT NULL;
