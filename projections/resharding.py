"""Another number of shards for a projection that is fed by the store, without a pause longer than one transaction."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from domain.errors import CounterfoilError
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.outbox import Outbox
from infrastructure.postgres import Connection, connect
from projections import positions
from projections.applying import apply_contracts
from projections.base import Projection
from projections.positions import Place
from projections.rebuilding.stored import READ_VISIBLE
from projections.stored_contracts import ContractMapper

MOST_SHARDS = 1_000

LARGEST_DISTANCE = 100_000
"""Positions between the first and the last shard that are made up for in the one transaction."""

_PAGE = 1_000


@dataclass(eq=False)
class CannotReshard(CounterfoilError):
    """The shards are as they were. reason: why, and what to do."""

    projection: str
    reason: str

    def __str__(self) -> str:
        return f"The shards of {self.projection!r} were not changed: {self.reason}."


def reshard(dsn: str, projection: Projection, outboxes: Sequence[Outbox], shards: int) -> Place:
    """Gives the projection so many shards, all at one position; returns the first of them.

    Runners may be at work. In one transaction that holds all positions, the shards that are behind are brought up
    to the one that is furthest, then replaced; so no event is left out or applied twice. The runners wait
    for it, notice, and begin again with the new shards. Raises CannotReshard, Unmappable, psycopg's errors, and
    what a handler raises; then nothing has changed.
    """
    name = f"counterfoil project {projection.consumer_name}"
    with closing(connect(dsn, application_name=name)) as session, closing(connect(dsn, application_name=name)) as other:
        namespace = EventReader(other).namespace()
        with session.transaction():
            positions.begin(session, projection.consumer_name, projection.version)
            places = positions.lock(session, projection.consumer_name)
            furthest = max(places, key=lambda place: place.position)
            _refuse_what_cannot_be(projection, places, furthest)
            for place in places:
                mapper = ContractMapper(projection, outboxes, namespace, place.shard, place.shards)
                _bring_up(place, furthest, projection, mapper, other, session)
            positions.replace(
                session, projection.consumer_name, shards, projection.version, furthest.position, furthest.anchor
            )
    return Place(projection.consumer_name, 0, shards, projection.version, furthest.position, furthest.anchor)


def _refuse_what_cannot_be(projection: Projection, places: Sequence[Place], furthest: Place) -> None:
    version = places[0].version
    if version != projection.version:
        reason = f"its rows are of version {version}, this code is of version {projection.version}: rebuild it first"
        raise CannotReshard(projection.consumer_name, reason)
    distance = furthest.position - min(place.position for place in places)
    if distance > LARGEST_DISTANCE:
        reason = f"they are {distance} positions apart; let all of them catch up first"
        raise CannotReshard(projection.consumer_name, reason)


def _bring_up(
    place: Place, to: Place, projection: Projection, mapper: ContractMapper, store: Connection, tx: Connection
) -> None:
    """Applies what the shard lacks of what another one has passed. That one had the proof that nothing is missing
    there, so what is visible now is all there is. store: each of its statements has a new snapshot."""
    position = place.position
    while events := _visible(store, position, to.position):
        mapped = mapper.map(events)
        if mapped.unmappable is not None:
            raise mapped.unmappable
        if refused := apply_contracts(mapped.contracts, projection, tx, may_send_ahead=False):  # in no smaller parts
            event_id, answer = next(iter(refused.items()))
            raise CannotReshard(projection.consumer_name, f"event {event_id} is refused: {answer.reason}")
        position = events[-1].position


def _visible(store: Connection, after: int, up_to: int) -> list[RecordedEvent]:
    """A page, or nothing."""
    rows = store.execute(READ_VISIBLE, (after, _PAGE), binary=True)
    return [event for event in (RecordedEvent(*row) for row in rows) if event.position <= up_to]
