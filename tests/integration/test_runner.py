"""From Kafka to the database and back to the offset: what is applied, how often, and in which order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count as counter
from itertools import pairwise
from threading import Event

import pytest
from psycopg import Connection
from psycopg.errors import DeadlockDetected
from pydantic import field_validator

from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from infrastructure import metrics
from projections.base import Answer, BatchProjection, NotYet, Quarantine
from projections.inventory.projection import Inventory
from projections.inventory.queries import stock
from projections.runner import Runner
from tests.support.group import committed, forget
from tests.support.inventory import connected, count, everything, fill
from tests.support.kafka import Kafka, MakeTopic, grow
from tests.support.messages import Sender, cancelled, placed
from tests.support.projecting import projecting, running, settings
from tests.support.tally import CREATE, Tally, Then, tally
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture
def database(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


@pytest.fixture
def name(unique_name: Callable[[str], str]) -> str:
    """Of the consumer and its group."""
    return unique_name("tally")


class InventoryOn(Inventory):
    """The inventory under a name and on topics of the test."""

    def __init__(self, consumer_name: str, *topics: str) -> None:
        self.consumer_name, self._topics = consumer_name, topics

    @property
    def topics(self) -> tuple[str, ...]:
        return self._topics


def outcomes(name: str, outcome: str) -> float:
    return float(metrics.INBOX_EVENTS.labels(name, outcome)._value.get())


def test_events_are_applied_once_and_in_order_and_their_offsets_committed(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic = topics("orders")
    events = [placed(f"ord_{n % 7}", ("pen", 1)) for n in range(1_200)]
    Sender(kafka.bootstrap).contracts(topic, *events)
    with projecting(Tally(name, (topic,)), inventory_dsn, kafka.bootstrap):
        eventually(lambda: len(tally(database, name)) == len(events), within=30)
        eventually(lambda: committed(kafka.bootstrap, name, topic) == len(events))
    assert tally(database, name) == [event.event_id for event in events]


def test_an_event_type_that_is_not_handled_is_counted_and_passed(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic, sender = topics("orders"), Sender(kafka.bootstrap)
    for _ in range(3):
        sender.send(topic, b'{"eventType":"OrderShipped","anything":true}', b"ord_1")
    sender.flush()
    with projecting(Tally(name, (topic,)), inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 3, within=20)
    assert (outcomes(name, "ignored"), count(database, "quarantined_events")) == (3, 0)


def test_all_is_delivered_again_and_absorbed_when_the_groups_offsets_are_gone(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic, sender = topics("orders"), Sender(kafka.bootstrap)
    fill(database, {"pen": 100})
    orders: list[Contract] = [placed(f"ord_{n}", ("pen", 1)) for n in range(50)]
    sender.contracts(topic, *orders, cancelled("ord_7"), placed("ord_none"))
    inventory = InventoryOn(name, topic)
    with projecting(inventory, inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 52, within=20)
    before = everything(database, ("stock", "reservations", "reservation_lines", "processed_events"))
    parked = everything(database, ("quarantined_events",))
    forget(kafka.bootstrap, name)
    with projecting(inventory, inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 52, within=20)
    assert (outcomes(name, "duplicate"), outcomes(name, "quarantined")) == (52, 1)
    assert everything(database, tuple(before)) == before
    assert everything(database, ("quarantined_events",)) == parked


def fails_for(order_id: str, error: Exception, times: int = 1_000_000) -> tuple[Then, list[str]]:
    """A handler that fails for this order so many times, and a list of the orders that it was called with."""
    called: list[str] = []

    def then(contract: Contract, tx: Connection) -> None:
        called.append(contract.key)
        if contract.key == order_id and called.count(order_id) <= times:
            raise error

    return then, called


def test_an_event_whose_handler_always_fails_is_quarantined_and_its_neighbours_are_applied(
    kafka: Kafka,
    topics: MakeTopic,
    inventory_dsn: str,
    database: Connection,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = topics("orders")
    events = [placed(f"ord_{n}", ("pen", 1)) for n in range(50)]
    then, _ = fails_for("ord_20", RuntimeError("customer cus_17 lives in Testtown"))
    Sender(kafka.bootstrap).contracts(topic, *events)
    with projecting(Tally(name, (topic,), then), inventory_dsn, kafka.bootstrap, handler_attempts=4):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 50, within=30)
    assert tally(database, name) == [event.event_id for event in events if event.order_id != "ord_20"]
    row = 'SELECT "offset", event_id, value, category, reason FROM quarantined_events'
    [(offset, event_id, value, category, reason)] = database.execute(row).fetchall()
    assert (offset, event_id, value, category) == (20, events[20].event_id, events[20].to_bytes(), "handler")
    assert "RuntimeError" in reason
    assert "4 times" in reason
    assert "cus_17" not in reason
    failures = [vars(each) for each in caplog.records if each.getMessage() == "handling failed"]
    assert [(each["event_id"], each["attempt"]) for each in failures] == [(event_id, n) for n in (1, 2, 3, 4)]


def test_a_handler_that_fails_fewer_times_than_it_may_costs_nothing(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic = topics("orders")
    event = placed("ord_1", ("pen", 1))
    then, called = fails_for("ord_1", RuntimeError("as the test wants it"), times=2)
    Sender(kafka.bootstrap).contracts(topic, event)
    with projecting(Tally(name, (topic,), then), inventory_dsn, kafka.bootstrap, handler_attempts=3):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 1, within=20)
    assert (tally(database, name), called) == ([event.event_id], ["ord_1"] * 3)
    assert count(database, "quarantined_events") == 0


def test_trouble_that_passes_spends_no_attempt_and_nothing_overtakes_the_event(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic = topics("orders")
    events = [placed("ord_1", ("pen", 1)), placed("ord_1", ("pen", 1)), placed("ord_1", ("pen", 1)), placed("ord_2")]
    then, called = fails_for("ord_1", DeadlockDetected("as the test wants it"), times=6)
    Sender(kafka.bootstrap).contracts(topic, *events)
    with projecting(Tally(name, (topic,), then), inventory_dsn, kafka.bootstrap, handler_attempts=1):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 4, within=30)
    assert tally(database, name) == [event.event_id for event in events]
    assert called.count("ord_1") == 9
    assert count(database, "quarantined_events") == 0


def test_a_missing_table_is_nobodys_fault_and_is_waited_for(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic = topics("orders")
    events = [placed("ord_1"), placed("ord_2")]
    database.execute("ALTER TABLE tally RENAME TO not_yet")
    Sender(kafka.bootstrap).contracts(topic, *events)
    with projecting(Tally(name, (topic,)), inventory_dsn, kafka.bootstrap, handler_attempts=1):
        eventually(lambda: metrics.INBOX_RETRIES.labels(name, "42P01")._value.get() >= 3, within=20)
        database.execute("ALTER TABLE not_yet RENAME TO tally")
        eventually(lambda: len(tally(database, name)) == 2, within=20)
    assert count(database, "quarantined_events") == 0


def test_what_a_handler_cannot_apply_yet_waits_without_an_attempt_while_what_came_before_it_is_applied(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic = topics("orders")
    events = [placed("ord_1"), placed("ord_2"), placed("ord_3")]
    may_go_on = Event()

    def then(contract: Contract, _tx: Connection) -> NotYet | None:
        return NotYet("its price list is not there") if contract.key == "ord_2" and not may_go_on.is_set() else None

    Sender(kafka.bootstrap).contracts(topic, *events)
    with projecting(Tally(name, (topic,), then), inventory_dsn, kafka.bootstrap, handler_attempts=1):
        eventually(lambda: metrics.INBOX_RETRIES.labels(name, "HandlerWaits")._value.get() >= 2, within=30)
        assert tally(database, name) == [events[0].event_id]
        may_go_on.set()
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 3, within=30)
    assert tally(database, name) == [event.event_id for event in events]
    assert count(database, "quarantined_events") == 0


def test_what_a_handler_cannot_apply_yet_holds_its_own_partition_and_no_other(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic, sender = topics("orders", partitions=2), Sender(kafka.bootstrap)
    stuck, behind, others = placed("ord_1"), placed("ord_2"), [placed("ord_3") for _ in range(20)]
    may_go_on = Event()

    def then(contract: Contract, _tx: Connection) -> NotYet | None:
        return NotYet("its price list is not there") if contract.key == "ord_1" and not may_go_on.is_set() else None

    with projecting(Tally(name, (topic,), then), inventory_dsn, kafka.bootstrap):
        sender.contracts(topic, stuck, behind, partition=0)
        eventually(lambda: metrics.INBOX_RETRIES.labels(name, "HandlerWaits")._value.get() >= 1, within=30)
        sender.contracts(topic, *others, partition=1)
        eventually(lambda: committed(kafka.bootstrap, name, topic, 1) == 20, within=30)
        assert tally(database, name) == [event.event_id for event in others]
        assert metrics.SUBSCRIBER_HELD.labels(name)._value.get() == 1
        may_go_on.set()
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 2, within=30)
    assert tally(database, name)[-2:] == [stuck.event_id, behind.event_id]


def test_a_handlers_refusal_passes_the_offset(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic = topics("orders")

    def then(contract: Contract, tx: Connection) -> Quarantine | None:
        return Quarantine("not for us") if contract.key == "ord_1" else None

    Sender(kafka.bootstrap).contracts(topic, placed("ord_0"), placed("ord_1"), placed("ord_2"))
    with projecting(Tally(name, (topic,), then), inventory_dsn, kafka.bootstrap):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 3, within=20)
    assert (len(tally(database, name)), outcomes(name, "quarantined")) == (2, 1)


def test_a_batch_that_takes_too_long_is_done_in_smaller_parts(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic, patience = topics("orders"), Event()
    events = [placed(f"ord_{n}") for n in range(40)]
    Sender(kafka.bootstrap).contracts(topic, *events)

    def slowly(contract: Contract, tx: Connection) -> None:
        patience.wait(0.05)

    slow = Tally(name, (topic,), slowly)
    with running([Runner(slow, inventory_dsn, settings(kafka.bootstrap), longest_batch=0.5)]):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 40, within=60)
    assert tally(database, name) == [event.event_id for event in events]


class SlowToPrepare(Tally):
    """Preparing alone takes longer than a batch may, however small it is."""

    def __init__(self, consumer_name: str, topic: str) -> None:
        super().__init__(consumer_name, (topic,))
        self.prepared: list[int] = []
        """How many events each time."""

    def prepare(self, contracts: Sequence[Contract], tx: Connection) -> None:
        self.prepared.append(len(contracts))
        tx.execute("SELECT pg_sleep(0.3)")


def test_a_batch_that_is_slow_before_its_first_event_gets_through_in_few_steps_and_is_told_of(
    kafka: Kafka,
    topics: MakeTopic,
    inventory_dsn: str,
    database: Connection,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = topics("orders")
    events = [placed(f"ord_{n}") for n in range(5)]
    Sender(kafka.bootstrap).contracts(topic, *events)
    slow = SlowToPrepare(name, topic)
    with running([Runner(slow, inventory_dsn, settings(kafka.bootstrap), longest_batch=0.1)]):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 5, within=30)
    assert tally(database, name) == [event.event_id for event in events]
    assert slow.prepared == [5, 2, 1, 1, 1, 1, 1]
    assert metrics.INBOX_RETRIES.labels(name, "TooSlow")._value.get() == 2
    told = [vars(each) for each in caplog.records if each.getMessage() == "the batch takes too long"]
    assert [(each["records"], each["next"]) for each in told] == [(5, 2), (2, 1)]


class SlowTogether(Tally, BatchProjection):
    """More than ten events at once take longer than a batch may."""

    def __init__(self, consumer_name: str, topic: str) -> None:
        super().__init__(consumer_name, (topic,))
        self.sizes: list[int] = []

    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Answer]:
        self.sizes.append(len(contracts))
        for contract in contracts:
            Tally.handle(self, contract, tx)
        if len(contracts) > 10:
            tx.execute("SELECT pg_sleep(0.6)")
        return {}


def test_after_a_batch_that_is_handled_as_a_whole_and_took_too_long_the_next_is_smaller(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic = topics("orders")
    Sender(kafka.bootstrap).contracts(topic, *(placed(f"ord_{n}") for n in range(100)))
    slow = SlowTogether(name, topic)
    with running([Runner(slow, inventory_dsn, settings(kafka.bootstrap, consume_batch_size=40), longest_batch=0.5)]):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 100, within=60)
    too_many = [(size, after) for size, after in pairwise(slow.sizes) if size > 10]
    assert too_many, "it was not put to the test"
    assert all(after <= size // 2 for size, after in too_many)


def test_what_is_coming_is_read_before_the_handler_of_what_came_is_called(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    """While PostgreSQL claims the ids; and each event is read once."""
    topic, seen = topics("orders"), list[str]()

    class Noted(OrderPlaced):
        """Notes when it is read."""

        @field_validator("order_id")
        @classmethod
        def _note(cls, order_id: str) -> str:
            seen.append(order_id)
            return order_id

    class Noting(Tally):
        contracts = (Noted,)

    def note(contract: Contract, tx: Connection) -> None:
        seen.append("handled")

    Sender(kafka.bootstrap).contracts(topic, *(placed(f"ord_{n}") for n in range(20)))
    with projecting(Noting(name, (topic,), note), inventory_dsn, kafka.bootstrap, consume_batch_size=1):
        eventually(lambda: committed(kafka.bootstrap, name, topic) == 20, within=20)
    assert [each for each in seen if each != "handled"] == [f"ord_{n}" for n in range(20)]
    read_ahead = [each for before, each in pairwise(seen) if "handled" not in (before, each)]
    assert read_ahead, "not one was there early enough, or none was read then"


def test_a_second_consumer_that_comes_in_the_middle_of_a_handler_changes_nothing(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic, entered, gate = topics("orders", partitions=2), Event(), Event()

    def wait_once(contract: Contract, tx: Connection) -> None:
        entered.set()
        assert gate.wait(60)

    events = [placed(f"ord_{n}") for n in range(200)]
    Sender(kafka.bootstrap).contracts(topic, *events)
    first = Runner(Tally(name, (topic,), wait_once), inventory_dsn, settings(kafka.bootstrap))
    with running([first]):
        assert entered.wait(20)
        with projecting(Tally(name, (topic,)), inventory_dsn, kafka.bootstrap):
            gate.set()
            eventually(lambda: len(tally(database, name)) >= 200, within=30)
            Sender(kafka.bootstrap).contracts(topic, *events)
            eventually(lambda: outcomes(name, "duplicate") >= 200, within=30)
    assert sorted(tally(database, name)) == sorted(event.event_id for event in events)


def test_two_consumers_and_two_partitions_never_sell_one_piece_twice(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic, sender, numbers = topics("orders", partitions=2), Sender(kafka.bootstrap), counter()
    fill(database, {f"sku_{turn}": 1 for turn in range(200)})
    with projecting(InventoryOn(name, topic), inventory_dsn, kafka.bootstrap, many=2):
        for turn in range(200):
            for partition in (0, 1):
                sender.contracts(topic, placed(f"ord_{next(numbers)}", (f"sku_{turn}", 1)), partition=partition)
        eventually(lambda: count(database, "reservations") == 400, within=60)
    assert {each.reserved for each in stock(database)} == {1}
    statuses = [status for _, status in everything(database)["reservations"]]
    assert (statuses.count("reserved"), statuses.count("rejected")) == (200, 200)
    assert (count(database, "quarantined_events"), outcomes(name, "applied")) == (0, 400)


def test_in_a_topic_that_grew_a_later_event_may_come_first_and_undoes_or_doubles_nothing(
    kafka: Kafka, topics: MakeTopic, inventory_dsn: str, database: Connection, name: str
) -> None:
    topic, orders = topics("orders", partitions=3), [f"ord_{n}" for n in range(60)]
    fill(database, {"pen": 100})
    Sender(kafka.bootstrap).contracts(topic, *(placed(order, ("pen", 1)) for order in orders))
    grow(kafka.bootstrap, topic, partitions=6)  # most of the keys belong elsewhere now
    Sender(kafka.bootstrap).contracts(topic, *(cancelled(order) for order in orders[:40]))
    with projecting(InventoryOn(name, topic), inventory_dsn, kafka.bootstrap, many=2):
        eventually(lambda: outcomes(name, "applied") == 100, within=60)
    assert [(each.sku, each.reserved) for each in stock(database)] == [("pen", 20)]
    statuses = [status for _, status in everything(database)["reservations"]]
    assert (statuses.count("reserved"), statuses.count("cancelled")) == (20, 40)
    assert count(database, "quarantined_events") == 0
