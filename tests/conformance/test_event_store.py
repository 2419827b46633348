"""What every event store behind the library's port must do: the one in memory and the one in PostgreSQL alike."""

from collections.abc import Iterator

import pytest
from eventsourcing.persistence import ApplicationRecorder, IntegrityError, StoredEvent

from domain.application import Application
from infrastructure.event_store import store_env
from tests.support.stored_events import event


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[ApplicationRecorder]:
    env = store_env(request.getfixturevalue("store_dsn")) if request.param == "postgres" else None
    with Application(env=env) as application:
        yield application.recorder


def versions(events: list[StoredEvent]) -> list[int]:
    return [event.originator_version for event in events]


def test_what_was_appended_is_loaded_unchanged(store: ApplicationRecorder) -> None:
    state = bytes(range(256)) * 40
    store.insert_events([event("a", 1, "thing.begun", b"{}"), event("a", 2, "thing.done", state)])
    assert store.select_events("a") == [event("a", 1, "thing.begun", b"{}"), event("a", 2, "thing.done", state)]


def test_an_unknown_aggregate_has_no_events(store: ApplicationRecorder) -> None:
    assert list(store.select_events("nobody")) == []


def test_appending_nothing_changes_nothing(store: ApplicationRecorder) -> None:
    assert not store.insert_events([])
    assert store.max_notification_id() is None


def test_a_version_that_is_taken_is_refused(store: ApplicationRecorder) -> None:
    store.insert_events([event("a", 1, state=b'{"by":"me"}')])
    with pytest.raises(IntegrityError):
        store.insert_events([event("a", 1, state=b'{"by":"you"}')])
    assert store.select_events("a") == [event("a", 1, state=b'{"by":"me"}')]


def test_an_append_of_what_is_stored_already_is_a_conflict_too(store: ApplicationRecorder) -> None:
    store.insert_events([event("a")])
    with pytest.raises(IntegrityError):
        store.insert_events([event("a")])


def test_events_are_stored_together_or_not_at_all(store: ApplicationRecorder) -> None:
    store.insert_events([event("b", 2)])
    with pytest.raises(IntegrityError):
        store.insert_events([event("a", 1), event("b", 2), event("c", 1)])
    assert store.select_events("a") == []
    assert store.select_events("c") == []


def test_the_same_version_twice_in_one_append_is_refused(store: ApplicationRecorder) -> None:
    with pytest.raises(IntegrityError):
        store.insert_events([event("a", 1), event("a", 1, state=b'{"other":1}')])
    assert store.select_events("a") == []


def test_aggregates_do_not_mix(store: ApplicationRecorder) -> None:
    store.insert_events([event("a", 1), event("A", 1), event("a ", 1), event("ä", 1)])
    for originator_id in ("a", "A", "a ", "ä"):
        assert [stored.originator_id for stored in store.select_events(originator_id)] == [originator_id]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"gt": 2}, [3, 4, 5]),
        ({"lte": 2}, [1, 2]),
        ({"gt": 1, "lte": 4}, [2, 3, 4]),
        ({"limit": 2}, [1, 2]),
        ({"desc": True}, [5, 4, 3, 2, 1]),
        ({"desc": True, "limit": 1}, [5]),
        ({"desc": True, "lte": 3, "limit": 2}, [3, 2]),
        ({"gt": 5}, []),
        ({"gt": 0, "lte": 0}, []),
    ],
)
def test_versions_are_loaded_in_order_within_bounds(
    store: ApplicationRecorder, bounds: dict[str, int], expected: list[int]
) -> None:
    store.insert_events([event("a", version) for version in (1, 2)])
    store.insert_events([event("b", 1)])
    store.insert_events([event("a", version) for version in (3, 4, 5)])
    assert versions(store.select_events("a", **bounds)) == expected


def test_positions_ascend_in_the_order_given(store: ApplicationRecorder) -> None:
    store.insert_events([event(name) for name in "cab"])
    store.insert_events([event("a", 2)])
    notifications = store.select_notifications(start=None, limit=10)
    assert [each.originator_id for each in notifications] == ["c", "a", "b", "a"]
    positions = [each.id for each in notifications]
    assert positions == sorted(set(positions))
    assert positions[-1] == store.max_notification_id()


def test_a_hundred_events_of_one_append_keep_their_order(store: ApplicationRecorder) -> None:
    names = [f"{number * 7919 % 100:03}" for number in range(100)]
    store.insert_events([event(name) for name in names])
    assert [each.originator_id for each in store.select_notifications(None, 100)] == names


def test_notifications_are_read_by_position_within_bounds(store: ApplicationRecorder) -> None:
    store.insert_events([event("a", version, topic=f"t{version % 2}") for version in range(1, 11)])
    first, *_, last = (each.id for each in store.select_notifications(None, 100))

    def read(*args: int | None, **kwargs: object) -> list[int]:
        return versions(store.select_notifications(*args, **kwargs))  # type: ignore[arg-type]

    assert read(first, 100) == list(range(1, 11))
    assert read(first, 3) == [1, 2, 3]
    assert read(first, 100, inclusive_of_start=False) == list(range(2, 11))
    assert read(first, 100, first + 4) == [1, 2, 3, 4, 5]
    assert read(first, 3, topics=["t0"]) == [2, 4, 6]
    assert read(last, 100) == [10]
    assert read(last + 1, 100) == []
    assert read(None, 2, topics=["t1", "other"]) == [1, 3]


def test_more_notifications_than_are_read_at_once(store: ApplicationRecorder) -> None:
    store.insert_events([event("a", version, topic=f"t{version % 2}") for version in range(1, 2_502)])
    assert versions(store.select_notifications(None, 10_000)) == list(range(1, 2_502))
    assert versions(store.select_notifications(None, 1_200, topics=["t0"])) == list(range(2, 2_401, 2))


def test_a_store_is_closed_twice_without_harm(store: ApplicationRecorder) -> None:
    store.insert_events([event("a")])
    close = getattr(store, "close", lambda: None)
    close()
    close()
