"""One turn of a projection that is fed by the store: read, map, and apply together with the position.

What waits, retries and reconnects is in store_runner.py.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from time import monotonic

from domain.errors import CounterfoilError
from infrastructure import metrics
from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import EventReader, Page
from infrastructure.logs import error_fields
from infrastructure.outbox import Outbox
from infrastructure.postgres import Connection, cause_of
from infrastructure.supervisor import beat
from projections import positions
from projections.applying import apply_contracts
from projections.base import Projection, Quarantine
from projections.faults import HandlerWaits, StopAsked, is_no_event_at_fault
from projections.positions import Place, PlaceLost
from projections.stored_contracts import ContractMapper, Mapped

logger = logging.getLogger(__name__)

SET_BACK = "the store was set back: the event that was applied last is not there any more; rebuild the projection"
GONE = "its row in projection_positions is gone; rebuild the projection"


@dataclass(eq=False)
class ShardsChanged(CounterfoilError):
    """The projection has another number of shards by now. What to do: begin again, with those."""

    projection: str

    def __str__(self) -> str:
        return f"{self.projection!r} has another number of shards by now; begin again with those."


class Outcome(StrEnum):
    MOVED = "moved"
    """The position moved, or will be tried with fewer events; there may be more."""
    IDLE = "idle"
    """Nothing can be applied now."""
    HELD = "held"
    """What comes next cannot be passed as things are: it needs other code, a rebuild, an operator, or what its handler
    waits for."""
    STOPPED = "stopped"


@dataclass(frozen=True)
class Step:
    """position: up to which all is applied. applied: contracts in this step. reason: why it is held; no payload."""

    outcome: Outcome
    position: int
    applied: int = 0
    reason: str | None = None


class StoreFeed:
    """Applies what is stored after the position of one shard, in order.

    Guarantees: each event is applied once, because its effect and the position are one transaction, and only
    one of those who try to move a position succeeds. An event that cannot be passed is never skipped, for a read
    model that lacks one is wrong for ever: all before it is applied, then it waits, visibly. So does one that the
    handler refuses, since nobody else could make up for it, or cannot apply yet. No transaction is open while it
    waits or reads.
    """

    def __init__(
        self,
        projection: Projection,
        outboxes: Sequence[Outbox],
        shard: int = 0,
        batch_size: int = 500,
        max_bytes: int = 16_000_000,
        beat_every: float = 3.0,
    ) -> None:
        """max_bytes: a batch ends when it is so large; one event may go beyond. beat_every: seconds between two signs
        of life in the row while nothing moves it.

        Call `connect` before the first step.
        """
        self._projection, self._outboxes, self._shard = projection, outboxes, shard
        self._size, self._largest, self._max_bytes = batch_size, batch_size, max_bytes
        self._place: Place | None = None
        self._shards: int | None = None
        self._held: tuple[int, str] | None = None
        self._beat_every, self._beat_at = beat_every, 0.0
        self.loop = f"{projection.consumer_name}-{shard}"

    @property
    def position(self) -> int:
        return self._place.position if self._place else 0

    def connect(self, connection: Connection) -> None:
        """Goes on with this connection, in autocommit mode, from the position that is stored.

        Raises ShardsChanged, NotAPrimary and psycopg's errors.
        """
        self._connection = connection
        self._reader = EventReader(connection)
        self._reload()
        self._mapper = ContractMapper(
            self._projection, self._outboxes, self._reader.namespace(), self._shard, self._shards or 1
        )

    def step(self, stop: Event) -> Step:
        """Raises ShardsChanged, and errors that no event is at fault for, after which to connect again."""
        self.keep_alive()
        place = self._place
        if place is None:
            return self._hold_until_reloaded(GONE)
        if place.version != self._projection.version:
            return self._hold_until_reloaded(
                f"its rows are of version {place.version}, this code is of version {self._projection.version}: "
                "rebuild the projection, or run the other code"
            )
        page = self._reader.read(place.position, self._size, self._max_bytes)
        if self._was_set_back(place, page):
            return self._hold_until_reloaded(SET_BACK)
        if not page.events:
            return Step(Outcome.IDLE, place.position)
        mapped = self._mapper.map(page.events)
        if mapped.events:
            return self._apply(place, mapped, stop)
        assert mapped.unmappable is not None
        return self._hold(place, mapped.unmappable.position, None, mapped.unmappable.problem)

    def keep_alive(self) -> None:
        """To be called often, whatever it is waiting for. Raises ShardsChanged when the row was replaced."""
        beat(self.loop)
        if monotonic() - self._beat_at > self._beat_every:
            self._beat_at = monotonic()
            # Without a row too: a session that asks nothing is ended.
            if self._place is None or not positions.beat(self._connection, self._place):
                self._reload()

    def lag(self) -> tuple[int, float]:
        """How many positions are stored above this one, and for how many seconds the first of them has waited."""
        return positions.lag(self._connection, self.position)

    def _apply(self, place: Place, mapped: Mapped, stop: Event) -> Step:
        """All of it, or nothing. After a failure with fewer events, until the one at fault stands alone."""
        last = mapped.events[-1]

        def end_if_asked() -> None:
            if stop.is_set():
                raise StopAsked

        try:
            with self._connection.transaction():
                moved = positions.move(self._connection, place, last.position, fingerprint(last))
                refused = apply_contracts(
                    mapped.contracts,
                    self._projection,
                    self._connection,
                    end_if_asked,
                    may_send_ahead=len(mapped.events) > 1,  # what is blamed on an event it does without
                )
                if refused:
                    raise _Refused(*next(iter(refused.items())))
        except PlaceLost:
            self._reload()
            return Step(Outcome.MOVED, self.position)
        except StopAsked:
            return Step(Outcome.STOPPED, place.position)
        except Exception as error:
            alone = len(mapped.events) == 1
            self._size = max(1, len(mapped.events) // 2)
            if is_no_event_at_fault(error) and not isinstance(error, HandlerWaits):
                raise
            return self._blame(place, mapped, error) if alone else Step(Outcome.MOVED, place.position)
        self._place, self._held, self._beat_at = moved, None, monotonic()
        self._size = min(self._largest, self._size * 2)
        metrics.FEED_APPLIED.labels(self._projection.consumer_name).inc(len(mapped.contracts))
        return Step(Outcome.MOVED, moved.position, len(mapped.contracts))

    def _blame(self, place: Place, mapped: Mapped, error: Exception) -> Step:
        """Of the one event that is left."""
        event_id = mapped.contracts[0].event_id if mapped.contracts else None
        if isinstance(error, _Refused):
            event_id, reason = error.event_id, error.answer.reason
        elif isinstance(error, HandlerWaits):
            reason = f"its handler waits: {error.reason}"
        else:
            reason = f"its handler failed with {cause_of(error)}"
            logger.warning("handling failed", extra=self._about(event_id) | error_fields(error))
        return self._hold(place, mapped.events[0].position, event_id, reason)

    def _hold(self, place: Place, position: int, event_id: str | None, reason: str) -> Step:
        if not positions.hold(self._connection, place, position, event_id, reason):  # an operator has moved it
            self._reload()
            return Step(Outcome.MOVED, self.position)
        self._say_held(position, event_id, reason)
        return Step(Outcome.HELD, place.position, reason=reason)

    def _hold_until_reloaded(self, reason: str) -> Step:
        """It stays an alarm until a rebuild or an operator has put the row right."""
        self._say_held(self.position, None, reason)
        self._reload()
        return Step(Outcome.HELD, self.position, reason=reason)

    def _say_held(self, position: int, event_id: str | None, reason: str) -> None:
        if self._held != (position, reason):
            self._held = (position, reason)
            fields = self._about(event_id) | {"position": position, "reason": reason}
            logger.error("the projection cannot pass an event", extra=fields)

    def _was_set_back(self, place: Place, page: Page) -> bool:
        """Whether the store would use positions again that are applied already, and so its new events be skipped."""
        if place.anchor is None:
            return not page.events and page.settled and place.position > self._reader.highest_position()
        return page.anchor is None or fingerprint(page.anchor) != place.anchor

    def _reload(self) -> None:
        """The row as it is stored."""
        places = positions.read(self._connection, self._projection.consumer_name)
        if places and self._shards is None:
            self._shards = places[0].shards
        if places and places[0].shards != self._shards:
            raise ShardsChanged(self._projection.consumer_name)
        self._place = next((place for place in places if place.shard == self._shard), None)

    def _about(self, event_id: str | None) -> dict[str, object]:
        return {"projection": self._projection.consumer_name, "shard": self._shard, "event_id": event_id}


class _Refused(Exception):
    """The handler's answer, on its way out of the transaction."""

    def __init__(self, event_id: str, answer: Quarantine) -> None:
        super().__init__(event_id)
        self.event_id, self.answer = event_id, answer
