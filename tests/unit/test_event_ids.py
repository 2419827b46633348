"""Ids of public events: stable for ever, ordered by time, and never the same for two facts."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from eventsourcing.persistence import StoredEvent

from infrastructure.event_ids import event_id

NAMESPACE = UUID("0b0e7d53-8c70-4a4e-9f43-8a5f6f0c7b11")
STORED = StoredEvent("ord_782", 1, "order.placed", b'{"customer_id":"cus_17"}')
TIME = datetime(2026, 9, 29, 10, 30, tzinfo=UTC)


def uuid_of(text: str) -> UUID:
    return UUID(text.removeprefix("evt_"))


def test_the_id_of_a_stored_event_never_changes() -> None:
    """Consumers have this id in their tables: should this fail, the code is wrong, not the test."""
    assert event_id(NAMESPACE, STORED, TIME, "OrderPlaced") == "evt_01a0ecb6d440849fbd703e5f2206c4ed"


def test_it_is_a_uuid_of_version_8() -> None:
    for number in range(200):
        made = uuid_of(event_id(NAMESPACE, STORED, TIME, f"Type{number}"))
        assert (made.version, made.variant) == (8, "specified in RFC 4122")


def test_it_carries_the_events_own_time_in_milliseconds() -> None:
    made = uuid_of(event_id(NAMESPACE, STORED, TIME + timedelta(milliseconds=7, microseconds=999), "OrderPlaced"))
    assert made.int >> 80 == 1_790_677_800_007


def test_ids_sort_by_time_as_text() -> None:
    times = [TIME + timedelta(milliseconds=step) for step in range(300)]
    made = [event_id(NAMESPACE, STORED, time, "OrderPlaced") for time in times]
    assert made == sorted(made)


@pytest.mark.parametrize("time", [datetime(1960, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)])
def test_a_wrong_clock_still_gives_an_id(time: datetime) -> None:
    assert len(event_id(NAMESPACE, STORED, time, "OrderPlaced")) == 36


@pytest.mark.parametrize(
    "other",
    [
        StoredEvent("ord_783", 1, "order.placed", STORED.state),
        StoredEvent("ord_782", 2, "order.placed", STORED.state),
        StoredEvent("ord_782", 1, "order.place", STORED.state),
        StoredEvent("ord_782", 1, "order.placed", STORED.state + b" "),
        StoredEvent("ord_782", 1, "order.place", b"d" + STORED.state),
    ],
)
def test_another_fact_has_another_id(other: StoredEvent) -> None:
    """The last two: a store that was set back to a backup stores another fact under the same id and version."""
    assert event_id(NAMESPACE, other, TIME, "OrderPlaced") != event_id(NAMESPACE, STORED, TIME, "OrderPlaced")


def test_another_store_and_another_contract_of_the_same_event_have_other_ids() -> None:
    made = {event_id(NAMESPACE, STORED, TIME, name) for name in ("OrderPlaced", "OrderPlacedV2")}
    made.add(event_id(UUID(int=1), STORED, TIME, "OrderPlaced"))
    assert len(made) == 3
