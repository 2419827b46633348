"""A relay killed while it redrives: repeats only, nothing lost, order kept, in whatever moment it was."""

from collections.abc import Iterator
from threading import Event

import pytest

from counterfoil.quarantine_outgoing import OutgoingQuarantine
from infrastructure.postgres import connect
from tests.support.kafka import Kafka, MakeTopic
from tests.support.large import limit_messages, note_of
from tests.support.parcels import Parcels, parcels_in
from tests.support.processes import Program, Programs
from tests.support.published import published
from tests.support.relay_program import BEFORE_ACK, BEFORE_CHECKPOINT
from tests.support.relays import checkpoint_of, in_order, relay_program, repeats_are_identical, steps
from tests.support.wait import eventually


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


@pytest.fixture
def quarantine(store_dsn: str) -> Iterator[OutgoingQuarantine]:
    with connect(store_dsn, application_name="test quarantine") as connection:
        yield OutgoingQuarantine(connection, "parcels")


@pytest.mark.kafka
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("point", "fewest_repeats"), [(BEFORE_ACK, 0), (BEFORE_CHECKPOINT, 4)])
def test_a_relay_killed_while_it_redrives_repeats_and_loses_and_reorders_nothing(
    store_dsn: str,
    kafka: Kafka,
    topics: MakeTopic,
    parcels: Parcels,
    programs: Programs,
    quarantine: OutgoingQuarantine,
    point: str,
    fewest_repeats: int,
) -> None:
    topic = topics("parcels", partitions=3, config={"max.message.bytes": "20000"})
    parcels.move("x", note=note_of(60_000))
    parcels.move_all(["x", "y"], times=3)

    def start(*arguments: str) -> Program:
        return relay_program(programs, store_dsn, kafka, topic, *arguments, relay_lease=1.0)

    first = start()
    eventually(lambda: checkpoint_of(store_dsn).position == 7, within=90)
    assert first.stop(within=60) == 0
    limit_messages(kafka, topic, 1_048_588)
    quarantine.redrive("x", wait=0, stop=Event())

    killed = start("--at", point, "--batch", "1")  # of the redrive: nothing else is to be published
    assert killed.wait(within=90) == -9
    assert len(quarantine.list(key="x", closed=False, limit=9)) == 4
    start()
    parcels.move_all(["x", "y"], times=2)
    eventually(lambda: checkpoint_of(store_dsn).position == 11, within=90)
    eventually(lambda: not quarantine.list(key="x", closed=False, limit=9), within=90)
    eventually(lambda: len(steps(published(kafka.bootstrap, topic), "x")) == 6, within=90)

    found = published(kafka.bootstrap, topic)
    assert in_order(found, "x", 6)
    assert in_order(found, "y", 5)
    assert repeats_are_identical(found)
    assert fewest_repeats <= sum(each.key == b"x" for each in found) - 6 <= 4
