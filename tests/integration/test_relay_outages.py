"""Kafka or PostgreSQL goes away, or a hint is lost: the relay waits, is seen to wait, and goes on by itself."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Timer

import pytest

from counterfoil.embedded import EmbeddedPostgres
from infrastructure import metrics
from infrastructure.hints import HintSender
from infrastructure.kafka_faults import Fault
from infrastructure.migrate import STORE_MIGRATIONS, migrate
from infrastructure.outgoing_records import count
from infrastructure.publisher import KafkaPublisher, OutgoingMessage, PublishFailed
from infrastructure.relay_loop import RelayLoop
from tests.support.apache_kafka import RealKafka
from tests.support.kafka import create_topic
from tests.support.outages import breakable_kafka, frozen
from tests.support.parcels import Parcels, parcel_outbox, parcels_in
from tests.support.published import published
from tests.support.relays import Recorder, checkpoint_of, in_order, one, running, settings_for, state, steps
from tests.support.stored_events import proxied
from tests.support.wait import eventually

UniqueName = Callable[[str], str]

OPEN_TRANSACTIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'counterfoil relay%' AND xact_start IS NOT NULL
"""
END_LISTENERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'counterfoil listener'
"""


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


@pytest.fixture(scope="module")
def breakable() -> Iterator[RealKafka]:
    with breakable_kafka() as broker:
        yield broker


@pytest.fixture
def topic(breakable: RealKafka, unique_name: UniqueName) -> str:
    name = unique_name("parcels")
    create_topic(breakable.bootstrap, name, partitions=3)
    return name


# --- Kafka ---------------------------------------------------------------------------------------------


def test_fifty_events_arrive_in_order_through_a_queue_of_ten_once_the_broker_is_back(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels, unique_name: UniqueName
) -> None:
    name, settings = unique_name("parcels"), settings_for(store_dsn, breakable.bootstrap, publish_timeout=2)
    publisher = KafkaPublisher(settings, {"queue.buffering.max.messages": 10})

    with running(RelayLoop(parcel_outbox(topic, name), settings, one(publisher))):
        eventually(lambda: state(name) == "relaying")
        breakable.stop()
        parcels.move_all([f"p{n}" for n in range(25)], times=2)
        eventually(lambda: state(name) == "waiting_for_kafka")
        assert checkpoint_of(store_dsn, name).position == 0
        breakable.start()
        eventually(lambda: checkpoint_of(store_dsn, name).position == 50, within=30)

    found = published(breakable.bootstrap, topic)
    assert all(in_order(found, f"p{n}", 2) for n in range(25))
    assert count(parcels.connection, name) == (0, 0)


def test_a_broker_that_is_killed_and_restarted_under_load_loses_nothing_and_reorders_nothing(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels, unique_name: UniqueName
) -> None:
    name = unique_name("parcels")
    settings = settings_for(store_dsn, breakable.bootstrap, publish_timeout=5, relay_batch_size=20)
    crash = Timer(0.5, breakable.kill)

    with running(RelayLoop(parcel_outbox(topic, name), settings)):
        eventually(lambda: state(name) == "relaying")
        crash.start()
        for _ in range(60):
            parcels.move_all(["a", "b", "c", "d", "e"], times=1)
        crash.join()
        breakable.start()
        eventually(lambda: checkpoint_of(store_dsn, name).position == 300, within=60)

    found = published(breakable.bootstrap, topic)
    assert all(in_order(found, parcel, 60) for parcel in "abcde")


def test_while_it_waits_for_kafka_its_lease_is_renewed_and_no_transaction_is_open(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels
) -> None:
    settings = settings_for(store_dsn, breakable.bootstrap, publish_timeout=60, relay_lease=2)

    with running(RelayLoop(parcel_outbox(topic), settings)):
        parcels.move("a")
        eventually(lambda: checkpoint_of(store_dsn).position == 1)
        with frozen(breakable):
            parcels.move("a")
            began = checkpoint_of(store_dsn)
            eventually(lambda: checkpoint_of(store_dsn).beat_at > began.beat_at + timedelta(seconds=3))
            assert parcels.connection.execute(OPEN_TRANSACTIONS).fetchone() == (0,)
        eventually(lambda: checkpoint_of(store_dsn).position == 2, within=20)
        assert checkpoint_of(store_dsn).epoch == began.epoch


# --- PostgreSQL ----------------------------------------------------------------------------------------


def test_a_database_that_is_restarted_is_found_again(
    own_postgres: EmbeddedPostgres, breakable: RealKafka, topic: str, unique_name: UniqueName
) -> None:
    name, dsn = unique_name("parcels"), own_postgres.dsn()
    migrate(dsn, STORE_MIGRATIONS)

    with running(RelayLoop(parcel_outbox(topic, name), settings_for(dsn, breakable.bootstrap))):
        with parcels_in(dsn) as parcels:
            parcels.move_all(["a", "b"], times=5)
        eventually(lambda: checkpoint_of(dsn, name).position == 10)
        own_postgres.kill()
        eventually(lambda: state(name) == "waiting_for_store")
        own_postgres.start()
        with parcels_in(dsn) as parcels:
            parcels.move_all(["c"], times=5)
        eventually(lambda: len(steps(published(breakable.bootstrap, topic))) == 15, within=30)
        eventually(lambda: state(name) == "relaying")


def test_a_database_that_falls_silent_is_given_up_and_found_again(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels, unique_name: UniqueName
) -> None:
    name = unique_name("parcels")
    with (
        proxied(store_dsn) as (proxy, dsn),
        running(RelayLoop(parcel_outbox(topic, name), settings_for(dsn, breakable.bootstrap, relay_lease=3))),
    ):
        eventually(lambda: state(name) == "relaying")
        proxy.blackhole()
        parcels.move("a")
        eventually(lambda: state(name) == "waiting_for_store", within=15)
        proxy.resume()
        eventually(lambda: len(published(breakable.bootstrap, topic)) == 1, within=30)


# --- Hints ---------------------------------------------------------------------------------------------


def test_a_lost_hint_costs_one_poll_interval_and_no_event(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels
) -> None:
    polls, hints = metrics.WAKE_UPS.labels("poll")._value, metrics.WAKE_UPS.labels("hint")._value
    polled_before = polls.get()
    settings = settings_for(store_dsn, breakable.bootstrap, relay_poll_idle=0.3)

    with running(RelayLoop(parcel_outbox(topic), settings, one(publisher := Recorder()))):
        eventually(lambda: polls.get() > polled_before + 2)  # the listener has connected, which was a hint too
        hinted = hints.get()
        parcels.move("a")  # nobody is told
        eventually(lambda: len(publisher.messages) == 1, within=2)
        assert hints.get() == hinted


def test_a_hint_wakes_it_long_before_the_next_poll_also_after_its_listening_session_was_ended(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels, unique_name: UniqueName
) -> None:
    name = unique_name("parcels")
    settings = settings_for(store_dsn, breakable.bootstrap, relay_poll_idle=300, relay_poll_busy=300)
    hints = HintSender(store_dsn)

    with running(RelayLoop(parcel_outbox(topic, name), settings, one(publisher := Recorder()))):
        eventually(lambda: state(name) == "relaying")
        parcels.move("a")
        hints.hint()
        eventually(lambda: len(publisher.messages) == 1)
        parcels.connection.execute(END_LISTENERS)
        parcels.move("a")  # the new listening session says that something may have been missed
        eventually(lambda: len(publisher.messages) == 2)
        parcels.move("a")
        hints.hint()
        eventually(lambda: len(publisher.messages) == 3)
    hints.close()


def test_the_lag_is_measured_against_what_is_stored(
    store_dsn: str, breakable: RealKafka, topic: str, parcels: Parcels, unique_name: UniqueName
) -> None:
    name, publisher = unique_name("parcels"), Recorder()
    parcels.move_all(["a", "b"], times=5)

    def takes_one(messages: list[OutgoingMessage]) -> int:
        raise PublishFailed(len(publisher.calls) == 1, "TOPIC_AUTHORIZATION_FAILED", Fault.TOPIC)

    publisher.answer = takes_one
    with running(RelayLoop(parcel_outbox(topic, name), settings_for(store_dsn, breakable.bootstrap), one(publisher))):
        eventually(lambda: state(name) == "waiting_for_kafka")
        eventually(lambda: metrics.RELAY_LAG.labels(name, "0")._value.get() == 9)
        assert metrics.RELAY_POSITION.labels(name, "0")._value.get() == 1
        assert metrics.LOOP_BEAT.labels(name)._value.get() > 0
