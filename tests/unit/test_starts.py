"""Where reading begins is asked within a limit, of however many partitions."""

from collections.abc import Sequence
from typing import cast

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from infrastructure import starts
from infrastructure.starts import known_starts


class SlowBroker:
    """Takes 0.3 s for each answer, by its own clock. The group has committed only in partition 99."""

    now = 1_000.0

    def committed(self, partitions: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._answer_within(timeout)
        offsets = [7 if each.partition == 99 else OFFSET_INVALID for each in partitions]
        return [TopicPartition("orders", each.partition, at) for each, at in zip(partitions, offsets, strict=True)]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        self._answer_within(timeout)
        return 40 + partition.partition, 1_000

    def _answer_within(self, timeout: float) -> None:
        assert timeout > 0
        self.now += min(timeout, 0.3)
        if timeout < 0.3:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_many_partitions_without_offsets_together_take_no_longer_than_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SlowBroker()
    monkeypatch.setattr(starts, "monotonic", lambda: broker.now)
    known = known_starts(cast(Consumer, broker), [TopicPartition("orders", number) for number in range(100)])
    assert broker.now <= 1_002.001
    assert known["orders", 0] == 40
    assert known["orders", 99] == 7  # told with the first answer
    assert known.keys() == {("orders", number) for number in (0, 1, 2, 3, 4, 99)}
