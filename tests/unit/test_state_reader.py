"""Reading a state without its identity gives what reading the whole event would give, for whatever bytes."""

import json
from datetime import UTC, datetime
from typing import Any, Self

import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import CoreConfig, CoreSchema, SchemaValidator, to_json

from domain.base import Aggregate, EventPart, event_classes
from domain.event_mapper import EventMapper, UnreadableEvent, _Shape
from domain.orders.order import Order
from domain.state_reader import _validator_without_identity

NOW = datetime(2026, 9, 29, 10, 30, tzinfo=UTC)


class Stop(EventPart):
    place: str
    minute: int = Field(ge=0, lt=1440)


class Tour(Aggregate, topic="tour_to_read"):
    class Planned(Aggregate.Created):
        stops: tuple[Stop, ...]
        first: Stop
        note: str | None = None

    class Driven(Aggregate.Event):
        class_version = 2
        kilometres: float

        @staticmethod
        def upcast_v1_v2(state: dict[str, Any]) -> None:
            state["kilometres"] = state.pop("metres") / 1000

    class Checked(Aggregate.Event):
        by: str

        @model_validator(mode="after")
        def by_another(self) -> Self:
            if self.by == self.originator_id:
                raise ValueError("nobody checks himself")
            return self

    class Rated(Aggregate.Event):
        stars: int

        @field_validator("stars")
        @classmethod
        def at_most_its_version(cls, stars: int, info: ValidationInfo) -> int:
            if stars > info.data.get("originator_version", 0):
                raise ValueError("too many stars")
            return stars

    class Billed(Aggregate.Event):
        number: str = Field(default_factory=lambda given: f"{given['originator_id']}/{given['originator_version']}")

    class Numbered(Aggregate.Event):
        originator_version: int = Field(le=3)

    class Stripped(Aggregate.Event):
        model_config = ConfigDict(str_strip_whitespace=True)
        by: str

    class Bounded(Aggregate.Event):
        model_config = ConfigDict(str_max_length=10)
        by: str

    class Remembered(Aggregate.Event):
        _seen: str = PrivateAttr(default="")

        def model_post_init(self, _context: Any) -> None:
            self._seen = self.originator_id

    stops: tuple[Stop, ...]
    first: Stop
    note: str | None


STATES: dict[type[Aggregate.Event], dict[str, Any]] = {
    Tour.Planned: {
        "originator_topic": "tour_to_read",
        "stops": [{"place": "a", "minute": 1}],
        "first": {"place": "b", "minute": 2},
        "note": None,
    },
    Tour.Driven: {"kilometres": 1.5},
    Tour.Checked: {"by": "eve"},
    Tour.Rated: {"stars": 2},
    Tour.Billed: {},
    Tour.Numbered: {},
    Tour.Stripped: {"by": "eve"},
    Tour.Bounded: {"by": "eve"},
    Tour.Remembered: {},
}
IDENTITY_AT_ONCE = set(STATES) - {Tour.Planned, Tour.Driven}
"""Some rule of theirs looks at the identity."""


def good(event_class: type[Aggregate.Event]) -> dict[str, Any]:
    version = {"class_version": event_class.class_version} if event_class.class_version > 1 else {}
    return version | {"timestamp": "2026-09-29T10:30:00.5+02:00"} | STATES[event_class]


def stored(event_class: type[Aggregate.Event], state: bytes, version: int = 2) -> StoredEvent:
    return StoredEvent("t-1", version, event_class.TOPIC, state)


def whole(event_class: type[Aggregate.Event], row: StoredEvent) -> Aggregate.Event:
    """By the class itself, everything in one JSON object."""
    fields = json.loads(row.state)
    fields.pop("class_version", None)
    identity = {"originator_id": row.originator_id, "originator_version": row.originator_version}
    return event_class.model_validate_json(to_json(identity | fields))


def everything(event: Aggregate.Event) -> tuple[object, ...]:
    return (
        type(event),
        list(event.__dict__.items()),
        event.model_fields_set,
        event.__pydantic_extra__,
        event.__pydantic_private__,
        event.model_dump_json(),
    )


@pytest.mark.parametrize("event_class", STATES)
def test_an_event_is_the_very_same_as_one_that_was_validated_as_a_whole(event_class: type[Aggregate.Event]) -> None:
    row = stored(event_class, to_json(good(event_class)))
    event = _Shape(event_class).read_at_once(row)
    assert event is not None
    assert everything(event) == everything(whole(event_class, row))
    with pytest.raises(ValidationError):
        event.originator_id = "t-2"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("event_class", "identity"), [(Tour.Stripped, " t-1"), (Tour.Bounded, "an identity that is long")]
)
def test_a_rule_for_all_text_of_a_class_is_kept_for_the_identity_too(
    event_class: type[Aggregate.Event], identity: str
) -> None:
    row = StoredEvent(identity, 2, event_class.TOPIC, to_json(good(event_class)))
    assert _Shape(event_class).read_at_once(row) is None
    with pytest.raises(UnreadableEvent):
        EventMapper().to_domain_event(row)


def test_a_rule_that_looks_at_the_identity_sees_it() -> None:
    mapper = EventMapper()
    with pytest.raises(UnreadableEvent, match="nobody checks himself"):
        mapper.to_domain_event(stored(Tour.Checked, to_json({"timestamp": NOW, "by": "t-1"})))
    with pytest.raises(UnreadableEvent, match="too many stars"):
        mapper.to_domain_event(stored(Tour.Rated, to_json({"timestamp": NOW, "stars": 3})))
    with pytest.raises(UnreadableEvent, match="originator_version"):
        mapper.to_domain_event(stored(Tour.Numbered, to_json({"timestamp": NOW}), version=4))
    billed = mapper.to_domain_event(stored(Tour.Billed, to_json({"timestamp": NOW})))
    assert billed.model_dump()["number"] == "t-1/2"


@pytest.mark.parametrize("event_class", [Tour.Planned, Tour.Checked])
def test_a_state_of_another_event_and_one_that_is_no_object_are_refused(event_class: type[Aggregate.Event]) -> None:
    state = to_json(good(event_class))
    with pytest.raises(UnreadableEvent, match="names another event"):
        EventMapper().to_domain_event(stored(event_class, state[:-1] + b',"originator_id":"t-2"}'))
    with pytest.raises(UnreadableEvent, match="not a JSON object"):
        EventMapper().to_domain_event(stored(event_class, b"x" + state[1:]))


def test_only_where_no_rule_looks_at_the_identity_it_is_left_out() -> None:
    assert {each for each in STATES if _validator_without_identity(each) is None} == IDENTITY_AT_ONCE


@pytest.mark.parametrize("event_class", event_classes(Order))
def test_an_order_is_read_without_parsing_an_identity(event_class: type[Aggregate.Event]) -> None:
    """That pydantic still lets a schema be changed is seen here alone: without it, reading is right, and slower."""
    validator = _validator_without_identity(event_class)
    assert validator is not None
    with pytest.raises(ValidationError) as refused:
        validator.validate_json(b"{}")
    missing = {each["loc"][0] for each in refused.value.errors() if each["type"] == "missing"}
    assert missing == set(event_class.model_fields) - {"originator_id", "originator_version"}


def refuses(schema: CoreSchema, config: CoreConfig | None = None) -> SchemaValidator:
    """As of a pydantic that has dropped the argument: a TypeError."""
    return SchemaValidator(schema, config)


def takes_no_notice(schema: CoreSchema, config: CoreConfig | None = None, **_private: object) -> SchemaValidator:
    return SchemaValidator(schema, config)


@pytest.mark.parametrize("other_pydantic", [refuses, takes_no_notice])
@pytest.mark.parametrize("event_class", STATES)
def test_where_pydantic_lets_no_schema_be_changed_an_event_is_read_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, event_class: type[Aggregate.Event], other_pydantic: object
) -> None:
    monkeypatch.setattr("domain.state_reader.SchemaValidator", other_pydantic)
    assert _validator_without_identity(event_class) is None
    row = stored(event_class, to_json(good(event_class)))
    event = _Shape(event_class).read_at_once(row)
    assert event is not None
    assert everything(event) == everything(whole(event_class, row))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.just(1.5),
    st.just("eve"),
    st.just("2026-09-29T10:30:00Z"),
    st.just([{"place": "a", "minute": 1}]),
    st.just({"place": "b", "minute": 1440}),
)
NAMES = (
    *("timestamp", "originator_id", "originator_version", "originator_topic", "class_version", "extra"),
    *("stops", "first", "note", "kilometres", "metres", "by", "stars", "number"),
)


@st.composite
def rows(draw: st.DrawFn) -> tuple[type[Aggregate.Event], StoredEvent]:
    """A good state with some of it left out, changed or added; now and then shuffled, cut off, or with a name twice."""
    event_class = draw(st.sampled_from(list(STATES)))
    fields = good(event_class) | draw(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2))
    left_out = draw(st.sets(st.sampled_from(list(fields)), max_size=1))
    pairs = [f"{json.dumps(name)}:{json.dumps(fields[name])}" for name in fields if name not in left_out]
    if draw(st.booleans()):
        pairs = [*draw(st.permutations(pairs)), *pairs[-1:]]
    text = draw(st.sampled_from(["{", "{", " {", "["])) + ",".join(pairs) + "}"
    cut = draw(st.none() | st.integers(0, len(text)))
    return event_class, stored(event_class, text[:cut].encode())


@given(rows())
def test_what_is_read_at_once_is_never_other_than_what_is_read_step_by_step(
    given: tuple[type[Aggregate.Event], StoredEvent],
) -> None:
    event_class, row = given
    shape = _Shape(event_class)
    at_once = shape.read_at_once(row)
    try:
        step_by_step = shape.read_step_by_step(row)
    except UnreadableEvent:
        assert at_once is None
    else:
        assert at_once is None or everything(at_once) == everything(step_by_step)
