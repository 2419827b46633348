"""Two relays at once: one publishes, the other takes over in time, and whoever was overtaken does no harm."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.kafka import Kafka, MakeTopic
from tests.support.parcels import Parcels, parcels_in
from tests.support.processes import Programs, state_of
from tests.support.published import published
from tests.support.relay_program import BEFORE_ACK, BEFORE_PRODUCE
from tests.support.relays import checkpoint_of, in_order, relay_program, repeats_are_identical, steps
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

LEASE = 3.0
START = 20.0
"""Seconds that a process may take to start on a busy machine."""


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


def test_two_relays_take_turns_one_at_a_time_and_the_second_takes_over_within_the_lease(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, programs: Programs
) -> None:
    topic = topics("parcels", partitions=3)
    keys = [f"ord_{number}" for number in range(200)]
    parcels.move_all(keys, times=5)
    settings = {"relay_lease": LEASE, "relay_batch_size": 100}

    leader = relay_program(programs, store_dsn, kafka, topic, "--slow", "0.3", **settings)
    leader.wait_for_line("state=relaying", within=START)
    second = relay_program(programs, store_dsn, kafka, topic, "--slow", "0.3", **settings)
    second.wait_for_line("state=standby", within=START)
    eventually(lambda: checkpoint_of(store_dsn).position >= 500, within=30)
    leader.kill()
    reached = checkpoint_of(store_dsn).position

    assert reached < 1_000
    eventually(lambda: checkpoint_of(store_dsn).position > reached, within=LEASE + 2)
    eventually(lambda: checkpoint_of(store_dsn).position == 1_000, within=30)
    found = published(kafka.bootstrap, topic)
    assert all(in_order(found, key, 5) for key in keys)
    assert repeats_are_identical(found)
    assert len(found) <= 1_000 + 100  # at most the one batch that was under way


def test_a_relay_that_was_paused_before_it_sent_its_batch_sends_none_of_it_when_it_wakes_up_overtaken(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, programs: Programs
) -> None:
    topic = topics("parcels", partitions=3)
    parcels.move_all(["x"], times=5)

    paused = relay_program(
        programs, store_dsn, kafka, topic, "--at", BEFORE_PRODUCE, "--signal", "STOP", relay_lease=LEASE
    )
    paused.wait_for_line("SIGSTOP before-produce", within=START)
    eventually(lambda: state_of(paused.pid) == "T")
    parcels.move_all(["x"], times=3)
    second = relay_program(programs, store_dsn, kafka, topic, relay_lease=LEASE)
    eventually(lambda: checkpoint_of(store_dsn).position == 8, within=START + LEASE)
    os.kill(paused.pid, signal.SIGCONT)
    paused.wait_for_line("lease lost")
    paused.wait_for_line("state=standby")

    assert steps(published(kafka.bootstrap, topic)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(published(kafka.bootstrap, topic)) == 8
    assert checkpoint_of(store_dsn).position == 8

    second.kill()  # the woken one has joined again
    parcels.move_all(["x"], times=1)
    eventually(lambda: checkpoint_of(store_dsn).position == 9, within=LEASE + 10)
    assert in_order(published(kafka.bootstrap, topic), "x", 9)


def test_a_relay_that_was_paused_with_messages_under_way_moves_no_checkpoint_and_sends_no_further_batch(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, programs: Programs
) -> None:
    topic = topics("parcels", partitions=3)
    keys = ["x", "y", "z"]
    parcels.move_all(keys, times=10)
    settings = {"relay_lease": LEASE, "relay_batch_size": 6}

    paused = relay_program(
        programs, store_dsn, kafka, topic, "--at", BEFORE_ACK, "--batch", "2", "--signal", "STOP", **settings
    )
    paused.wait_for_line("SIGSTOP before-ack", within=START)
    eventually(lambda: state_of(paused.pid) == "T")
    relay_program(programs, store_dsn, kafka, topic, **settings)
    eventually(lambda: checkpoint_of(store_dsn).position == 30, within=START + LEASE)
    parcels.move_all(keys, times=10)
    eventually(lambda: checkpoint_of(store_dsn).position == 60, within=30)
    os.kill(paused.pid, signal.SIGCONT)
    paused.wait_for_line("lease lost")
    paused.wait_for_line("state=standby")

    found = published(kafka.bootstrap, topic)
    assert checkpoint_of(store_dsn).position == 60
    assert all(in_order(found, key, 20) for key in keys)
    assert repeats_are_identical(found)
    assert len(found) <= 60 + 6
