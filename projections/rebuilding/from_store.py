"""Both sides of a projection that is fed by the store. What the live tables hold is said by a position per shard."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from psycopg import Connection

from infrastructure.event_reader import RecordedEvent
from infrastructure.shards import shard_of
from projections import positions
from projections.positions import Place
from projections.rebuilding.exchange import look_in
from projections.rebuilding.fill import Filler
from projections.rebuilding.sides import Left
from projections.rebuilding.stored import StoreSource, placed
from projections.rebuilding.target import Target


class StoreSides:
    def __init__(self, target: Target, live: str, source: StoreSource) -> None:
        self._target, self._live, self._source = target, live, source
        self._places: list[Place] = []
        self._reached = 0

    def waiting(self, connection: Connection, reached: int) -> int:
        behind = min((place.position for place in positions.read(connection, self._target.name)), default=0)
        return max(0, reached - behind)

    def fenced(self, _connection: Connection) -> AbstractContextManager[None]:
        """The positions' rows are the fence, and the store is this database."""
        return nullcontext()

    def fence(self, tx: Connection) -> None:
        look_in(tx, self._live)
        self._places = positions.lock(tx, self._target.name)

    def meet(self, _tx: Connection, filler: Filler, at: Sequence[int]) -> Left:
        """Whatever is below the highest place of either side has been passed by somebody who had the proof that
        nothing is missing there; so all that is visible there is all there is."""
        places = [place.position for place in self._places] or [0]
        self._reached = max(*places, *at)
        between = [each for each in self._source.visible(min(at)) if each.event.position <= self._reached]
        filler.apply(placed([each for each in between if _is_beyond(each.event, at)]))
        complete = min(places) >= min(at) and not any(_is_beyond(each.event, places) for each in between)
        return Left(places, complete=complete)

    def hand_over(self, tx: Connection, version: int) -> None:
        shards = len(self._places) or 1
        positions.replace(tx, self._target.name, shards, version, self._reached, None)

    def live_version(self, tx: Connection) -> int:
        found = positions.read(tx, self._target.name)
        return found[0].version if found else self._target.projection.version


def _is_beyond(event: RecordedEvent, places: Sequence[int]) -> bool:
    """places: by shard."""
    return event.position > places[shard_of(event.originator_id, len(places))]
