"""Records of what was released or sent go by evidence; what waits or was decided stays."""

from collections.abc import Iterator
from threading import Event

import pytest
from psycopg import Connection

from infrastructure.migrate import migrate
from projections.closed_records import Removed, remove_closed
from projections.decoding import Category, Faulty
from projections.notifications import MIGRATIONS
from projections.notifications.projection import PROJECTION
from projections.quarantine import Parked, park
from projections.redelivery import Limit
from tests.support.inbox import days_ago
from tests.support.inventory import apply, connected
from tests.support.messages import placed, record

NAME = PROJECTION.consumer_name
GO_ON = Event()
FOR_EVER = Limit(0, "a topic keeps its records for ever")


@pytest.fixture
def house(empty_dsn: str) -> Iterator[Connection]:
    """Entries and effects of 60, 40 and 20 days ago: of each age one that is done, and one of every other kind."""
    migrate(empty_dsn, MIGRATIONS)
    with connected(empty_dsn) as connection:
        for days in (60, 40, 20):
            for state in ("parked", "released", "discarded"):
                _entry(connection, state, days)
            for state in ("sent_at", "failed_at", None):
                _effect(connection, state, days)
        yield connection


def _entry(house: Connection, state: str, days: int) -> None:
    parked = record(b"{}", f"{state} {days}".encode())
    park(house, NAME, [Parked(parked, Faulty(Category.NOT_JSON, "as the test wants it"))])
    if state != "parked":
        why = "never meant" if state == "discarded" else None
        house.execute(
            "UPDATE quarantined_events SET state = %s, closed_reason = %s, closed_at = now() - %s * interval '1 day'"
            " WHERE key = %s",
            (state, why, days, parked.key),
        )


def _effect(house: Connection, state: str | None, days: int) -> None:
    event = placed(f"ord_{state}_{days}")
    apply(house, event, projection=PROJECTION)
    if state:
        house.execute(
            f"UPDATE outgoing_effects SET {state} = now() - %s * interval '1 day' WHERE key = %s",
            (days, event.key),
        )


def left(house: Connection) -> tuple[list[bytes], list[str]]:
    """Keys of released entries, and of sent effects."""
    entries = house.execute("SELECT key FROM quarantined_events WHERE state = 'released' ORDER BY 1")
    sent = house.execute("SELECT key FROM outgoing_effects WHERE sent_at IS NOT NULL ORDER BY 1")
    return [key for (key,) in entries], [key for (key,) in sent]


def others(house: Connection) -> tuple[int, int]:
    (entries,) = house.execute("SELECT count(*) FROM quarantined_events WHERE state <> 'released'").fetchone() or (0,)
    (effects,) = house.execute("SELECT count(*) FROM outgoing_effects WHERE sent_at IS NULL").fetchone() or (0,)
    return entries, effects


def test_they_go_as_far_as_was_asked_for_and_what_waits_failed_or_was_discarded_stays(house: Connection) -> None:
    limits = [Limit(days_ago(house, 1), "a topic still has it")]
    removed = remove_closed(house, NAME, limits, days_ago(house, 30), GO_ON)
    assert (removed.released, removed.sent) == (2, 2)
    assert left(house) == ([b"released 20"], ["ord_sent_at_20"])
    assert others(house) == (6, 6)


def test_never_younger_ones_than_what_kafka_may_still_bring(house: Connection) -> None:
    limits = [Limit(days_ago(house, 30), "one topic"), Limit(days_ago(house, 50), "another one")]
    removed = remove_closed(house, NAME, limits, days_ago(house, 0), GO_ON)
    assert (removed.released, removed.sent) == (1, 1)
    assert left(house) == ([b"released 20", b"released 40"], ["ord_sent_at_20", "ord_sent_at_40"])


def test_the_margin_keeps_what_is_only_just_too_old(house: Connection) -> None:
    limits = [Limit(days_ago(house, 39.5), "a topic still has it")]
    assert remove_closed(house, NAME, limits, days_ago(house, 0), GO_ON).released == 1


def test_where_kafka_keeps_its_records_for_ever_nothing_goes(house: Connection) -> None:
    limits = [FOR_EVER, Limit(days_ago(house, 1), "another topic")]
    assert remove_closed(house, NAME, limits, days_ago(house, 0), GO_ON) == Removed(0, 0, 0)


def test_those_of_another_consumer_stay(house: Connection) -> None:
    limits = [Limit(days_ago(house, 1), "a topic still has it")]
    removed = remove_closed(house, "somebody-else", limits, days_ago(house, 0), GO_ON)
    assert (removed.released, removed.sent) == (0, 0)
