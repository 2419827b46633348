"""Which events of a page a relay may publish, and which it parks: those that cannot leave, and those behind them."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from infrastructure import metrics
from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import RecordedEvent
from infrastructure.lease import Shard
from infrastructure.outgoing import MessageMapper, Unmappable
from infrastructure.outgoing_quarantine import Category, Kind, Parked, discarded_after, parked_aggregates
from infrastructure.postgres import Connection
from infrastructure.producer import LARGEST_MESSAGE
from infrastructure.publisher import OutgoingMessage

Examined = tuple[list[OutgoingMessage], tuple[Category, str] | None]

_BEHIND = "an earlier event of its aggregate is parked"


class Parking:
    """What a relay, or one shard of it, knows of its quarantine; in memory, one position for each parked aggregate.

    Guarantees: of an aggregate with a parked event no later event becomes messages, and an event that an
    operator has discarded never does.
    """

    def __init__(self, shard: Shard, mapper: MessageMapper, largest: int = LARGEST_MESSAGE) -> None:
        """largest: bytes of one message, at most. Call `load` before anything else."""
        self._shard, self._mapper, self._largest = shard, mapper, largest
        self._first: dict[str, int] = {}
        self._discarded: Set[tuple[int, bytes]] = frozenset()
        self._refused: dict[int, str] = {}

    def load(self, connection: Connection, after: int, turn: Callable[[], None] = lambda: None) -> None:
        """As it is stored. after: the position from which the relay goes on. turn: called now and then."""
        self._first = parked_aggregates(connection, self._shard, turn)
        self._discarded = discarded_after(connection, self._shard.relay, after)
        self._refused.clear()
        self._show()

    def refuse(self, position: int, error: str) -> None:
        """Kafka has refused a message of this event for what it is: it is parked when it comes again."""
        self._refused[position] = error

    def route(self, event: RecordedEvent) -> tuple[list[OutgoingMessage], Parked | None]:
        """Its messages, or that it is parked; neither for an event that concerns nobody.

        Call it with one event after the other, in order of position. To begin again further back does no harm.
        """
        return next(self.route_all([event]))

    def route_all(self, events: Sequence[RecordedEvent]) -> Iterator[tuple[list[OutgoingMessage], Parked | None]]:
        """What `route` says of one after the other; give it some hundred at most. They are mapped together, which
        takes less time, but an event that is not asked for yet has no influence."""
        for event, mapped in zip(events, self._mapper.messages_of_all(events), strict=True):
            if self._discarded and (event.position, fingerprint(event)) in self._discarded:
                yield [], None
                continue
            messages, problem = self._checked(event, mapped)
            first = self._first.get(event.originator_id)
            if problem:
                self._first[event.originator_id] = min(event.position, first or event.position)
                yield [], Parked(event, Kind.CULPRIT, *problem)
            elif first is None or event.position < first or not messages:
                yield messages, None
            else:
                yield [], Parked(event, Kind.FOLLOWER, Category.BEHIND, _BEHIND)

    def examine(self, event: RecordedEvent) -> Examined:
        """Its messages, maybe none, or why it cannot be published."""
        (mapped,) = self._mapper.messages_of_all([event])
        return self._checked(event, mapped)

    def _checked(self, event: RecordedEvent, mapped: list[OutgoingMessage] | Unmappable) -> Examined:
        if error := self._refused.get(event.position):
            return [], (Category.REFUSED, f"Kafka refuses it: {error}")
        if isinstance(mapped, Unmappable):
            return [], (Category.UNMAPPABLE, mapped.problem)
        for message in mapped:
            if not message.key:
                return [], (Category.NO_KEY, f"key: there is none, for {message.topic}")
            if len(message.value) > self._largest:
                return [], (Category.REFUSED, f"its message for {message.topic} has more than {self._largest} bytes")
        return mapped, None

    def parked(self, parked: Sequence[Parked], new: Sequence[Parked]) -> None:
        """These are written down now, or were before. new: those that were not."""
        for each in parked:
            self._refused.pop(each.event.position, None)
        for each in new:
            metrics.RELAY_QUARANTINED.labels(self._shard.relay, each.category.value).inc()
        self._show()

    def left(self, originator_ids: Sequence[str], first: Mapping[str, int], discarded: Set[tuple[int, bytes]]) -> None:
        """After an attempt at these: those that still have parked events, with the position of the first.

        discarded: all that were, after the position of the relay, as it is now: it may meet them yet.
        """
        self._discarded = discarded
        for originator_id in originator_ids:
            self._first.pop(originator_id, None)
        self._first.update(first)
        self._show()

    def _show(self) -> None:
        metrics.RELAY_PARKED.labels(self._shard.relay, str(self._shard.number)).set(len(self._first))
