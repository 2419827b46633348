"""A second domain, for the relay's tests: parcels that move. Many events of one key go to one topic."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import StringConstraints

from domain.base import Aggregate, DomainEvent
from domain.contracts import Contract
from domain.event_mapper import EventMapper
from infrastructure.outbox import Outbox
from infrastructure.postgres import Connection, connect

INSERT = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    VALUES (%s, %s, %s, %s) RETURNING position
"""


class Parcel(Aggregate, topic="parcel"):
    class Moved(Aggregate.Event):
        note: str

    class Weighed(Aggregate.Event):
        """Nobody else's business: it becomes no message."""

        grams: int


class ParcelMoved(Contract):
    """A note with an exclamation mark is not allowed in public, so an event that has one cannot be mapped."""

    event_type: Literal["ParcelMoved"]
    schema_version: Literal[1]
    parcel_id: str
    step: int
    note: Annotated[str, StringConstraints(pattern=r"^[^!]*$")]

    @property
    def key(self) -> str:
        return self.parcel_id


def parcel_outbox(topic_name: str, name: str = "parcels") -> Outbox:
    """Publishes to a topic of the test's own."""

    class Moved(ParcelMoved):
        topic = topic_name

    def to_contracts(event: DomainEvent, event_id: Callable[[type[Contract]], str]) -> Sequence[Contract]:
        if not isinstance(event, Parcel.Moved):
            return ()
        moved = Moved(
            event_id=event_id(Moved),
            event_type="ParcelMoved",
            schema_version=1,
            occurred_at=event.timestamp,
            parcel_id=event.originator_id,
            step=event.originator_version,
            note=event.note,
        )
        return (moved,)

    return Outbox(name, (Moved,), to_contracts)


def mended_outbox(topic_name: str, name: str = "parcels") -> Outbox:
    """Newer code, which allows exclamation marks."""
    outbox = parcel_outbox(topic_name, name)
    outbox.contracts[0].model_fields["note"].metadata.clear()
    outbox.contracts[0].model_rebuild(force=True)
    return outbox


class Parcels:
    """Stores events of parcels, each in a transaction of its own, without a hint to anyone."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.versions: Counter[str] = Counter()
        self._mapper = EventMapper()

    def move(self, parcel: str, note: str = "") -> int:
        """The position of the event."""
        version, now = self._next(parcel), datetime.now(UTC)
        return self._store(Parcel.Moved(originator_id=parcel, originator_version=version, timestamp=now, note=note))

    def move_all(self, parcels: Sequence[str], times: int) -> None:
        """Round and round: each parcel moves once before any moves again."""
        for _ in range(times):
            for parcel in parcels:
                self.move(parcel)

    def weigh(self, parcel: str) -> int:
        version, now = self._next(parcel), datetime.now(UTC)
        return self._store(Parcel.Weighed(originator_id=parcel, originator_version=version, timestamp=now, grams=1))

    def write(self, parcel: str, topic: str, state: bytes) -> int:
        """Anything at all under this stored topic."""
        return self._insert((parcel, self._next(parcel), topic, state))

    def _next(self, parcel: str) -> int:
        self.versions[parcel] += 1
        return self.versions[parcel]

    def _store(self, event: Parcel.Event) -> int:
        stored = self._mapper.to_stored_event(event)
        return self._insert((stored.originator_id, stored.originator_version, stored.topic, stored.state))

    def _insert(self, values: tuple[object, ...]) -> int:
        row = self.connection.execute(INSERT, values).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def parcels_in(dsn: str) -> Iterator[Parcels]:
    with connect(dsn, application_name="test parcels") as connection:
        yield Parcels(connection)
