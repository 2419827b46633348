"""Read your own writes: wait until a projection has applied an event.

Who waits is woken by a hint that runners send after their commits. A hint may be lost, and there is none behind a
pooler; that costs one poll.
"""

import contextlib
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from threading import Condition, Event
from time import monotonic
from typing import Generic, TypeVar

from infrastructure.fork import in_each_forked_child
from infrastructure.hints import LISTEN_PROJECTED
from infrastructure.pooler import behind_a_pooler
from infrastructure.postgres import Connection, Timeouts, connect
from infrastructure.supervisor import Loop, beat
from projections import positions

T = TypeVar("T")

POLL = 0.5
"""Seconds between two looks while somebody waits and no hint comes."""

PROCESSED = "SELECT event_id FROM processed_events WHERE consumer_name = %s AND event_id = ANY (%s)"

_TIMEOUTS = Timeouts(connect=3.0, statement=2.0, margin=0.5)


@dataclass
class _Awaited:
    """By how many threads, and whether it has come."""

    by: int = 0
    arrived: bool = False


class Watch(ABC, Generic[T]):
    """Looks out for all threads of a process, on one connection, which the first who waits opens.

    Safe for many threads and in a forked child. While nobody waits it keeps the connection and asks nothing.
    """

    def __init__(self, dsn: str, consumer_name: str) -> None:
        """dsn: of the projection's database. consumer_name: the projection's."""
        self._dsn, self._consumer_name = dsn, consumer_name
        self._closed = False
        self._changed: Condition
        self._awaited: dict[T, _Awaited]
        self._loop: Loop | None
        self._start_afresh()
        in_each_forked_child(self._start_afresh)

    def wait_for(self, what: T, timeout: float) -> bool:
        """True as soon as it is applied and can be read; False when it is not within `timeout` seconds.

        False says no more than that: it may be applied a moment later, or not at all. The database being away
        is no error here, only a longer wait.
        """
        until = monotonic() + timeout
        with self._changed:
            awaited = self._awaited.setdefault(what, _Awaited())
            awaited.by += 1
            try:
                self._look()
                while not (awaited.arrived or self._closed) and (left := until - monotonic()) > 0:
                    self._changed.wait(left)
            finally:
                awaited.by -= 1
                if not awaited.by:
                    self._awaited.pop(what, None)
        return awaited.arrived

    def close(self) -> None:
        """Whoever waits is told False. Safe to repeat."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._loop is not None:
            self._wake()
            self._loop.stop()

    @abstractmethod
    def _find(self, connection: Connection, awaited: Collection[T]) -> Collection[T]:
        """Which of these are applied."""

    def _look(self) -> None:
        """Now, and not only with the next hint: what this thread waits for may be there already."""
        if self._loop is None and not self._closed:
            self._loop = Loop("waiting", self._run)
            self._loop.start()
        self._wake()

    def _run(self, stop: Event) -> None:
        with connect(self._dsn, application_name="counterfoil waiting", timeouts=_TIMEOUTS) as connection:
            if not behind_a_pooler(connection):  # there it would be left behind in a session that others get
                connection.execute(LISTEN_PROJECTED)
            while not stop.is_set():
                beat("waiting")
                with self._changed:
                    awaited = list(self._awaited)
                if awaited:
                    self._tell(self._find(connection, awaited))
                self._sleep(connection)

    def _tell(self, found: Collection[T]) -> None:
        with self._changed:
            for what in found:
                if what in self._awaited:
                    self._awaited[what].arrived = True
            self._changed.notify_all()

    def _sleep(self, connection: Connection) -> None:
        """Until there is a hint, or somebody new who waits, or it is time to look again."""
        if any(True for _ in connection.notifies(timeout=0)):
            return  # it came together with the answer to the last look, which may not have seen what it told of
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._ear.fileno(), select.POLLIN)
        poll.poll(POLL * 1_000)
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4_096)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full, so it wakes up anyway
            self._bell.send(b"!")

    def _start_afresh(self) -> None:
        self._changed = Condition()
        self._awaited = {}
        self._loop = None
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)


class PositionWatch(Watch[int]):
    """Of a projection that is fed by the store: `wait_for(answer.position, timeout=2.0)`.

    A position is awaited of all shards, so whatever is stored at or below it can be read then.
    """

    def _find(self, connection: Connection, awaited: Collection[int]) -> Collection[int]:
        applied = min((place.position for place in positions.read(connection, self._consumer_name)), default=0)
        return [position for position in awaited if position <= applied]


class EventWatch(Watch[str]):
    """Of a projection that is fed by Kafka: `wait_for(event_id, timeout=2.0)`.

    Positions are not offered here: partitions are read each at its own pace, so that having applied one position
    says nothing of those below it. An event that was put in quarantine does not arrive.
    """

    def _find(self, connection: Connection, awaited: Collection[str]) -> Collection[str]:
        rows = connection.execute(PROCESSED, (self._consumer_name, list(awaited)))
        return [event_id for (event_id,) in rows]
