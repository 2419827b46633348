-- One row for ever: the namespace that goes into the ids of the events of this store.
CREATE TABLE store_identity (
    only_one   boolean     PRIMARY KEY DEFAULT true CHECK (only_one),
    namespace  uuid        NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO store_identity DEFAULT VALUES;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON store_identity
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON store_identity
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

ALTER TABLE store_identity ENABLE ALWAYS TRIGGER append_only;
ALTER TABLE store_identity ENABLE ALWAYS TRIGGER append_only_truncate;
