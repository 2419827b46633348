"""What a snapshot is, and where the latest of each aggregate is kept: a cache and never a truth.

Aggregates take part by `snapshot_every`. The library's own snapshots are not used. It takes them inside
`save()` after the events are stored, so that a failing snapshot makes `save()` fail for events that are
there. Here a snapshot is taken while loading (snapshot_loader.py), of the very state that was just made
from stored events, before anybody can have changed it; saving knows nothing of snapshots.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable


class Outcome(StrEnum):
    """What became of a snapshot. All but the first two are warned about, once for an aggregate class."""

    USED = "used"
    TAKEN = "taken"
    STALE = "stale"
    """Made by other code: dropped."""
    DAMAGED = "damaged"
    """Not as it was written, or of another history: dropped."""
    UNREADABLE = "unreadable"
    """As it was written, but the aggregate's types refuse it now: dropped."""
    AHEAD = "ahead"
    """Of a version that is not stored: dropped."""
    UNAVAILABLE = "unavailable"
    """The snapshots could not be read or written; loading went on without."""
    IMPOSSIBLE = "impossible"
    """The aggregate cannot be written down, see CannotSnapshot; it is always loaded from all its events."""


@dataclass(frozen=True)
class Snapshot:
    """topic: of the aggregate. seal: a digest of all the rest and of the event of `originator_version`."""

    originator_id: str
    originator_version: int
    topic: str
    snapshot_version: int
    fingerprint: str
    state: bytes
    seal: bytes


class SnapshotStore(ABC):
    """Keeps the latest snapshot of each aggregate. It may forget any at any time."""

    @abstractmethod
    def get(self, originator_id: str) -> Snapshot | None:
        """Makes one attempt. May raise anything: whoever loads goes on without."""

    @abstractmethod
    def put(self, snapshot: Snapshot) -> None:
        """In place of the one of the same aggregate, whatever that is. As `get`."""

    @abstractmethod
    def count(self, topic: str, outcome: Outcome) -> None:
        """For a metric."""


class MemorySnapshots(SnapshotStore):
    """Beside events in memory, and as unbounded as they are."""

    def __init__(self) -> None:
        self._latest: dict[str, Snapshot] = {}
        self.counts: Counter[tuple[str, Outcome]] = Counter()

    def get(self, originator_id: str) -> Snapshot | None:
        return self._latest.get(originator_id)

    def put(self, snapshot: Snapshot) -> None:
        self._latest[snapshot.originator_id] = snapshot

    def count(self, topic: str, outcome: Outcome) -> None:
        self.counts[topic, outcome] += 1


@runtime_checkable
class KeepsSnapshots(Protocol):
    """An infrastructure factory that keeps them where it keeps the events."""

    def snapshots(self) -> SnapshotStore: ...
