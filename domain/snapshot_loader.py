"""Loads an aggregate from its latest snapshot and the events after it; without one, from all its events.

A snapshot is used only when the code that runs now has made it, it is whole, and it belongs to the stored
event that it says it was taken at. Else it is dropped, and replaced by what the events make.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from time import monotonic

from eventsourcing.persistence import AggregateRecorder, Mapper, StoredEvent

from domain.aggregate_state import CannotSnapshot, from_state, to_state
from domain.base import Aggregate, aggregate_topics
from domain.fingerprint import fingerprint
from domain.snapshots import Outcome, Snapshot, SnapshotStore

logger = logging.getLogger(__name__)


LEFT_ALONE_SECONDS = 10.0
"""After a failure to read or write snapshots: one load waits for a timeout then, and not each."""

_Beginning = tuple[Aggregate, Sequence[StoredEvent]]
"""The aggregate at its snapshot, and the events after it."""


class SnapshotLoader:
    """Safe for many threads, as far as the recorder and the store are."""

    def __init__(self, recorder: AggregateRecorder, mapper: Mapper[str], store: SnapshotStore) -> None:
        self._recorder, self._mapper, self._store = recorder, mapper, store
        self._warned: set[tuple[str, Outcome]] = set()
        self._left_alone_until = 0.0

    def load(self, expected: type[Aggregate], aggregate_id: str) -> Aggregate | None:
        """The aggregate, or None when it has no events. expected: its class, or one above it.

        Guarantee: it equals what all its stored events make. Costs a look for the snapshot and one read of
        the events after it. Takes a snapshot when there were `snapshot_every` or more, or one was dropped.
        Raises what reading events raises, UnknownTopic and UnreadableEvent; nothing because of a snapshot.
        """
        within_reach, snapshot = self._find(expected, aggregate_id)
        beginning = self._begin(expected, snapshot) if snapshot else None
        aggregate, events = beginning or (None, self._recorder.select_events(aggregate_id))
        for event in events:
            aggregate = self._mapper.to_domain_event(event).mutate(aggregate)  # type: ignore[attr-defined]
        if aggregate is not None and within_reach:
            every, dropped = type(aggregate).snapshot_every, snapshot is not None and beginning is None
            if every is not None and (dropped or len(events) >= every):
                self._take(expected, aggregate, events[-1])
        return aggregate

    def _find(self, expected: type[Aggregate], aggregate_id: str) -> tuple[bool, Snapshot | None]:
        """Whether the snapshots are within reach, and the one of this aggregate."""
        if monotonic() < self._left_alone_until:
            return False, None
        try:
            return True, self._store.get(aggregate_id)
        except Exception as error:  # noqa: BLE001  a cache that is out of order must not keep anybody from loading
            self._leave_alone(expected, aggregate_id, error)
            return False, None

    def _begin(self, expected: type[Aggregate], snapshot: Snapshot) -> _Beginning | None:
        beginning = self._open(snapshot)
        if isinstance(beginning, Outcome):
            self._warn(expected, beginning, snapshot.originator_id)
            return None
        self._store.count(expected.TOPIC, Outcome.USED)
        return beginning

    def _open(self, snapshot: Snapshot) -> _Beginning | Outcome:
        """Or why the snapshot is no good."""
        class_ = aggregate_topics().get(snapshot.topic)
        if class_ is None or not _is_made_by(class_, snapshot):
            return Outcome.STALE
        events = self._recorder.select_events(snapshot.originator_id, gt=snapshot.originator_version - 1)
        if not events:
            return Outcome.AHEAD
        if snapshot.seal != _seal(snapshot, events[0]):
            return Outcome.DAMAGED
        try:
            aggregate = from_state(class_, snapshot.originator_id, snapshot.originator_version, snapshot.state)
        except Exception:  # noqa: BLE001  validators of the business may raise anything
            return Outcome.UNREADABLE
        return aggregate, events[1:]

    def _take(self, expected: type[Aggregate], aggregate: Aggregate, at: StoredEvent) -> None:
        try:
            snapshot = _snapshot_of(aggregate, at)
        except CannotSnapshot as error:
            self._warn(expected, Outcome.IMPOSSIBLE, aggregate.id, error)
            return
        try:
            self._store.put(snapshot)
        except Exception as error:  # noqa: BLE001  as in _find
            self._leave_alone(expected, aggregate.id, error)
        else:
            self._store.count(expected.TOPIC, Outcome.TAKEN)

    def _leave_alone(self, expected: type[Aggregate], aggregate_id: str, error: Exception) -> None:
        self._left_alone_until = monotonic() + LEFT_ALONE_SECONDS
        self._warn(expected, Outcome.UNAVAILABLE, aggregate_id, error)

    def _warn(
        self, expected: type[Aggregate], outcome: Outcome, aggregate_id: str, error: Exception | None = None
    ) -> None:
        """Counts each and logs the first: a release makes every snapshot stale at once."""
        self._store.count(expected.TOPIC, outcome)
        if (expected.TOPIC, outcome) not in self._warned:
            self._warned.add((expected.TOPIC, outcome))
            problem = error.problem if isinstance(error, CannotSnapshot) else type(error).__name__ if error else None
            logger.warning(
                "a snapshot is not used",
                extra={
                    "aggregate": expected.TOPIC,
                    "outcome": outcome,
                    "originator_id": aggregate_id,
                    "problem": problem,
                },
            )


def _snapshot_of(aggregate: Aggregate, at: StoredEvent) -> Snapshot:
    """at: the event that brought the aggregate to its version. Raises CannotSnapshot."""
    class_ = type(aggregate)
    unsealed = Snapshot(
        aggregate.id,
        aggregate.version,
        class_.TOPIC,
        class_.snapshot_version,
        fingerprint(class_),
        to_state(aggregate),
        seal=b"",
    )
    return replace(unsealed, seal=_seal(unsealed, at))


def _is_made_by(class_: type[Aggregate], snapshot: Snapshot) -> bool:
    try:
        return (snapshot.snapshot_version, snapshot.fingerprint) == (class_.snapshot_version, fingerprint(class_))
    except CannotSnapshot:
        return False


def _seal(snapshot: Snapshot, at: StoredEvent) -> bytes:
    """Each part with its length before it, so that no two snapshots are sealed the same."""
    digest = sha256()
    for part in (*vars(replace(snapshot, seal=b"")).values(), at.originator_version, at.topic, at.state):
        content = part if isinstance(part, bytes) else str(part).encode()
        digest.update(b"%d:%b," % (len(content), content))
    return digest.digest()
