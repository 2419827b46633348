"""Says so when records were deleted, by retention or by hand, before the group had read them.

Reading then goes on with the oldest record there is; the client says nothing about what is missing.
"""

import logging

from confluent_kafka import Consumer, KafkaException, TopicPartition

from infrastructure import metrics
from infrastructure.record import Record

logger = logging.getLogger(__name__)

_SECONDS = 2.0
"""Longest wait for the broker. Without its answer nothing is said."""


def tell_of_deleted_records(consumer: Consumer, group: str, expected: int, first: Record) -> bool:
    """To be called with the first record after a gap, and the offset at which the gap begins. A mere gap is no loss:
    there is one after every transaction, and wherever a topic is compacted. True when it is known to be a mere gap."""
    try:
        marks = consumer.get_watermark_offsets(TopicPartition(first.topic, first.partition), timeout=_SECONDS)
    except KafkaException:
        return False
    if marks is None:
        return False
    oldest, _ = marks
    missing = min(oldest, first.offset) - expected
    if missing > 0:
        metrics.SUBSCRIBER_DELETED.labels(group).inc(missing)
        logger.error(
            "records were deleted before they were read: their events are missing here, fill them in from the store",
            extra={
                "group": group,
                "topic": first.topic,
                "partition": first.partition,
                "first_missing": expected,
                "last_missing": expected + missing - 1,
            },
        )
    return missing <= 0
