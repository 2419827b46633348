"""The Kafka producer of a publisher: made when it is needed, and again after each failure."""

import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from infrastructure import bounded, metrics
from infrastructure.kafka_config import connection_config
from infrastructure.settings import Settings

logger = logging.getLogger(__name__)
_silent = logging.getLogger(f"{__name__}.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False
"""The client's own log: whatever matters reaches us as an error, and is logged here by its name."""

warnings.filterwarnings("ignore", "Producer abort_transaction failed during close", RuntimeWarning)
"""Said of a producer that is given up; its successor ends what it left open."""

LARGEST_MESSAGE = 1_000_000
"""Bytes that a producer takes as one message; below the brokers' default of 1,048,588 for a whole batch."""

_CLOSING = 1.0
"""Longest wait for the threads of a producer to end."""


def producer_config(settings: Settings) -> dict[str, Any]:
    """Holds the password: never log it."""
    return connection_config(settings) | {
        "enable.idempotence": True,
        "acks": "all",
        "delivery.timeout.ms": int(settings.publish_timeout * 1_000),
        "partitioner": "murmur2_random",  # as Java clients do; the client's own default agrees on few keys
        "allow.auto.create.topics": False,  # a misspelt topic must not come to life
        "topic.metadata.propagation.max.ms": 5_000,  # how long a missing topic may be one just being made
        "message.max.bytes": LARGEST_MESSAGE,
        "batch.size": 262_144,  # what is larger is alone in its batch
        "compression.type": "lz4",
        "log_level": 0,
        "linger.ms": 10,  # while a batch is handed over and the next prepared: waiting for the reports sends at once
    }


class OwnProducer:
    """One producer at a time, for one thread. After a fork the child makes one of its own."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {**config, "error_cb": self._on_error}
        self._producer: Producer | None = None
        self._process = os.getpid()
        self._complaints: list[str] = []

    def get(self) -> Producer:
        if self._process != os.getpid():
            _of_the_parent.append(self._producer)
            self._producer, self._process = None, os.getpid()
        if self._producer is None:
            self._producer = Producer(self._config, logger=_silent)
        return self._producer

    @property
    def is_made(self) -> bool:
        return self._producer is not None and self._process == os.getpid()

    def replace(self) -> None:
        """After a failure: the next `get` makes a new one. Takes a second at most."""
        self.close()
        metrics.PRODUCERS_REPLACED.inc()

    def close(self) -> None:
        """Takes a second at most. What it was still to send may or may not be sent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            bounded.within(_CLOSING, lambda: _close(producer), "kafka-producer-close")

    @property
    def complaint(self) -> str | None:
        """The last trouble of the whole client since all was well, by its name."""
        return self._complaints[-1] if self._complaints else None

    def is_well(self) -> None:
        """Everything it was given has arrived: earlier trouble is over."""
        self._complaints.clear()

    def _on_error(self, error: KafkaError) -> None:
        """What concerns the whole client. It repeats for as long as a broker is away: logged once."""
        if error.name() not in self._complaints:
            self._complaints.append(error.name())
            logger.warning("trouble with Kafka", extra={"error": error.name(), "fatal": error.fatal()})


def _close(producer: Producer) -> None:
    with suppress(KafkaException):  # of what it died of it tells once more
        producer.close()


_of_the_parent: list[Producer | None] = []
"""Kept for ever: to free a producer whose threads stayed behind in the parent process would hang."""
