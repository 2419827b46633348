"""Stored events come back complete or with a clear error: never half-built, never guessed, never imported."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from eventsourcing.persistence import StoredEvent
from eventsourcing.utils import TopicError

from domain.base import Aggregate, stored_topics
from domain.event_mapper import EventMapper, UnknownTopic, UnreadableEvent

NOW = datetime(2026, 9, 29, 10, 30, tzinfo=UTC)


class Parcel(Aggregate, topic="test_parcel"):
    class Sent(Aggregate.Created):
        weight_grams: int
        stops: tuple[str, ...]
        class_version = 2

        @staticmethod
        def upcast_v1_v2(state: dict[str, object]) -> None:
            state["weight_grams"] = state.pop("weight_kg") * 1000  # type: ignore[operator]

    class ArrivedAtHub(Aggregate.Event):
        TOPIC = "test_parcel.reached_hub"

    weight_grams: int
    stops: tuple[str, ...]


class ExpressParcel(Parcel, topic="test_express_parcel"):
    pass


def sent() -> Aggregate.Event:
    return Parcel.Sent(
        originator_id="p1",
        originator_version=1,
        timestamp=NOW,
        originator_topic="test_parcel",
        weight_grams=1500,
        stops=("a", "b"),
    )


def stored(**changes: object) -> StoredEvent:
    return replace(EventMapper().to_stored_event(sent()), **changes)  # type: ignore[arg-type]


def test_an_event_comes_back_equal_tuples_included() -> None:
    assert EventMapper().to_domain_event(stored()) == sent()


def test_a_topic_is_a_short_text_kept_through_a_rename_and_given_to_inherited_events_too() -> None:
    topics = {topic for topic in stored_topics() if topic.startswith("test_")}
    assert topics == {
        "test_parcel.sent",
        "test_parcel.reached_hub",
        "test_express_parcel.sent",
        "test_express_parcel.reached_hub",
    }


def test_two_classes_with_one_topic_are_refused() -> None:
    with pytest.raises(TopicError):

        class Parcel2(Aggregate, topic="test_parcel"):
            pass


def test_an_unknown_topic_is_named_and_nothing_is_imported() -> None:
    with pytest.raises(UnknownTopic) as unknown:
        EventMapper().to_domain_event(stored(topic="antigravity:Order.Placed"))
    assert (unknown.value.topic, unknown.value.originator_id) == ("antigravity:Order.Placed", "p1")


def test_an_aggregate_topic_in_a_row_is_never_imported() -> None:
    state = stored().state.replace(b'"test_parcel"', b'"antigravity:fly"')
    with pytest.raises(UnreadableEvent) as unreadable:
        EventMapper().to_domain_event(stored(state=state))
    assert "originator_topic" in unreadable.value.problem


def test_an_old_version_goes_through_its_upcast() -> None:
    old = b'{"timestamp":"2026-09-29T10:30:00Z","originator_topic":"test_parcel","weight_kg":2,"stops":["a"]}'
    event = EventMapper().to_domain_event(stored(state=old))
    assert isinstance(event, Parcel.Sent)
    assert event.weight_grams == 2000


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (b'{"class_version":3,"timestamp":"2026-09-29T10:30:00Z"}', "versions up to 2"),
        (b'{"class_version":2,"timestamp":"2026-09-29T10:30:00Z","stops":["a"]}', "weight_grams: Field required"),
        (b'{"timestamp":"2026-09-29T10:30:00Z","stops":["a"]}', "upcast_v1_v2 failed with KeyError"),
        (b'{"class_version":2,"weight_grams":"1500"}', "weight_grams"),
        (b'{"class_version":2,"extra":1}', "extra"),
        (b'{"class_version":"2"}', "class_version is not a whole number"),
        (b"[1]", "not a JSON object"),
        (b"", "not a JSON object"),
        (b"\xff\xfe", "not a JSON object"),
    ],
)
def test_an_unreadable_state_is_a_clear_error_and_never_half_an_event(state: bytes, problem: str) -> None:
    with pytest.raises(UnreadableEvent) as unreadable:
        EventMapper().to_domain_event(stored(state=state))
    assert problem in unreadable.value.problem
    assert (unreadable.value.topic, unreadable.value.originator_version) == ("test_parcel.sent", 1)


def test_a_state_that_names_another_event_is_refused() -> None:
    state = stored().state[:-1] + b',"originator_id":"p2"}'
    with pytest.raises(UnreadableEvent, match="another event"):
        EventMapper().to_domain_event(stored(state=state))
