"""kill -9 with messages and position in one transaction: who reads what is committed sees each event exactly once."""

import os
import random
import time
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from tests.support.kafka import Kafka, MakeTopic
from tests.support.parcels import Parcels, parcels_in
from tests.support.processes import Program, Programs
from tests.support.published import Published, published
from tests.support.relay_program import AFTER_CHECKPOINT, BEFORE_ACK, BEFORE_CHECKPOINT, BEFORE_PRODUCE
from tests.support.relays import checkpoint_of, in_order, relay_program, repeats_are_identical
from tests.support.wait import eventually

LEASE = 1.0
BATCH = 10
PARCELS = [f"p{number}" for number in range(5)]
KILLS = int(os.environ.get("COUNTERFOIL_TEST_KILLS", "3"))

pytestmark = pytest.mark.kafka


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


def start_relay(programs: Programs, dsn: str, kafka: Kafka, topic: str, *arguments: str) -> Program:
    settings = {"relay_delivery": "effectively-once", "relay_lease": LEASE, "relay_batch_size": BATCH}
    return relay_program(programs, dsn, kafka, topic, *arguments, **settings)


def committed(kafka: Kafka, topic: str) -> list[Published]:
    return published(kafka.bootstrap, topic, isolation="read_committed")


def values_of(found: list[Published], parcel: str) -> list[bytes]:
    return [each.value for each in found if each.key == parcel.encode()]


def each_once_and_in_order(found: list[Published], times: int) -> bool:
    """A key is in one partition, so the order in which its messages were found is that of the topic."""
    return len(found) == times * len(PARCELS) and all(
        in_order(found, parcel, times) and len(values_of(found, parcel)) == times for parcel in PARCELS
    )


@pytest.mark.parametrize("point", [BEFORE_PRODUCE, BEFORE_ACK, BEFORE_CHECKPOINT, AFTER_CHECKPOINT])
def test_a_relay_killed_at_this_point_repeats_nothing_and_leaves_nothing_out(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, programs: Programs, point: str
) -> None:
    topic = topics("parcels", partitions=3)
    parcels.move_all(PARCELS, times=10)

    killed = start_relay(programs, store_dsn, kafka, topic, "--at", point, "--batch", "3")
    assert killed.wait(within=60) == -9
    start_relay(programs, store_dsn, kafka, topic)
    eventually(lambda: checkpoint_of(store_dsn).position == 50, within=60)

    assert each_once_and_in_order(committed(kafka, topic), 10)


@pytest.mark.timeout(180 + 15 * KILLS)
def test_relays_killed_at_random_under_load_publish_each_event_exactly_once_in_order(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, programs: Programs
) -> None:
    topic = topics("parcels", partitions=3)
    enough = Event()
    moves = 0

    def write() -> None:
        nonlocal moves
        while not enough.wait(0.05):
            parcels.move_all(PARCELS, times=1)
            moves += 1

    writer = Thread(target=write)
    writer.start()
    behind: list[int] = []
    try:
        for _ in range(KILLS):
            before = checkpoint_of(store_dsn).position if behind else 0
            relay = start_relay(programs, store_dsn, kafka, topic)
            eventually(lambda before=before: checkpoint_of(store_dsn).position > before, within=60)
            time.sleep(random.uniform(0, 0.3))
            relay.kill()
            behind.append(moves * len(PARCELS) - checkpoint_of(store_dsn).position)
    finally:
        enough.set()
        writer.join()

    start_relay(programs, store_dsn, kafka, topic)
    eventually(lambda: checkpoint_of(store_dsn).position == moves * len(PARCELS), within=120)
    everything = published(kafka.bootstrap, topic)
    print(
        f"{KILLS} kills, {moves * len(PARCELS)} events, {len(everything)} messages with what was aborted, "
        f"{sum(1 for each in behind if each)} kills with events outstanding"
    )
    assert each_once_and_in_order(committed(kafka, topic), moves)
    assert all(in_order(everything, parcel, moves) for parcel in PARCELS)
    assert repeats_are_identical(everything)
