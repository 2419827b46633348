"""kill -9 at every point of a batch: never a missing event, first appearances in order, repeats identical."""

import os
import random
import time
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from tests.support.kafka import Kafka, MakeTopic
from tests.support.parcels import Parcels, parcels_in
from tests.support.processes import Program, Programs
from tests.support.published import published
from tests.support.relay_program import AFTER_CHECKPOINT, BEFORE_ACK, BEFORE_CHECKPOINT, BEFORE_PRODUCE
from tests.support.relays import checkpoint_of, in_order, relay_program, repeats_are_identical
from tests.support.wait import eventually

LEASE = 1.0
BATCH = 10
PARCELS = [f"p{number}" for number in range(5)]
KILLS = int(os.environ.get("COUNTERFOIL_TEST_KILLS", "6"))


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


def start_relay(programs: Programs, dsn: str, kafka: Kafka, topic: str, *arguments: str) -> Program:
    return relay_program(programs, dsn, kafka, topic, *arguments, relay_lease=LEASE, relay_batch_size=BATCH)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("point", "fewest_repeats", "most_repeats"),
    [(BEFORE_PRODUCE, 0, 0), (BEFORE_ACK, 0, BATCH), (BEFORE_CHECKPOINT, BATCH, BATCH), (AFTER_CHECKPOINT, 0, 0)],
)
def test_a_relay_killed_at_this_point_leaves_nothing_out_and_repeats_only_what_was_not_checkpointed(
    store_dsn: str,
    kafka: Kafka,
    topics: MakeTopic,
    parcels: Parcels,
    programs: Programs,
    point: str,
    fewest_repeats: int,
    most_repeats: int,
) -> None:
    topic = topics("parcels", partitions=3)
    parcels.move_all(PARCELS, times=10)

    killed = start_relay(programs, store_dsn, kafka, topic, "--at", point, "--batch", "3")
    assert killed.wait(within=30) == -9
    start_relay(programs, store_dsn, kafka, topic)
    eventually(lambda: checkpoint_of(store_dsn).position == 50, within=30)

    found = published(kafka.bootstrap, topic)
    assert all(in_order(found, parcel, 10) for parcel in PARCELS)
    assert repeats_are_identical(found)
    assert fewest_repeats <= len(found) - 50 <= most_repeats


@pytest.mark.kafka
@pytest.mark.timeout(120 + 10 * KILLS)
def test_relays_killed_at_random_under_load_leave_nothing_out_and_reorder_nothing(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, programs: Programs
) -> None:
    topic = topics("parcels", partitions=3)
    enough = Event()
    moves = 0

    def write() -> None:
        nonlocal moves
        while not enough.wait(0.01):
            parcels.move_all(PARCELS, times=1)
            moves += 1

    writer = Thread(target=write)
    writer.start()
    try:
        for _ in range(KILLS):
            relay = start_relay(programs, store_dsn, kafka, topic)
            relay.wait_for_line("state=relaying", within=30)
            time.sleep(random.uniform(0, 0.3))
            relay.kill()
    finally:
        enough.set()
        writer.join()

    start_relay(programs, store_dsn, kafka, topic)
    eventually(lambda: checkpoint_of(store_dsn).position == moves * len(PARCELS), within=60)
    found = published(kafka.bootstrap, topic)
    assert all(in_order(found, parcel, moves) for parcel in PARCELS)
    assert repeats_are_identical(found)
