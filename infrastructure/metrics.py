"""Every metric, by name, in one place. Labels are names of ours, never text from a message, so they stay few."""

from prometheus_client import Counter, Gauge, Histogram, start_http_server

LOOP_BEAT = Gauge("counterfoil_loop_beat_timestamp_seconds", "Last turn of a loop, Unix time", ["loop"])
LOOP_RESTARTS = Counter("counterfoil_loop_restarts_total", "Restarts of a loop after an error", ["loop", "error"])
WAITING_FOR_DATABASE = Gauge(
    "counterfoil_waiting_for_database", "1 while a process that was started waits for its database", ["loop"]
)

RELAY_POSITION = Gauge("counterfoil_relay_position", "Position up to which all is published", ["relay", "shard"])
RELAY_LAG = Gauge("counterfoil_relay_lag_events", "Stored positions above the checkpoint", ["relay", "shard"])
RELAY_PUBLISHED = Counter("counterfoil_relay_published_total", "Messages acknowledged by Kafka", ["relay", "topic"])
RELAY_HELD = Gauge("counterfoil_relay_held", "1 while it waits because the store was set back", ["relay", "shard"])
RELAY_STATE = Gauge(
    "counterfoil_relay_state", "1 for the state; shard: a number, or all for the process", ["relay", "shard", "state"]
)
RELAY_PAUSED = Gauge("counterfoil_relay_paused", "1 while the relay is paused", ["relay"])
RELAY_SHARDS = Gauge("counterfoil_relay_shards_held", "Shards that this process publishes for", ["relay"])
RELAY_CHECKPOINT_FAILURES = Counter(
    "counterfoil_relay_checkpoint_failures_total", "Checkpoints not written: their events are repeated", ["relay"]
)
RELAY_LEASES_LOST = Counter("counterfoil_relay_leases_lost_total", "Leases lost while working", ["relay"])
RELAY_QUARANTINED = Counter(
    "counterfoil_relay_quarantined_total", "Events passed without publishing them, by reason", ["relay", "category"]
)
RELAY_PARKED = Gauge("counterfoil_relay_parked_aggregates", "Aggregates with events in quarantine", ["relay", "shard"])
RELAY_REDRIVEN = Counter(
    "counterfoil_relay_redriven_total", "Parked events tried again, by outcome", ["relay", "outcome"]
)
PUBLISH_FAILURES = Counter("counterfoil_publish_failures_total", "Batches not fully acknowledged", ["error"])
PRODUCERS_REPLACED = Counter("counterfoil_producers_replaced_total", "Kafka producers given up after a failure")
TOPIC_PARTITIONS_UNEXPECTED = Gauge(
    "counterfoil_topic_partitions_unexpected", "1 where the partition count is not that of the settings", ["topic"]
)
TOPIC_RETENTION_UNEXPECTED = Gauge(
    "counterfoil_topic_retention_unexpected",
    "1 where records are kept for another time than the settings name",
    ["topic"],
)
WAKE_UPS = Counter("counterfoil_wake_ups_total", "What woke a reader of the store", ["cause"])
GAP_WAITS = Counter("counterfoil_gap_waits_total", "Reads cut short before an unsettled position")
GAP_PROOFS = Counter("counterfoil_gap_proofs_total", "Gaps proven to stay empty, and passed")

APPENDS = Counter("counterfoil_appends_total", "Events appended to the store", ["outcome"])
SNAPSHOTS = Counter("counterfoil_snapshots_total", "What became of snapshots", ["aggregate", "outcome"])

SUBSCRIBER_PARTITIONS = Gauge("counterfoil_subscriber_partitions", "Partitions assigned to this process", ["group"])
SUBSCRIBER_HELD = Gauge("counterfoil_subscriber_held_partitions", "Those of them that are made to wait", ["group"])
SUBSCRIBER_TROUBLES = Counter(
    "counterfoil_subscriber_troubles_total", "What Kafka's client complained of, by its name", ["group", "error"]
)
SUBSCRIBER_DELETED = Counter(
    "counterfoil_subscriber_deleted_records_total", "Records deleted before the group had read them", ["group"]
)
SUBSCRIBER_OUT_OF_LINE = Counter(
    "counterfoil_subscriber_out_of_line_total",
    "Records that came otherwise than as the next: too_early (their partition was read again), found, again,"
    " after_gap (believed unread), after_proved_gap, unproved",
    ["group", "came"],
)
INBOX_EVENTS = Counter("counterfoil_inbox_events_total", "Messages received, by outcome", ["consumer", "outcome"])
INBOX_BATCH_SECONDS = Histogram("counterfoil_inbox_batch_seconds", "Time to apply one batch", ["consumer"])
INBOX_BYTES = Gauge("counterfoil_inbox_bytes", "Size of the ids that are remembered", ["projection"])
INBOX_RETRIES = Counter("counterfoil_inbox_retries_total", "Batches tried again", ["consumer", "error"])
QUARANTINED = Counter("counterfoil_quarantined_total", "Events put in quarantine, by reason", ["consumer", "category"])
QUARANTINE_OPEN = Gauge(
    "counterfoil_quarantine_open", "Entries of the consumer that wait for a decision", ["consumer", "kind"]
)

FEED_POSITION = Gauge(
    "counterfoil_feed_position",
    "Position up to which a projection fed by the store has applied all",
    ["projection", "shard"],
)
FEED_LAG = Gauge("counterfoil_feed_lag_events", "Stored positions above that", ["projection", "shard"])
FEED_WAITING = Gauge(
    "counterfoil_feed_lag_seconds", "Age of the oldest event above that, else 0", ["projection", "shard"]
)
FEED_APPLIED = Counter("counterfoil_feed_applied_total", "Events applied from the store", ["projection"])
FEED_STATE = Gauge("counterfoil_feed_state", "1 for the state a shard is in", ["projection", "shard", "state"])

EFFECTS = Counter("counterfoil_effects_total", "Attempts at external effects, by outcome", ["consumer", "outcome"])
EFFECTS_WAITING = Gauge("counterfoil_effects_waiting", "External effects not yet sent", ["consumer"])
EFFECTS_FAILED = Gauge("counterfoil_effects_failed", "External effects that were refused for good", ["consumer"])


def serve(port: int) -> None:
    """Serves the metrics on 127.0.0.1; does nothing when the port is 0."""
    if port:
        start_http_server(port, addr="127.0.0.1")
