"""Commits offsets, and never waits for a broker. The client's own synchronous commit may wait without end, and
shuts out every other call of the consumer meanwhile, also from other threads; so commits are sent off here, and
their answers come with one of the next polls."""

from collections.abc import Callable, Mapping
from time import monotonic

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from infrastructure.backoff import Backoff
from infrastructure.progress import Progress

Partitions = Mapping[tuple[str, int], Progress]


class Committer:
    """One commit at a time, so that an older one can never arrive after a newer one.

    `answered` has to be the consumer's `on_commit`.
    """

    def __init__(self, partitions: Partitions, on_error: Callable[[KafkaError], None]) -> None:
        """partitions: those that are assigned, as they come and go."""
        self._partitions, self._on_error = partitions, on_error
        self._under_way: dict[tuple[str, int], int] = {}
        self._left = False
        """Whether something that was to be committed has failed, or had to wait for its turn."""
        self._backoff, self._again_at = Backoff(base=0.2, cap=5.0), 0.0

    @property
    def is_under_way(self) -> bool:
        return bool(self._under_way)

    @property
    def is_complete(self) -> bool:
        """Whether the group knows all that is finished."""
        return not (self._under_way or self._left or _due(self._partitions))

    def send(self, consumer: Consumer) -> None:
        """Sends off what is due; what is due while a commit is under way goes with a later one."""
        self._left = bool(self._under_way)
        offsets = _due(self._partitions)
        if offsets and not self._under_way:
            self._under_way = {(each.topic, each.partition): each.offset for each in offsets}
            self._send(consumer, offsets)

    def send_again(self, consumer: Consumer) -> None:
        """What is left, after a failure a while later; to be called every now and then."""
        if self._left and not self._under_way and monotonic() > self._again_at:
            self.send(consumer)

    def send_before_leaving(self, consumer: Consumer, partitions: Partitions) -> None:
        """For partitions that are being taken away, from the client's own callback.

        No wait is needed: the commit travels on the connection by which we give the partitions back, and
        ahead of that, so that whoever gets them finds it.
        """
        if offsets := _due(partitions):
            self._send(consumer, offsets)

    def answered(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        """What became of a commit. One for partitions that were taken away is not waited for."""
        failed = error
        for each in offsets:
            failed = failed or each.error
            place = each.topic, each.partition
            if each.error is None and error is None and place in self._partitions:
                self._partitions[place].committed(each.offset)
        if not offsets or {(each.topic, each.partition): each.offset for each in offsets} == self._under_way:
            self._under_way = {}
            if failed is None:
                self._backoff.reset()
            else:
                self._left, self._again_at = True, monotonic() + self._backoff.next_delay()
        if failed is not None:
            self._on_error(failed)

    def _send(self, consumer: Consumer, offsets: list[TopicPartition]) -> None:
        try:
            consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as refused:
            self.answered(refused.args[0], offsets)


def _due(partitions: Partitions) -> list[TopicPartition]:
    due = [(place, progress.due) for place, progress in partitions.items()]
    return [TopicPartition(*place, offset) for place, offset in due if offset is not None]
