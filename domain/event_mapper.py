"""Between a domain event and the bytes that are stored of it.

The stored state is the event's JSON without its identity (`originator_id`, `originator_version`),
which stands in columns of its own.
"""

from dataclasses import dataclass
from typing import Any

from eventsourcing.domain import DomainEventProtocol
from eventsourcing.persistence import JSONTranscoder, Mapper, StoredEvent
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from domain.base import Aggregate, Stored, aggregate_topics, stored_topics
from domain.errors import CounterfoilError, problems_of
from domain.state_reader import state_reader

_IDENTITY = {"originator_id", "originator_version"}


@dataclass(eq=False)
class UnknownTopic(CounterfoilError):
    """A stored event whose topic no class in this process has. It is never skipped and never guessed.

    What to do: run code that has the class, or give the renamed class its old topic back.
    """

    topic: str
    originator_id: str
    originator_version: int

    def __str__(self) -> str:
        return (
            f"No event class has the stored topic {self.topic!r} (event {self.originator_version} of "
            f"{self.originator_id}). Load the code that has it, or declare TOPIC on the renamed class."
        )


@dataclass(eq=False)
class UnreadableEvent(CounterfoilError):
    """A stored event that does not become its class: a field is missing or wrong, or it is of a newer version.

    problem: what is wrong, naming fields, never values.
    What to do: add the conversion step (`upcast_v1_v2`) that the old shape needs, or run newer code.
    """

    topic: str
    originator_id: str
    originator_version: int
    stored_version: int
    problem: str

    def __str__(self) -> str:
        return (
            f"The stored event {self.topic!r} v{self.stored_version} (event {self.originator_version} of "
            f"{self.originator_id}) cannot be read: {self.problem}. Add the upcast it needs or run newer code."
        )


class EventMapper(Mapper[str]):
    """Maps domain events to stored events and back.

    Guarantees: an event that is returned is complete and valid, never half-built; the same stored
    event always gives an equal domain event; reading imports no module that a row names.
    Raises UnknownTopic and UnreadableEvent.
    """

    def __init__(self) -> None:
        """Takes no transcoder: the event classes know their own JSON."""
        super().__init__(JSONTranscoder())
        self._classes, self._aggregates = stored_topics(), aggregate_topics()
        self._shapes: dict[type[Aggregate.Event] | None, _Shape] = {}

    def to_stored_event(self, domain_event: DomainEventProtocol[str]) -> StoredEvent:
        if not isinstance(domain_event, Aggregate.Event):
            raise TypeError(f"{type(domain_event).__qualname__} is not an Aggregate.Event")
        state = domain_event.model_dump_json(exclude=_IDENTITY).encode()
        version = type(domain_event).class_version
        if version > 1:
            state = b'{"class_version":%d,%s' % (version, state[1:])
        return StoredEvent(
            originator_id=domain_event.originator_id,
            originator_version=domain_event.originator_version,
            topic=type(domain_event).TOPIC,
            state=state,
        )

    def to_domain_event(self, stored_event: Stored) -> Aggregate.Event:
        shape = self._shapes.get(self._classes.get(stored_event.topic)) or self._shape_of(stored_event)
        event = shape.read_at_once(stored_event)
        if event is None:
            event = shape.read_step_by_step(stored_event)
        if shape.creates and event.originator_topic not in self._aggregates:  # type: ignore[attr-defined]
            # The library would import it.
            raise _unreadable(stored_event, shape.version, "originator_topic: no aggregate has this topic")
        return event

    def _shape_of(self, stored_event: Stored) -> "_Shape":
        event_class = self._classes.get(stored_event.topic)
        if event_class is None:
            raise UnknownTopic(stored_event.topic, str(stored_event.originator_id), stored_event.originator_version)
        return self._shapes.setdefault(event_class, _Shape(event_class))


class _Shape:
    """How the events of one class are read: worked out once, because it is needed for every row."""

    def __init__(self, event_class: type[Aggregate.Event]) -> None:
        self.version = event_class.class_version
        self.creates = issubclass(event_class, Aggregate.Created)
        self._class = event_class
        self._start = b"" if self.version == 1 else b'{"class_version":%d,' % self.version
        self._read = state_reader(event_class)

    def read_at_once(self, stored_event: Stored) -> Aggregate.Event | None:
        """None when the state is not plainly one of the class's own version."""
        state = stored_event.state
        if self._start:
            if not state.startswith(self._start):
                return None
            state = b"{" + state[len(self._start) :]
        try:
            return self._read(stored_event, state)
        except ValidationError:
            return None

    def read_step_by_step(self, stored_event: Stored) -> Aggregate.Event:
        """Through every upcast between its version and today's. Raises UnreadableEvent, which says what is wrong."""
        identity = {
            "originator_id": str(stored_event.originator_id),
            "originator_version": stored_event.originator_version,
        }
        fields = identity | self._converted(stored_event)
        try:
            event: Aggregate.Event = self._class.__pydantic_validator__.validate_json(to_json(fields))
        except ValidationError as error:
            raise _unreadable(stored_event, self.version, problems_of(error)) from None
        if any(getattr(event, name) != value for name, value in identity.items()):
            raise _unreadable(stored_event, self.version, "the state names another event")
        return event

    def _converted(self, stored_event: Stored) -> dict[str, Any]:
        try:
            fields = from_json(stored_event.state)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise _unreadable(stored_event, self.version, "the state is not a JSON object")
        version = fields.pop("class_version", 1)
        if type(version) is not int or version < 1:
            raise _unreadable(stored_event, self.version, "class_version is not a whole number from 1")
        if version > self.version:
            raise _unreadable(stored_event, version, f"this process knows versions up to {self.version}")
        for step in range(version, self.version):
            _upcast(self._class, step, fields, stored_event)
        return fields


def _upcast(event_class: type[Aggregate.Event], version: int, fields: dict[str, Any], stored_event: Stored) -> None:
    step = getattr(event_class, f"upcast_v{version}_v{version + 1}", None)
    if step is None:
        raise _unreadable(stored_event, version, f"there is no upcast_v{version}_v{version + 1}")
    try:
        step(fields)
    except MemoryError:  # no fault of the event
        raise
    except Exception as error:
        problem = f"upcast_v{version}_v{version + 1} failed with {type(error).__name__}"
        raise _unreadable(stored_event, version, problem) from error


def _unreadable(stored_event: Stored, version: int, problem: str) -> UnreadableEvent:
    return UnreadableEvent(
        stored_event.topic,
        str(stored_event.originator_id),
        stored_event.originator_version,
        version,
        problem,
    )
