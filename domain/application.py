"""Base of the applications: load an aggregate, decide, save; again when another writer was faster."""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, cast

from eventsourcing.application import AggregateNotFoundError
from eventsourcing.application import Application as LibraryApplication
from eventsourcing.persistence import EventStore, IntegrityError, Mapper, Recording
from eventsourcing.utils import EnvType

from domain.base import Aggregate
from domain.errors import CounterfoilError
from domain.event_mapper import EventMapper
from domain.snapshot_loader import SnapshotLoader
from domain.snapshots import KeepsSnapshots, MemorySnapshots, SnapshotStore

TAggregate = TypeVar("TAggregate", bound=Aggregate)
TResult = TypeVar("TResult")


@dataclass(eq=False)
class VersionConflict(CounterfoilError):
    """Other writers changed the aggregate on every attempt; nothing of this command was stored.

    What to do: send the same command again, later. It is safe: commands are idempotent.
    """

    attempts: int

    def __str__(self) -> str:
        return f"Other writers were faster {self.attempts} times. Nothing was stored; send the command again."


class Application(LibraryApplication[str]):
    """An event-sourced application whose aggregates have text ids.

    Without an `env` it keeps its events in memory, which is meant for tests. With the settings of
    `infrastructure.event_store` it keeps them in PostgreSQL, and nothing else changes.
    """

    attempts: ClassVar[int] = 10

    def __init__(self, env: EnvType | None = None) -> None:
        _refuse_unsupported_settings(env or {})
        super().__init__(env)
        self.loader = SnapshotLoader(self.recorder, self.mapper, self.construct_snapshots())

    def construct_mapper(self) -> Mapper[str]:
        return EventMapper()

    def construct_snapshots(self) -> SnapshotStore:
        """Beside the events, wherever these are kept."""
        return self.factory.snapshots() if isinstance(self.factory, KeepsSnapshots) else MemorySnapshots()

    def construct_snapshot_store(self) -> EventStore[str]:
        """Where the library would keep snapshots of its own: a failing one makes its save() fail after the fact."""
        raise ValueError("Set snapshot_every on the aggregate class; no snapshots are taken by the library here")

    def find(self, aggregate_class: type[TAggregate], aggregate_id: str) -> TAggregate | None:
        """The aggregate as its stored events make it, or None. Raises UnknownTopic, UnreadableEvent."""
        aggregate = self._load(aggregate_class, aggregate_id)
        if aggregate is None:
            return None
        if not isinstance(aggregate, aggregate_class):
            raise TypeError(f"{aggregate_id!r} is a {type(aggregate).__qualname__}")
        return aggregate

    def position_of(self, saved: Sequence[Recording[str]]) -> int:
        """saved: what `save` returned. The position of the last of it; when nothing was saved, because it was
        stored before, the highest there is: at or below it stands whatever the caller has read.
        """
        return saved[-1].notification.id if saved else self.recorder.max_notification_id() or 0

    def until_saved(self, decide: Callable[[], TResult]) -> TResult:
        """Calls `decide` (load, decide, save), and again from the start when its save met a version conflict.

        Waits a few milliseconds at random between attempts. Raises VersionConflict after `attempts`.
        """
        for attempt in range(self.attempts):
            try:
                return decide()
            except IntegrityError:
                self.closing.wait(random.uniform(0, 0.002 * 2**attempt))  # noqa: S311
        raise VersionConflict(self.attempts)

    def _load(self, aggregate_class: type[Aggregate], aggregate_id: str) -> Aggregate | None:
        if aggregate_class.snapshot_every is not None:
            return self.loader.load(aggregate_class, aggregate_id)
        try:
            return cast(Aggregate, self.repository.get(aggregate_id))
        except AggregateNotFoundError:
            return None


def _refuse_unsupported_settings(env: EnvType) -> None:
    """The library would encrypt or compress on these; our mapper does not, and must not do so in silence."""
    for name in ("CIPHER_TOPIC", "CIPHER_KEY", "COMPRESSOR_TOPIC", "TRANSCODER_TOPIC", "MAPPER_TOPIC"):
        if env.get(name) or os.environ.get(name):
            raise ValueError(f"{name} is set, but stored events are plain JSON here: unset it")
