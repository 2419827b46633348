-- How the relay delivers that had the lease last; NULL: none has had it yet. A change of the number of shards has to
-- ask Kafka what became of a transaction, and is given settings of its own, which may say otherwise.
ALTER TABLE relay_checkpoints ADD COLUMN delivery text;
