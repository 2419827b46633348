"""Where reading has to begin, asked before it begins: so that we know which record has to come first."""

from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from confluent_kafka import Consumer, KafkaException, TopicPartition

_SECONDS = 2.0
"""Longest wait for all answers together, of however many partitions: Kafka's client calls no one else meanwhile."""


def known_starts(consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[tuple[str, int], int]:
    """The offset that the group has committed, or that of the oldest record where it has committed none.

    Those of which the broker does not tell in time are left out: nothing is guessed, since to begin too late
    would lose records, and to begin with the oldest would bring all of them again. The oldest are asked for one
    after the other, and nothing more after a question that failed.
    """
    starts: dict[tuple[str, int], int] = {}
    until = monotonic() + _SECONDS
    with suppress(KafkaException):
        answers = consumer.committed(list(partitions), timeout=_SECONDS) if partitions else []
        told = [each for each in answers if each.error is None]
        starts |= {(each.topic, each.partition): each.offset for each in told if each.offset >= 0}
        for each in told:
            if each.offset < 0 and (left := until - monotonic()) > 0:
                starts[each.topic, each.partition] = _oldest(consumer, each, left)
    return starts


def _oldest(consumer: Consumer, place: TopicPartition, seconds: float) -> int:
    """Raises KafkaException."""
    oldest, _ = consumer.get_watermark_offsets(TopicPartition(place.topic, place.partition), timeout=seconds)
    return oldest
