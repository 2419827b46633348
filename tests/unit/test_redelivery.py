"""From what Kafka could still deliver to what an inbox must still know."""

import pytest

from infrastructure.record import Record
from infrastructure.redeliverable import Redeliverable
from projections.redelivery import limits, utc
from tests.support.inbox import id_at
from tests.support.messages import placed

NOW = 1_790_000_000_000
HOUR = 3_600_000


def record(timestamp_ms: int | None, value: bytes | None, partition: int = 0) -> Record:
    return Record("orders", partition, 7, b"ord_1", value, (), timestamp_ms)


def event(ms: int) -> bytes:
    return placed("ord_1", event_id=id_at(ms)).to_bytes()


def earliest(*oldest: Record, unread: tuple[Record, ...] = (), kept_ms: int | None = 168 * HOUR) -> int:
    found = Redeliverable({"orders": kept_ms}, oldest, unread)
    return min(each.from_ms for each in limits(found, ["orders"], NOW))


def test_what_the_topic_may_keep_by_its_configuration_counts_though_nothing_is_there() -> None:
    assert earliest() == NOW - 168 * HOUR


def test_a_topic_that_keeps_all_for_ever_or_is_missing_allows_nothing() -> None:
    assert earliest(kept_ms=None) == 0
    [limit] = limits(Redeliverable({}, (), ()), ["orders"], NOW)
    assert (limit.from_ms, "there is no topic orders" in limit.why) == (0, True)


def test_the_oldest_record_of_any_partition_counts() -> None:
    assert earliest(record(NOW, event(NOW)), record(HOUR, event(NOW), partition=1)) == HOUR


@pytest.mark.parametrize("place", ["oldest", "unread"])
def test_an_event_published_late_counts_from_when_it_happened(place: str) -> None:
    late = record(NOW, event(HOUR))
    assert (earliest(late) if place == "oldest" else earliest(unread=(late,))) == HOUR


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[]", b"{}", b'{"eventId":7}', b'{"eventId":"evt_01JQ8X8F"}'])
def test_a_record_whose_event_tells_no_time_counts_from_its_own(value: bytes | None) -> None:
    assert earliest(record(NOW - 500 * HOUR, value)) == NOW - 500 * HOUR


def test_a_record_that_tells_no_time_at_all_may_be_of_any() -> None:
    assert earliest(record(None, b"")) == 0


def test_no_value_of_a_record_is_told() -> None:
    found = Redeliverable({"orders": HOUR}, [record(NOW, event(NOW))], [record(NOW, event(NOW))])
    told = " ".join(each.why for each in limits(found, ["orders"], NOW))
    assert "orders/0 still has a record of 2026-09-21" in told
    assert "orders/0 has a record of 2026-09-21" in told
    assert "orders keeps its records for 1 h" in told
    assert "evt_" not in told


def test_times_are_told_whatever_an_id_claims() -> None:
    assert utc(0) == "1970-01-01 00:00"
    assert utc(2**48 - 1).endswith("ms")
