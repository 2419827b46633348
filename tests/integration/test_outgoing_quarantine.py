"""What a relay writes down of events that cannot leave, and what it knows of it afterwards."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from psycopg.errors import LockNotAvailable

from infrastructure import outgoing_quarantine
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.lease import Lease, LeaseLost, Shard, acquire
from infrastructure.outgoing import MessageMapper
from infrastructure.outgoing_quarantine import Category, Kind, Parked, hash_of, park, parked_aggregates
from infrastructure.outgoing_records import count, discard, records
from infrastructure.parking import Parking
from infrastructure.postgres import Connection, connect
from infrastructure.publisher import OutgoingMessage
from infrastructure.shards import shard_of
from tests.support.parcels import Parcels, parcel_outbox, parcels_in
from tests.support.relays import steps
from tests.support.wait import eventually

LARGEST = 10_000
RELAY = "parcels"
WAITING = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"


@pytest.fixture
def parcels(store_dsn: str) -> Iterator[Parcels]:
    with parcels_in(store_dsn) as parcels:
        yield parcels


def lease_of(parcels: Parcels, shard: Shard | str = RELAY) -> Lease:
    acquired = acquire(parcels.connection, shard, 60)
    assert acquired is not None
    return acquired[0]


def stored(parcels: Parcels) -> list[RecordedEvent]:
    return list(EventReader(parcels.connection).read(0, 10_000).events)


@dataclass
class Sorted:
    messages: list[OutgoingMessage]
    parked: list[Parked]

    @property
    def why(self) -> list[tuple[str, int, str]]:
        return [(each.event.originator_id, each.event.originator_version, str(each.category)) for each in self.parked]


def parking(parcels: Parcels) -> Parking:
    """As it is after a start."""
    mapper = MessageMapper(parcel_outbox("parcels"), EventReader(parcels.connection).namespace())
    made = Parking(Shard(RELAY), mapper, LARGEST)
    made.load(parcels.connection, after=0)
    return made


def sort(parking: Parking, events: list[RecordedEvent]) -> Sorted:
    routed = [parking.route(event) for event in events]
    return Sorted([message for made, _ in routed for message in made], [aside for _, aside in routed if aside])


# --- Which events are parked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("note", "category", "problem"),
    [
        ("not in public!", Category.UNMAPPABLE, "note"),
        ("n" * (LARGEST + 1), Category.REFUSED, "more than 10000 bytes"),
    ],
    ids=["unmappable", "too large"],
)
def test_what_cannot_leave_is_parked_with_all_that_comes_after_it_of_its_aggregate_and_nothing_else(
    parcels: Parcels, note: str, category: Category, problem: str
) -> None:
    parcels.move("x")
    parcels.move("x", note=note)
    parcels.move_all(["x", "y"], times=2)

    found = sort(parking(parcels), stored(parcels))

    assert steps(found.messages, "x") == [1]
    assert steps(found.messages, "y") == [1, 2]
    assert found.why == [("x", 2, category), ("x", 3, "behind"), ("x", 4, "behind")]
    assert [each.kind for each in found.parked] == [Kind.CULPRIT, Kind.FOLLOWER, Kind.FOLLOWER]
    assert problem in found.parked[0].problem


def test_a_message_without_a_key_is_parked(parcels: Parcels) -> None:
    parcels.move("")
    parcels.move("y")
    found = sort(parking(parcels), stored(parcels))
    assert found.why == [("", 1, "no_key")]
    assert steps(found.messages) == [1]


def test_what_becomes_no_message_is_never_parked_behind_another(parcels: Parcels) -> None:
    parcels.move("x", note="!")
    parcels.weigh("x")
    assert sort(parking(parcels), stored(parcels)).why == [("x", 1, "unmappable")]


def test_what_kafka_has_refused_is_parked_when_it_comes_again(parcels: Parcels) -> None:
    parcels.move("x")
    refused = parcels.move("x")
    parcels.move("x")
    known = parking(parcels)
    assert not sort(known, stored(parcels)).parked

    known.refuse(refused, "MSG_SIZE_TOO_LARGE")

    found = sort(known, stored(parcels))
    assert (steps(found.messages), found.why) == ([1], [("x", 2, "refused"), ("x", 3, "behind")])


def test_two_hundred_poison_events_at_the_head_cost_one_batch_and_starve_nobody(parcels: Parcels) -> None:
    for number in range(200):
        parcels.move(f"poison-{number}", note="!")
    parcels.move_all(["x", "y"], times=1)

    found = sort(parking(parcels), stored(parcels))

    assert (len(found.parked), len(found.messages)) == (200, 2)


# --- What is written down ------------------------------------------------------------------------------


def test_after_a_restart_the_later_events_of_a_parked_aggregate_are_parked_too(parcels: Parcels) -> None:
    parcels.move("x", note="!")
    park(parcels.connection, lease_of(parcels), sort(parking(parcels), stored(parcels)).parked)

    parcels.move("x")

    found = sort(parking(parcels), stored(parcels)[1:])
    assert (found.why, found.messages) == ([("x", 2, "behind")], [])


def test_events_that_are_met_again_are_not_parked_twice_and_those_before_them_are_published_again(
    parcels: Parcels,
) -> None:
    lease = lease_of(parcels)
    parcels.move("x")
    parcels.move("x", note="!")
    parcels.move("x")
    park(parcels.connection, lease, sort(parking(parcels), stored(parcels)).parked)

    again = sort(parking(parcels), stored(parcels))
    park(parcels.connection, lease, again.parked)

    assert steps(again.messages) == [1]
    assert [each.originator_version for each in records(parcels.connection, RELAY, limit=9)] == [2, 3]


def test_an_event_that_was_discarded_is_never_published_however_far_the_relay_is_set_back(parcels: Parcels) -> None:
    parcels.move("x", note="!")
    parcels.move("x")
    park(parcels.connection, lease_of(parcels), sort(parking(parcels), stored(parcels)).parked)
    for each in records(parcels.connection, RELAY, limit=9):
        assert discard(parcels.connection, RELAY, each.id, "a duplicate of another parcel", "ann")

    parcels.move("x")

    found = sort(parking(parcels), stored(parcels))
    assert (steps(found.messages), found.parked) == ([3], [])


def test_an_event_that_is_being_discarded_while_the_relay_meets_it_again_is_not_parked_again(
    parcels: Parcels, store_dsn: str
) -> None:
    lease = lease_of(parcels)
    parcels.move("x", note="!")
    found = sort(parking(parcels), stored(parcels)).parked
    park(parcels.connection, lease, found)
    (entry,) = records(parcels.connection, RELAY, limit=9)

    with (
        connect(store_dsn, application_name="test discarder", autocommit=False) as discarder,
        connect(store_dsn, application_name="test parker") as parker,
        ThreadPoolExecutor() as pool,
    ):
        discarder.execute("SELECT 1")  # opens the transaction that it is part of
        assert discard(discarder, RELAY, entry.id, "no such parcel", "ann")
        parked = pool.submit(park, parker, lease, found)
        try:
            eventually(lambda: _waits(parcels, parker))
        finally:
            discarder.commit()
        parked.result()

    assert count(parcels.connection, RELAY) == (0, 0)


def test_of_the_last_two_of_an_aggregate_discarded_at_once_one_sees_that_nothing_is_left(
    parcels: Parcels, store_dsn: str
) -> None:
    parcels.move_all(["x", "x"], times=1)
    park(parcels.connection, lease_of(parcels), [_culprit(event) for event in stored(parcels)])
    first, second = (each.id for each in records(parcels.connection, RELAY, limit=9))

    with (
        connect(store_dsn, application_name="test first", autocommit=False) as one,
        connect(store_dsn, application_name="test second") as other,
        ThreadPoolExecutor() as pool,
    ):
        one.execute("SELECT 1")  # opens the transaction that it is part of
        assert discard(one, RELAY, first, "no such parcel", "ann")
        meanwhile = pool.submit(discard, other, RELAY, second, "no such parcel", "bob")
        try:
            eventually(lambda: meanwhile.done() or _waits(parcels, other))
        finally:
            one.commit()
        assert meanwhile.result()

    forgets = parcels.connection.execute("SELECT originator_id FROM outgoing_redrives").fetchall()
    assert (forgets, count(parcels.connection, RELAY)) == ([("x",)], (0, 0))


def _culprit(event: RecordedEvent) -> Parked:
    return Parked(event, Kind.CULPRIT, Category.UNMAPPABLE, "as the test wants it")


def _waits(parcels: Parcels, connection: Connection) -> bool:
    return parcels.connection.execute(WAITING, (connection.info.backend_pid,)).fetchone() == (True,)


def test_a_relay_whose_lease_was_taken_over_parks_nothing(parcels: Parcels, store_dsn: str) -> None:
    parcels.move("x", note="!")
    lease = lease_of(parcels)
    parcels.connection.execute("UPDATE relay_checkpoints SET epoch = epoch + 1, owner = 'the successor'")

    with pytest.raises(LeaseLost):
        park(parcels.connection, lease, sort(parking(parcels), stored(parcels)).parked)

    assert count(parcels.connection, RELAY) == (0, 0)


def test_while_a_relay_parks_nobody_takes_its_lease_over(parcels: Parcels, store_dsn: str) -> None:
    parcels.move("x", note="!")
    found = sort(parking(parcels), stored(parcels)).parked
    lease = lease_of(parcels)
    with connect(store_dsn, application_name="test parker", autocommit=False) as parker:
        parker.execute("SELECT 1")  # opens the transaction that it is part of
        park(parker, lease, found)
        parcels.connection.execute("SET lock_timeout = '100ms'")
        with pytest.raises(LockNotAvailable):
            parcels.connection.execute("UPDATE relay_checkpoints SET epoch = epoch + 1, owner = 'the successor'")


def test_a_shard_knows_the_parked_aggregates_of_its_own_only_in_whatever_pages_they_are_read(
    parcels: Parcels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing_quarantine, "_PAGE", 2)
    names = ["", "a", "a\x01", "aa", *(f"p{number}" for number in range(9))]
    for name in names:
        parcels.move(name, note="!")
    park(parcels.connection, lease_of(parcels), sort(parking(parcels), stored(parcels)).parked)

    found = [set(parked_aggregates(parcels.connection, Shard(RELAY, number, 3))) for number in range(3)]

    assert found == [{name for name in names if shard_of(name, 3) == number} for number in range(3)]
    assert [hash_of(name) % 3 for name in names] == [shard_of(name, 3) for name in names]
