"""The store went backwards: a failover lost its tail, or an older backup was restored. No new event is skipped."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from infrastructure.health import relay_health
from infrastructure.outbox_relay import SET_BACK, Outcome, Relay
from infrastructure.postgres import connect
from tests.support.parcels import Parcels, parcel_outbox, parcels_in
from tests.support.relays import NEVER, Recorder, relay_by_hand

OUTBOX = parcel_outbox("parcels")
LOST = 5


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


@contextmanager
def relay(dsn: str, publisher: Recorder) -> Iterator[Relay]:
    with relay_by_hand(dsn, OUTBOX, publisher) as relay:
        yield relay
        relay.release()


def lose_the_tail(dsn: str, positions: int = LOST) -> None:
    """As a failover to a standby that had not received it: rows and the sequence alike."""
    with psycopg.connect(dsn) as session:
        session.execute("ALTER TABLE stored_events DISABLE TRIGGER append_only")
        session.execute(
            "DELETE FROM stored_events WHERE position > (SELECT max(position) - %s FROM stored_events)", (positions,)
        )
        session.execute("ALTER TABLE stored_events ENABLE ALWAYS TRIGGER append_only")
        session.execute(
            "SELECT setval(pg_get_serial_sequence('stored_events', 'position'), max(position)) FROM stored_events"
        )


def put_right(dsn: str, position: int) -> None:
    """As a rewind does, while the relay keeps its lease."""
    with psycopg.connect(dsn) as session:
        session.execute("UPDATE relay_checkpoints SET position = %s, anchor = NULL", (position,))


def published_ids(publisher: Recorder) -> list[str]:
    return [dict(message.headers)["ce_id"].decode() for message in publisher.messages]


@pytest.mark.parametrize("new", [0, 3, LOST, LOST + 3], ids=lambda new: f"{new} new events")
def test_a_store_set_back_is_found_at_start_whatever_was_stored_since_and_nothing_is_skipped(
    store_dsn: str, parcels: Parcels, new: int, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Recorder()
    parcels.move_all(["a", "b"], times=10)
    with relay(store_dsn, publisher) as before:
        assert before.step(NEVER).published == 20
    lose_the_tail(store_dsn)
    parcels.move_all(["c"], times=new)

    with caplog.at_level(logging.ERROR), relay(store_dsn, publisher) as after:
        assert [after.step(NEVER).reason for _ in range(3)] == [SET_BACK] * 3
        assert len(publisher.messages) == 20
        assert [record.message for record in caplog.records] == ["the relay is held: the store was set back"]

        put_right(store_dsn, 20 - LOST)
        assert after.step(NEVER).outcome is Outcome.HELD  # it looks at the checkpoint again
        if new:
            assert after.step(NEVER).published == new
        assert after.step(NEVER).outcome is Outcome.IDLE
    ids = published_ids(publisher)
    assert len(set(ids)) == len(ids) == 20 + new


def test_a_store_set_back_is_found_while_the_relay_runs(store_dsn: str, parcels: Parcels) -> None:
    publisher = Recorder()
    parcels.move_all(["a"], times=10)
    with relay(store_dsn, publisher) as it:
        assert it.step(NEVER).published == 10
        assert it.step(NEVER).outcome is Outcome.IDLE
        lose_the_tail(store_dsn)
        parcels.move_all(["b"], times=LOST + 1)
        assert it.step(NEVER).reason == SET_BACK
        assert len(publisher.messages) == 10


def test_the_same_fact_stored_anew_after_the_loss_is_another_event(store_dsn: str, parcels: Parcels) -> None:
    """The same parcel, step and position: only the moment differs, and so does the id."""
    publisher = Recorder()
    parcels.move_all(["a"], times=6)
    with relay(store_dsn, publisher) as it:
        it.step(NEVER)
    lose_the_tail(store_dsn, positions=1)
    parcels.versions["a"] -= 1
    parcels.move("a")
    with relay(store_dsn, publisher) as it:
        assert it.step(NEVER).reason == SET_BACK
        put_right(store_dsn, 5)
        it.step(NEVER)
        assert it.step(NEVER).published == 1
    assert published_ids(publisher)[5] != published_ids(publisher)[6]


def test_a_store_set_back_is_seen_from_outside(store_dsn: str, parcels: Parcels) -> None:
    publisher = Recorder()
    parcels.move_all(["a"], times=10)
    with relay(store_dsn, publisher) as it:
        it.step(NEVER)
    with connect(store_dsn, application_name="test") as session:
        assert [each.fault for each in relay_health(session)] == [None]
        lose_the_tail(store_dsn)
        parcels.move_all(["b"], times=LOST + 1)
        (health,) = relay_health(session)
        assert health.fault is not None
        assert "set back" in health.fault
