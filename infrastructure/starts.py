"""Where reading has to begin, asked before it begins: so that we know which record has to come first."""

from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

_SECONDS = 2.0
"""Longest wait for an answer. After one that failed nothing more is asked."""


def known_starts(consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[tuple[str, int], int]:
    """The offset that the group has committed, or that of the oldest record where it has committed none.

    Those of which the broker does not tell in time are left out: nothing is guessed, since to begin too late
    would lose records, and to begin with the oldest would bring all of them again.
    """
    starts: dict[tuple[str, int], int] = {}
    with suppress(KafkaException):
        for each in consumer.committed(list(partitions), timeout=_SECONDS) if partitions else []:
            if each.error is None:
                starts[each.topic, each.partition] = each.offset if each.offset >= 0 else _oldest(consumer, each)
    return starts


def _oldest(consumer: Consumer, place: TopicPartition) -> int:
    """Raises KafkaException."""
    oldest, _ = consumer.get_watermark_offsets(TopicPartition(place.topic, place.partition), timeout=_SECONDS)
    return oldest
