"""`counterfoil inbox prune` forgets what Kafka cannot bring again, says what keeps the rest, and never guesses."""

import json
from collections.abc import Iterator

import pytest
from psycopg import Connection

from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from projections.decoding import Category, Faulty
from projections.inbox import claim
from projections.inbox_ranges import AHEAD
from projections.inventory.projection import PROJECTION
from projections.quarantine import Parked, park
from tests.acceptance.test_command_line import Run, in_environment
from tests.support.group import commit, delete_records
from tests.support.inbox import days_ago, horizons, id_at, known, remember_from, send_at
from tests.support.inventory import connected
from tests.support.kafka import EmptyTopics, Kafka
from tests.support.messages import placed, record

pytestmark = pytest.mark.kafka

NAME, TOPIC = PROJECTION.consumer_name, OrderPlaced.topic


@pytest.fixture
def house(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        yield connection


@pytest.fixture
def counterfoil(inventory_dsn: str, kafka: Kafka, empty_topics: EmptyTopics) -> Run:
    empty_topics(TOPIC, OrderCancelled.topic)
    return in_environment(
        {"COUNTERFOIL_INVENTORY_DSN": inventory_dsn, "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap}
    )


def kept_by(counterfoil: Run, *options: str) -> list[list[str]]:
    result = counterfoil("inbox", "prune", "projections.inventory", "--json", *options)
    assert result.returncode == 0, result.stderr
    return [each["kept_by"] for each in json.loads(result.stdout)]


def test_a_range_goes_when_topics_offsets_and_time_allow_it(counterfoil: Run, kafka: Kafka, house: Connection) -> None:
    first, second = remember_from(house, NAME, 60), remember_from(house, NAME, 40)
    young = remember_from(house, NAME, 5)
    # Published just now and of fifty days ago: the topic still has it, whatever its retention.
    late = placed("ord_1", event_id=id_at(days_ago(house, 50)))
    send_at(kafka.bootstrap, TOPIC, late, days_ago(house, 0))
    rehearsed = kept_by(counterfoil, "--dry-run")
    assert rehearsed[0] == []
    assert any(f"{TOPIC}/0 still has a record of" in reason for reason in rehearsed[1])
    assert any(f"{TOPIC}/0 has a record of" in reason and "not yet read" in reason for reason in rehearsed[1])
    assert any(f"{TOPIC} keeps its records for 168 h" in reason for reason in rehearsed[-1])
    assert (known(house, NAME), horizons(house)) == ({*first, *second, *young}, {})

    kept_by(counterfoil)
    assert known(house, NAME) == {*second, *young}

    commit(kafka.bootstrap, NAME, TOPIC, 1)
    assert not any("not yet read" in reason for reason in kept_by(counterfoil)[0])
    assert known(house, NAME) == {*second, *young}

    delete_records(kafka.bootstrap, TOPIC, before=1)
    kept_by(counterfoil)
    assert known(house, NAME) == set(young)
    assert horizons(house) == {NAME: f"evt_{int(second[0][4:9], 16) + 1:05x}"}


def test_a_batch_under_way_keeps_ranges_from_being_made_ahead_and_none_from_being_judged(
    counterfoil: Run, inventory_dsn: str, house: Connection
) -> None:
    remember_from(house, "retired", 60)
    last = f"processed_events_{(days_ago(house, 0) >> 28) + AHEAD:05x}"
    house.execute(f"DROP TABLE {last}")
    with connected(inventory_dsn) as consumer, consumer.transaction():
        claim(consumer, NAME, [id_at(days_ago(house, 0))])
        [[reason]] = kept_by(counterfoil)
    assert reason == "retired has rows in it, and no projection of that name is known here"


def test_without_an_answer_from_kafka_nothing_is_forgotten(inventory_dsn: str, house: Connection) -> None:
    ids = remember_from(house, NAME, 60)
    counterfoil = in_environment(
        {"COUNTERFOIL_INVENTORY_DSN": inventory_dsn, "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    )
    result = counterfoil("inbox", "prune", "projections.inventory")
    assert (result.returncode, "Nothing was dropped" in result.stderr) == (1, True)
    assert known(house, NAME) == set(ids)


def test_released_entries_go_when_they_are_asked_for_and_kafka_has_nothing_of_their_time(
    counterfoil: Run, house: Connection
) -> None:
    park(house, NAME, [Parked(record(b"{}"), Faulty(Category.NOT_JSON, "as the test wants it"))])
    house.execute("UPDATE quarantined_events SET state = 'released', closed_at = now() - interval '60 days'")
    assert counterfoil("inbox", "prune", "projections.inventory", "--closed-before", "1", "--dry-run").returncode == 2
    kept = counterfoil("inbox", "prune", "projections.inventory", "--closed-before", "90")
    assert "0 released entries" in kept.stderr
    gone = counterfoil("inbox", "prune", "projections.inventory", "--closed-before", "30")
    assert (gone.returncode, "1 released entries and 0 sent effects removed" in gone.stderr) == (0, True)
