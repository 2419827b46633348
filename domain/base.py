"""What an aggregate is made of: its events, their stored topics, and the commands it takes.

A stored topic is durable data. It is a short text that we choose (`order`, `order.placed`), never an
import path, so that a class can be moved or renamed without touching what is stored.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol
from uuid import UUID

from eventsourcing.domain import BaseAggregate, CanInitAggregate, CanMutateAggregate
from eventsourcing.utils import TopicError, register_topic
from pydantic import AwareDatetime, BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from domain.errors import CounterfoilError, DomainError

__all__ = [
    "Aggregate",
    "Command",
    "CounterfoilError",
    "DomainError",
    "DomainEvent",
    "EventPart",
    "Stored",
    "aggregate_topics",
    "event_classes",
    "stored_topics",
]


class Command(BaseModel):
    """Validated input. Construction raises pydantic.ValidationError, each error naming its field.

    From JSON, fields are read in camel case (`orderId`): `PlaceOrder.model_validate_json(line)`.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        loc_by_alias=False,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


class EventPart(BaseModel):
    """A value inside an event, such as one line of an order; stored with it, so its shape is durable too."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class DomainEvent(EventPart):
    """A private fact of one aggregate, frozen and strictly typed.

    originator_id: the aggregate's id. originator_version: 1, 2, 3 ... within the aggregate.
    timestamp: when the decision was recorded, with a zone.

    To change the shape of a stored event, raise `class_version` and add a static method
    `upcast_v1_v2(state: dict) -> None` that turns the old stored state into the new one in place.
    """

    TOPIC: ClassVar[str]
    class_version: ClassVar[int] = 1

    originator_id: str
    originator_version: int
    timestamp: AwareDatetime


class Aggregate(BaseAggregate[str]):
    """Base of all aggregates: `class Order(Aggregate, topic="order")`.

    Each nested event class gets the stored topic `<aggregate topic>.<event name in snake case>`:
    `Order.Placed` is stored as `order.placed`. An event class that was renamed keeps its stored topic
    by declaring `TOPIC = "order.placed"`. Events inherited from another aggregate get topics of their
    own. Two classes with one topic are refused when the second is defined, with TopicError.

    snapshot_every: keep a snapshot about every so many events, to load faster (snapshots.py); None for
    never. snapshot_version: raise it when the same events come to make another state by a change of code
    that stands outside the class.
    """

    TOPIC: ClassVar[str]
    snapshot_every: ClassVar[int | None] = None
    snapshot_version: ClassVar[int] = 1

    class Event(DomainEvent, CanMutateAggregate[str]):
        def _as_dict(self) -> dict[str, Any]:
            return dict(self)

    class Created(Event, CanInitAggregate[str]):
        originator_topic: str

    def __init_subclass__(cls, *, topic: str, **kwargs: Any) -> None:
        cls.TOPIC = ""  # an inherited one would make the library ask for topics that are only given below
        super().__init_subclass__(**kwargs)
        _register(topic, cls, _aggregates)
        cls.TOPIC = topic
        for event_class in event_classes(cls):
            if "TOPIC" not in _declared_in_place(event_class):
                event_class.TOPIC = f"{topic}.{_short_name(event_class)}"
            _register(event_class.TOPIC, event_class, _events)


class Stored(Protocol):
    """An event as it is stored, whether it comes with its position or without."""

    @property
    def originator_id(self) -> UUID | str: ...
    @property
    def originator_version(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def state(self) -> bytes: ...


_aggregates: dict[str, type[Aggregate]] = {}
_events: dict[str, type[Aggregate.Event]] = {}


def stored_topics() -> Mapping[str, type[Aggregate.Event]]:
    """Every stored topic that this process can read, with the class it becomes. A live, read-only view."""
    return MappingProxyType(_events)


def aggregate_topics() -> Mapping[str, type[Aggregate]]:
    """Every aggregate class by its topic. A live, read-only view."""
    return MappingProxyType(_aggregates)


def event_classes(aggregate: type[Aggregate]) -> list[type[Aggregate.Event]]:
    """Its own; the library gives each aggregate its own subclass of every event, inherited ones included."""
    return [
        value
        for name, value in vars(aggregate).items()
        if isinstance(value, type) and issubclass(value, Aggregate.Event) and name not in ("Event", "Created")
    ]


def _declared_in_place(event_class: type[Aggregate.Event]) -> set[str]:
    """Names declared in the event's own class body, which the library may have wrapped in a subclass."""
    wrapped = [base for base in event_class.__bases__ if base.__qualname__ == event_class.__qualname__]
    return {name for class_ in (event_class, *wrapped) for name in vars(class_)}


def _short_name(event_class: type[Aggregate.Event]) -> str:
    """Its name in snake case; for an inherited event what the parent's stored topic ends with."""
    for base in event_class.__bases__:
        if base.__name__ == event_class.__name__ and issubclass(base, Aggregate.Event) and hasattr(base, "TOPIC"):
            return base.TOPIC.rpartition(".")[2]
    return _snake_case(event_class.__name__)


def _register(topic: str, class_: type[Any], registry: dict[str, type[Any]]) -> None:
    if topic in _aggregates or topic in _events:
        raise TopicError(f"The topic {topic!r} is taken; give {class_.__qualname__} a topic of its own")
    registry[topic] = class_
    register_topic(topic, class_)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
