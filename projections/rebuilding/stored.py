"""The event store as a rebuild's source: the same contracts, with the same ids, as by Kafka."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from psycopg import Connection as AnyConnection
from psycopg import sql

from domain.contracts import Contract
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.outbox import load_outbox
from infrastructure.postgres import Connection
from infrastructure.shards import shard_of
from projections.rebuilding.errors import RebuildStopped
from projections.rebuilding.source import (
    CLOSE,
    MOST_AT_ONCE,
    PAGE,
    PAGE_BYTES,
    Page,
    Partition,
    Place,
    Placed,
    Rest,
    Told,
    TooFarApart,
)
from projections.rebuilding.target import Target
from projections.stored_contracts import ContractMapper

# Whatever is visible, gaps or not: what has been applied live was visible before.
READ_VISIBLE = """
    SELECT originator_id, originator_version, topic, state, position
    FROM stored_events WHERE position > %s ORDER BY position LIMIT %s
"""

SKIPPED = "SELECT DISTINCT position FROM {live}.skipped_events WHERE projection = %s ORDER BY position"


def skipped_positions(connection: AnyConnection, live: str, projection: str) -> list[int]:
    """Of events that somebody has let a projection pass that is fed by the store, ascending."""
    statement = sql.SQL(SKIPPED).format(live=sql.Identifier(live))
    return [position for (position,) in connection.execute(statement, (projection,))]


class Visible(NamedTuple):
    """What one stored event tells the projection; often one contract, or none."""

    event: RecordedEvent
    contracts: Sequence[Contract]

    @property
    def placed(self) -> list[Placed]:
        return [Placed(self.event.position, contract) for contract in self.contracts]


class StoreSource:
    """The stored events of one store as a projection's contracts.

    Without those that somebody has skipped: the live tables lack them too, and what cannot be applied there would
    stop a rebuild for ever.
    """

    name = "the store"
    repeats = False
    partitions: Sequence[Partition] = ()

    def __init__(self, target: Target, store: Connection, left_out: Sequence[int] = ()) -> None:
        """store: in autocommit mode, for this alone. left_out: positions."""
        self._store = store
        self.left_out, self._not_told = left_out, frozenset(left_out)
        self._name = target.name
        self._reader = EventReader(store)
        outboxes = [load_outbox(name) for name in target.outboxes]
        self._mapper = ContractMapper(target.projection, outboxes, self._reader.namespace())

    def gone(self) -> list[str]:
        return []

    def page(self, positions: Mapping[int, int], place: Place) -> Page:
        start = positions[place.worker]
        mine, position, last = self._own(start, place)
        mapped, stopped = self._told(mine)
        told = [Told(place.worker, each.event.position, each.placed) for each in mapped]
        reached = stopped.position - 1 if stopped else position
        return Page(told, {place.worker: reached}, position == start, last <= CLOSE, stopped)

    def rest(self, positions: Sequence[int]) -> Rest:
        told, reached, workers = self.visible(min(positions)), max(positions), len(positions)
        due = [each for each in told if positions[shard_of(each.event.originator_id, workers)] < each.event.position]
        return Rest(
            due=placed([each for each in due if each.event.position <= reached]),
            beyond=placed([each for each in due if each.event.position > reached]),
            reached=[reached],
        )

    def stopped(self, _row: int, position: int, event_id: str | None, problem: str) -> RebuildStopped:
        return RebuildStopped(self._name, position, event_id, problem)

    def extent(self, positions: Sequence[int]) -> tuple[int, int]:
        return min(positions, default=0), self._reader.highest_position()

    def visible(self, after: int, most: int = MOST_AT_ONCE) -> list[Visible]:
        """The events after a position, whether or not all before them are there yet.

        Raises TooFarApart when there are more than `most`, RebuildStopped when one of them cannot be mapped.
        """
        rows = self._store.execute(READ_VISIBLE, (after, most + 1), binary=True).fetchall()
        if len(rows) > most:
            raise TooFarApart
        told, stopped = self._told([RecordedEvent(*row) for row in rows])
        if stopped:
            raise stopped
        return told

    def _own(self, position: int, place: Place) -> tuple[list[RecordedEvent], int, int]:
        """About a page of this worker's own events, so that sharing the work makes no more transactions of it; up to
        which position that is, and how many events of anybody the last look there found.

        It looks no more often than its share should need: where it has less, its place moves all the same.
        """
        mine: list[RecordedEvent] = []
        found = 0
        for _ in range(place.workers):
            events = self._reader.read(position, PAGE, PAGE_BYTES).events
            found = len(events)
            mine += [event for event in events if place.is_mine(event)]
            position = events[-1].position if events else position
            if found < PAGE or _fill_a_page(mine):
                break
        return mine, position, found

    def _told(self, events: Sequence[RecordedEvent]) -> tuple[list[Visible], RebuildStopped | None]:
        """All but those left out, or those before the first that cannot be mapped, and why that cannot."""
        told: list[Visible] = []
        for event in events:
            if event.position in self._not_told:
                continue
            mapped = self._mapper.map((event,))
            if mapped.unmappable:
                return told, RebuildStopped(self._name, event.position, None, mapped.unmappable.problem)
            told.append(Visible(event, mapped.contracts))
        return told, None


def _fill_a_page(events: Sequence[RecordedEvent]) -> bool:
    return len(events) >= PAGE or sum(len(event.state) for event in events) >= PAGE_BYTES


def placed(told: Sequence[Visible]) -> list[Placed]:
    return [each for one in told for each in one.placed]
