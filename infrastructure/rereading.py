"""Partitions of which nothing is taken before Kafka's client has been sent back to an offset."""

import logging
from collections.abc import Callable, Iterable
from time import monotonic

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from infrastructure import metrics

logger = logging.getLogger(__name__)

Place = tuple[str, int]

REFUSED_SECONDS = 30.0
"""For so long a client may refuse to go back; then only a new one can help."""


class Rereading:
    """Sends the client back, and again with each poll while it refuses."""

    def __init__(self, group: str, on_error: Callable[[KafkaError], None]) -> None:
        self._group, self._on_error = group, on_error
        self._offsets: dict[Place, int] = {}
        self._refused_since: dict[Place, float] = {}

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def ask_for(self, place: Place, offset: int) -> None:
        self._offsets[place] = offset

    def forget(self, places: Iterable[Place]) -> None:
        for place in places:
            self._offsets.pop(place, None)
            self._refused_since.pop(place, None)

    @property
    def is_stuck(self) -> bool:
        """Whether the client has refused for too long."""
        return any(monotonic() - since >= REFUSED_SECONDS for since in self._refused_since.values())

    def send_back(self, consumer: Consumer) -> list[Place]:
        """Those for which it was possible. What the client still has of them in its queue is thrown away by that."""
        done = [place for place, offset in self._offsets.items() if self._seek(consumer, place, offset)]
        self.forget(done)
        return done

    def _seek(self, consumer: Consumer, place: Place, offset: int) -> bool:
        about = {"group": self._group, "topic": place[0], "partition": place[1], "offset": offset}
        try:
            consumer.seek(TopicPartition(*place, offset))
        except KafkaException as refused:
            error: KafkaError = refused.args[0]
            self._on_error(error)
            if place not in self._refused_since:
                self._refused_since[place] = monotonic()
                logger.warning(
                    "a partition stands still: it can't be read again", extra=about | {"error": error.name()}
                )
            return False
        metrics.SUBSCRIBER_OUT_OF_LINE.labels(self._group, "too_early").inc()
        logger.info("a gap is read once more", extra=about)
        return True
