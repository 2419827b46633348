"""An event that holds a projection fed by the store is passed only when somebody says so, and that is kept."""

from collections.abc import Iterator

import psycopg
import pytest

from domain.contracts import Contract
from projections import positions
from projections.skipping import NotHeld, Skipped, skip
from projections.store_feed import Outcome
from tests.integration.test_store_feed import NAME, feed, run
from tests.support.parcel_counts import ParcelCounts, counts, with_counts
from tests.support.parcels import Parcels, parcels_in

RECORDS = "SELECT projection, version, shard, position, event_id, held_reason, reason, skipped_by FROM skipped_events"


@pytest.fixture
def dsn(store_dsn: str) -> str:
    return with_counts(store_dsn)


@pytest.fixture
def parcels(dsn: str) -> Iterator[Parcels]:
    with parcels_in(dsn) as parcels:
        yield parcels


def failing(contract: Contract, tx: object) -> None:
    if getattr(contract, "step", 0) == 2:
        raise RuntimeError("not this one")


def test_the_runner_goes_on_behind_an_event_that_its_handler_did_not_take_and_the_reason_is_kept(
    dsn: str, parcels: Parcels
) -> None:
    culprit = [parcels.move("a") for _ in range(4)][1]
    with feed(dsn, ParcelCounts(failing)) as it:
        assert run(it).outcome is Outcome.HELD
        skipped = skip(parcels.connection, NAME, culprit, "it was a test parcel", "me@here")
        assert run(it).outcome is Outcome.IDLE
    assert counts(parcels.connection) == {"a": 3}
    (record,) = parcels.connection.execute(RECORDS)
    assert record[4].startswith("evt_")
    reason = "its handler failed with RuntimeError"
    assert record == (NAME, 1, 0, culprit, record[4], reason, "it was a test parcel", "me@here")
    assert skipped == Skipped(culprit, 0, record[4], reason)


def test_the_runner_goes_on_behind_an_event_that_could_not_be_mapped(dsn: str, parcels: Parcels) -> None:
    parcels.move("a")
    culprit = parcels.write("b", "parcel.unknown", b"{}")
    parcels.move("a")
    with feed(dsn) as it:
        assert run(it).outcome is Outcome.HELD
        assert skip(parcels.connection, NAME, culprit, "never meant to be there", "me@here").event_id is None
        assert run(it).outcome is Outcome.IDLE
    assert counts(parcels.connection) == {"a": 2}


def test_only_the_event_that_holds_it_can_be_skipped(dsn: str, parcels: Parcels) -> None:
    culprit = [parcels.move("a") for _ in range(4)][1]
    with pytest.raises(NotHeld, match="nothing holds it"):
        skip(parcels.connection, NAME, culprit, "too early", "me@here")
    with feed(dsn, ParcelCounts(failing)) as it:
        run(it)
    for position in (culprit - 1, culprit + 1, 99):
        with pytest.raises(NotHeld, match=f"it is at {culprit}"):
            skip(parcels.connection, NAME, position, "mistyped", "me@here")
    with feed(dsn) as repaired:
        run(repaired)
    with pytest.raises(NotHeld):
        skip(parcels.connection, NAME, culprit, "too late", "me@here")
    assert counts(parcels.connection) == {"a": 4}
    assert parcels.connection.execute(RECORDS).fetchall() == []


def test_a_skip_that_does_not_come_to_its_record_leaves_the_position(dsn: str, parcels: Parcels) -> None:
    culprit = [parcels.move("a") for _ in range(4)][1]
    with feed(dsn, ParcelCounts(failing)) as it:
        run(it)
    parcels.connection.execute("ALTER TABLE skipped_events ADD CHECK (reason <> 'not kept')")
    with pytest.raises(psycopg.errors.CheckViolation):
        skip(parcels.connection, NAME, culprit, "not kept", "me@here")
    assert [place.position for place in positions.read(parcels.connection, NAME)] == [culprit - 1]
