"""Several relay processes at once, each a RelayLoop in a thread, and what each of them published."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from time import monotonic

from infrastructure.checkpoint import read_checkpoints
from infrastructure.lease import Shard, register
from infrastructure.outbox import Outbox
from infrastructure.postgres import connect
from infrastructure.publisher import Mark, OutgoingMessage, Sending
from infrastructure.relay_loop import RelayLoop
from infrastructure.resharding import reshard
from tests.support.relays import ENDS_WITHIN, NEVER, settings_for

Turn = Callable[[], None]


@dataclass
class Topic:
    """All that was acknowledged, by whoever published it, in the order of acknowledgement."""

    messages: list[tuple[int, OutgoingMessage]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def publisher(self, shard: Shard) -> "_Publisher":
        return _Publisher(self, shard.number)

    @property
    def published(self) -> list[OutgoingMessage]:
        return [message for _, message in list(self.messages)]

    def by_shard(self) -> Mapping[int, set[bytes]]:
        """The keys that each shard has published."""
        found: dict[int, set[bytes]] = {}
        for shard, message in list(self.messages):
            found.setdefault(shard, set()).add(message.key)
        return found


@dataclass
class _Publisher:
    """Acknowledges after a moment, as Kafka does."""

    topic: Topic
    shard: int

    def resume(self, stored: Mark, turn: Turn) -> Mark:
        turn()
        return stored

    def send(self, messages: Sequence[OutgoingMessage], covers: Mark, turn: Turn) -> Sending:
        turn()
        return _Sent(self, messages)

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class _Sent:
    publisher: _Publisher
    messages: Sequence[OutgoingMessage]

    def wait(self, stop: Event, turn: Turn) -> int:
        until = monotonic() + random.uniform(0, 0.01)
        while monotonic() < until:
            stop.wait(0.002)
            turn()
        with self.publisher.topic.lock:
            self.publisher.topic.messages += [(self.publisher.shard, message) for message in self.messages]
        return len(self.messages)

    def drop(self) -> None:
        """Nothing is under way."""


class NoTopics:
    def ensure(self, turn: Turn) -> None:
        """They are there."""

    def doubt(self) -> None:
        """Never."""


class Fleet:
    """Relay processes by name."""

    def __init__(self, outbox: Outbox, topic: Topic) -> None:
        self._outbox, self._topic = outbox, topic
        self._running: dict[str, tuple[RelayLoop, Event, Thread]] = {}

    def start(self, name: str, dsn: str, **settings: object) -> RelayLoop:
        loop = RelayLoop(self._outbox, settings_for(dsn, "127.0.0.1:1", **settings), self._topic.publisher)
        loop._topics = NoTopics()  # type: ignore[assignment]  # there is no Kafka
        stop = Event()
        thread = Thread(target=loop.run, args=(stop,), name=name)
        thread.start()
        self._running[name] = (loop, stop, thread)
        return loop

    def stop(self, *names: str) -> None:
        for name in names:
            self._running[name][1].set()
        for name in names:
            thread = self._running.pop(name)[2]
            thread.join(ENDS_WITHIN)
            assert not thread.is_alive(), f"{name} did not stop"

    def held(self) -> dict[str, set[int]]:
        """The shards for which each process publishes."""
        return {name: set(loop._threads) for name, (loop, _, _) in self._running.items()}

    def close(self) -> None:
        self.stop(*list(self._running))


@contextmanager
def fleet(outbox: Outbox, topic: Topic) -> Iterator[Fleet]:
    started = Fleet(outbox, topic)
    try:
        yield started
    finally:
        started.close()


def have_shards(dsn: str, relay: str, shards: int) -> None:
    """Before anything runs."""
    with connect(dsn, application_name="test") as connection:
        register(connection, relay)
        reshard(connection, relay, shards, 5.0, NEVER)


def positions(dsn: str, relay: str) -> list[int]:
    with connect(dsn, application_name="test") as connection:
        return [status.position for status in read_checkpoints(connection, relay)]


def owners(dsn: str, relay: str) -> list[str | None]:
    """Of the leases that run, by shard."""
    with connect(dsn, application_name="test") as connection:
        return [status.owner if status.leased else None for status in read_checkpoints(connection, relay)]
