"""The mark of a relay's shard as Kafka keeps it: committed offsets of a consumer group that nobody joins.

They are committed in the transaction that publishes what they cover. Kafka forgets them some days after the last
one, or with the topic; the checkpoint in the database, which is written later, is the floor.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from infrastructure.kafka_config import connection_config
from infrastructure.patience import Patience
from infrastructure.publisher import Mark
from infrastructure.settings import Settings

_ANSWER = 1.0
"""Longest wait for one answer, in seconds; a third of the lease when that is shorter."""
_PAUSE = 0.1
"""Seconds between two attempts, when Kafka answers that it is not ready."""

_METADATA = re.compile(r"counterfoil 1 generation=(?P<generation>\d{1,18}) anchor=(?P<anchor>[0-9a-f]{64})?")


class KeptMarks:
    """Those of one shard. For one thread; makes its consumer, which reads no topic, when it is first needed."""

    def __init__(self, settings: Settings, group: str, topics: Sequence[str]) -> None:
        """topics: that the relay publishes to. The offset is noted at the first of them; all are asked."""
        self._topics = sorted(set(topics))
        self._answer = min(_ANSWER, settings.relay_lease / 3)
        self._config: dict[str, Any] = connection_config(settings) | {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",  # an offset in an open transaction is waited for
            "error_cb": lambda _error: None,
            "log_level": 0,
        }
        self._consumer: Consumer | None = None

    def read(self, turn: Callable[[], None], patience: Patience) -> list[Mark]:
        """What is kept; none when nothing is. Raises KafkaException when Kafka does not say in time."""
        while True:
            turn()
            try:
                return self._read()
            except KafkaException:
                if patience.is_over():
                    raise
                self._own_consumer().poll(_PAUSE)

    def offsets(self, mark: Mark) -> list[TopicPartition]:
        """For `send_offsets_to_transaction`, together with `group`."""
        anchor = mark.anchor.hex() if mark.anchor else ""
        metadata = f"counterfoil 1 generation={mark.generation} anchor={anchor}"
        return [TopicPartition(self._topics[0], 0, mark.position, metadata)]

    @property
    def group(self) -> object:
        return self._own_consumer().consumer_group_metadata()

    def close(self) -> None:
        self._consumer = None  # it is in no group that it would have to leave

    def _read(self) -> list[Mark]:
        asked = [TopicPartition(topic, 0) for topic in self._topics]
        answered = self._own_consumer().committed(asked, timeout=self._answer)
        for each in answered:
            if each.error is not None:
                raise KafkaException(each.error)
        return [mark for each in answered if (mark := _mark(each)) is not None]

    def _own_consumer(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._config)
        return self._consumer


def _mark(found: TopicPartition) -> Mark | None:
    """None when there is none, or one that is not ours."""
    said = _METADATA.fullmatch(found.metadata or "")
    if found.offset < 0 or said is None:
        return None
    anchor = said["anchor"]
    return Mark(found.offset, int(said["generation"]), bytes.fromhex(anchor) if anchor else None)
