"""A projection fed by the store is found out when it does not drain, and left in peace when there is nothing to do."""

from collections.abc import Iterator
from threading import Event

import pytest

from infrastructure.postgres import Connection
from projections import positions
from projections.health import ProjectionHealth
from projections.store_feed import StoreFeed
from projections.store_health import store_health
from tests.support.parcel_counts import OUTBOXES, ParcelCounts, with_counts
from tests.support.parcels import Parcels
from tests.support.stored_events import autocommit

COUNTS = ParcelCounts()
STORED_LONG_AGO = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state, stored_at)
    VALUES ('a', 100, 'parcel.moved', '{}', clock_timestamp() - interval '90 s')
"""


@pytest.fixture
def db(store_dsn: str) -> Iterator[Connection]:
    """The projection has applied one event and has nothing left to do."""
    with autocommit(with_counts(store_dsn)) as connection:
        Parcels(connection).move("a")
        positions.begin(connection, COUNTS.consumer_name, COUNTS.version)
        feed = StoreFeed(COUNTS, OUTBOXES)
        feed.connect(connection)
        feed.step(Event())
        yield connection


def health(dsn: str) -> ProjectionHealth:
    return store_health("parcel_counts", dsn, COUNTS)


def test_one_idle_hour_is_no_fault(db: Connection, store_dsn: str) -> None:
    db.execute("UPDATE projection_positions SET moved_at = moved_at - interval '1 hour'")
    assert health(store_dsn) == ProjectionHealth("parcel_counts", 0, None, 0, ())


def test_events_that_wait_are_a_fault_though_somebody_shows_signs_of_life(db: Connection, store_dsn: str) -> None:
    db.execute(STORED_LONG_AGO)
    found = health(store_dsn)
    (fault,) = found.faults
    assert (found.lag, fault.startswith("an event has waited for 9")) == (1, True)


def test_nobody_who_shows_signs_of_life_is_a_fault_though_nothing_waits(db: Connection, store_dsn: str) -> None:
    db.execute("UPDATE projection_positions SET beat_at = beat_at - interval '61 s'")
    (fault,) = health(store_dsn).faults
    assert fault.startswith("no sign of life for 61 s")


def test_one_shard_that_is_behind_is_named(db: Connection, store_dsn: str) -> None:
    with db.transaction():
        (place,) = positions.lock(db, COUNTS.consumer_name)
        positions.replace(db, COUNTS.consumer_name, 2, COUNTS.version, place.position, place.anchor)
    db.execute("UPDATE projection_positions SET beat_at = beat_at - interval '61 s' WHERE shard = 1")
    (fault,) = health(store_dsn).faults
    assert fault.startswith("shard 1 of 2: no sign of life")


def test_a_store_set_back_behind_a_position_without_a_fingerprint_is_a_fault_too(
    db: Connection, store_dsn: str
) -> None:
    db.execute("UPDATE projection_positions SET anchor = NULL")
    assert health(store_dsn).faults == ()
    db.execute("UPDATE projection_positions SET position = position + 1")
    (fault,) = health(store_dsn).faults
    assert "set back" in fault
