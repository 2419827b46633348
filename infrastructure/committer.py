"""Commits offsets, with an end to every wait. The client's own synchronous commit has none: it waits on a
broker that has stopped answering for as long as that lasts, and cannot be interrupted."""

from collections.abc import Callable, Mapping
from threading import Thread
from time import monotonic

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from infrastructure import bounded
from infrastructure.backoff import Backoff
from infrastructure.progress import Progress

COMMIT_SECONDS = 2.0
"""Longest wait for a commit. It may still arrive later."""

Partitions = Mapping[tuple[str, int], Progress]


class Committer:
    """One commit at a time, so that an older one can never arrive after a newer one."""

    def __init__(self, consumer: Consumer, on_error: Callable[[KafkaError], None]) -> None:
        self._consumer, self._on_error = consumer, on_error
        self._under_way: Thread | None = None
        self._backoff, self._again_at = Backoff(base=0.2, cap=5.0), 0.0

    def commit(self, partitions: Partitions) -> bool:
        """Commits what is due. False when that was not confirmed in time; what is due is then still due."""
        offsets = _due(partitions)
        if not offsets:
            return True
        if self._is_under_way():
            return False
        confirmed: list[TopicPartition] = []
        self._under_way = bounded.start(lambda: self._call(offsets, confirmed), "kafka-commit")
        self._under_way.join(COMMIT_SECONDS)
        for each in tuple(confirmed):
            partitions[each.topic, each.partition].committed(each.offset)
        complete = len(confirmed) == len(offsets)
        self._again_at = 0.0 if complete else monotonic() + self._backoff.next_delay()
        if complete:
            self._backoff.reset()
        return complete

    def commit_again(self, partitions: Partitions) -> None:
        """After a commit that failed, a while later; to be called every now and then."""
        if self._again_at and monotonic() > self._again_at:
            self.commit(partitions)

    def commit_before_leaving(self, partitions: Partitions) -> None:
        """For partitions that are being taken away, from the client's own callback.

        No other thread may use the client then, and a wait here would have no end. None is needed: the
        commit travels on the connection by which we give the partitions back, and ahead of that, so that
        whoever gets them finds it.
        """
        offsets = _due(partitions)
        if offsets and not self._is_under_way():
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def _is_under_way(self) -> bool:
        return self._under_way is not None and self._under_way.is_alive()

    def _call(self, offsets: list[TopicPartition], confirmed: list[TopicPartition]) -> None:
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as failure:
            self._on_error(failure.args[0])
            return
        for each in answers:
            if each.error is None:
                confirmed.append(each)
            else:
                self._on_error(each.error)


def _due(partitions: Partitions) -> list[TopicPartition]:
    due = [(place, progress.due) for place, progress in partitions.items()]
    return [TopicPartition(*place, offset) for place, offset in due if offset is not None]
