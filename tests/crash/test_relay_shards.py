"""Several relay processes share four shards and die in every way: nothing is left out, nothing reordered."""

import os
import random
import signal
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from tests.support.kafka import Kafka, MakeTopic
from tests.support.parcels import Parcels, parcels_in
from tests.support.processes import Program, Programs, state_of
from tests.support.published import published
from tests.support.relay_fleet import have_shards, owners, positions
from tests.support.relay_program import BEFORE_ACK
from tests.support.relays import in_order, relay_program, repeats_are_identical
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

LEASE = 2.0
START = 30.0
KEYS = [f"p{number}" for number in range(24)]
SHARDS = 4


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


@pytest.mark.timeout(300)
def test_processes_that_are_killed_or_frozen_are_replaced_shard_by_shard_and_a_woken_one_does_no_harm(
    store_dsn: str, kafka: Kafka, topics: MakeTopic, parcels: Parcels, programs: Programs
) -> None:
    topic = topics("parcels", partitions=3)
    have_shards(store_dsn, "parcels", SHARDS)
    enough, moves = Event(), 0

    def write() -> None:
        nonlocal moves
        while not enough.wait(0.02):
            parcels.move_all(KEYS, times=1)
            moves += 1

    def start(*arguments: str) -> Program:
        return relay_program(programs, store_dsn, kafka, topic, *arguments, relay_lease=LEASE, relay_batch_size=40)

    def holders() -> set[int]:
        return {int(owner.split(":")[1]) for owner in owners(store_dsn, "parcels") if owner}

    def share(*running: Program) -> bool:
        return None not in owners(store_dsn, "parcels") and holders() == {program.pid for program in running}

    writer = Thread(target=write)
    writer.start()
    try:
        killed, frozen = start(), start("--at", BEFORE_ACK, "--batch", str(random.randint(5, 20)), "--signal", "STOP")
        eventually(lambda: state_of(frozen.pid) == "T", within=START)  # with a batch under way
        eventually(lambda: share(killed), within=START)
        second = start()
        eventually(lambda: share(killed, second), within=START)
        killed.kill()
        eventually(lambda: share(second), within=LEASE + START)
        os.kill(frozen.pid, signal.SIGCONT)
        frozen.wait_for_line("lease lost")
        eventually(lambda: share(second, frozen), within=START)
        second.kill()
        eventually(lambda: share(frozen), within=LEASE + START)
    finally:
        enough.set()
        writer.join()

    eventually(lambda: positions(store_dsn, "parcels") == [moves * len(KEYS)] * SHARDS, within=60)
    found = published(kafka.bootstrap, topic)
    assert all(in_order(found, key, moves) for key in KEYS)
    assert repeats_are_identical(found)
