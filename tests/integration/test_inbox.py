"""Applied exactly once: the claim of an event's id and its effect are one transaction."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest
from psycopg import OperationalError
from psycopg.errors import AdminShutdown, IdleInTransactionSessionTimeout, LockNotAvailable, UniqueViolation

from domain.contracts import Contract
from infrastructure.postgres import Connection
from projections.base import Quarantine
from projections.batch import Outcome
from projections.inbox import Claims, claim, claim_or_tell
from tests.support.inventory import apply, connected, count
from tests.support.messages import placed
from tests.support.tally import CREATE, Tally, tally
from tests.support.together import together
from tests.support.wait import eventually


@pytest.fixture
def one(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


@pytest.fixture
def two(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        yield connection


class Gate:
    """Holds a handler inside its transaction until it is opened; then the handler ends, or fails."""

    def __init__(self, fails: bool = False) -> None:
        self.entered, self.open, self._fails = Event(), Event(), fails

    def __call__(self, contract: Contract, tx: Connection) -> Quarantine | None:
        self.entered.set()
        assert self.open.wait(20)
        if self._fails:
            raise RuntimeError("as the test wants it")
        return None


def has_no_session(connection: Connection, pid: int) -> bool:
    return connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is None


def is_waiting_for_a_lock(connection: Connection, pid: int) -> bool:
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    return connection.execute(query, (pid,)).fetchone() == (True,)


def first_in_its_handler_and_second_waiting(
    dsn: str, one: Connection, two: Connection, gate: Gate, threads: ThreadPoolExecutor
) -> tuple[Future[Outcome], Future[Outcome]]:
    event = placed("ord_1", ("pen", 1))
    first = threads.submit(partial(apply, one, event, projection=Tally(then=gate)))
    assert gate.entered.wait(20)
    second = threads.submit(partial(apply, two, event, projection=Tally()))
    with connected(dsn) as watcher:
        eventually(lambda: is_waiting_for_a_lock(watcher, two.info.backend_pid))
    gate.open.set()
    return first, second


def test_an_event_delivered_to_two_consumers_at_the_same_moment_has_one_effect(
    one: Connection, two: Connection
) -> None:
    for turn in range(100):
        event = placed(f"ord_{turn}", ("pen", 1))
        outcomes = together([partial(apply, each, event, projection=Tally()) for each in (one, two)])
        assert sorted((each.applied, each.duplicates) for each in outcomes) == [(0, 1), (1, 0)]
    assert len(tally(one)) == len(set(tally(one))) == 100


def test_an_event_delivered_twice_in_a_row_has_one_effect_and_ends_as_success(
    one: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    event = placed("ord_1", ("pen", 1))
    with caplog.at_level(logging.INFO):
        outcomes = [apply(one, event, projection=Tally()) for _ in range(2)]
    assert outcomes == [Outcome(1, 0, []), Outcome(0, 1, [])]
    assert tally(one) == [event.event_id]
    assert caplog.records == []


def test_a_second_delivery_while_the_first_is_in_its_handler_waits_and_has_no_effect(
    inventory_dsn: str, one: Connection, two: Connection
) -> None:
    with ThreadPoolExecutor() as threads:
        first, second = first_in_its_handler_and_second_waiting(inventory_dsn, one, two, Gate(), threads)
        assert (first.result(20), second.result(20)) == (Outcome(1, 0, []), Outcome(0, 1, []))
    assert len(tally(one)) == 1


def test_a_second_delivery_has_the_effect_when_the_first_one_rolls_back(
    inventory_dsn: str, one: Connection, two: Connection
) -> None:
    with ThreadPoolExecutor() as threads:
        first, second = first_in_its_handler_and_second_waiting(inventory_dsn, one, two, Gate(fails=True), threads)
        assert isinstance(first.exception(20), RuntimeError)
        assert second.result(20) == Outcome(1, 0, [])
    assert len(tally(one)) == 1


def test_of_an_event_that_comes_twice_in_one_batch_exactly_the_first_is_applied(one: Connection) -> None:
    first, second, other = placed("ord_1", event_id="evt_1"), placed("ord_9", event_id="evt_1"), placed("ord_2")
    outcome = apply(one, first, other, second, first, projection=Tally())
    assert outcome == Outcome(2, 2, [])
    assert one.execute("SELECT order_id FROM tally ORDER BY place").fetchall() == [("ord_1",), ("ord_2",)]


def test_consumers_with_the_same_events_in_another_order_never_deadlock(one: Connection, two: Connection) -> None:
    for turn in range(50):
        events = [placed(f"ord_{turn}_{n}", ("pen", 1)) for n in range(30)]
        together(
            [partial(apply, one, *events, projection=Tally()), partial(apply, two, *events[::-1], projection=Tally())]
        )
    assert len(tally(one)) == len(set(tally(one))) == 50 * 30


def test_two_consumer_names_in_one_database_both_act(one: Connection) -> None:
    event = placed("ord_1", ("pen", 1))
    for name in ("inventory", "billing", "inventory", "billing"):
        apply(one, event, projection=Tally(name))
    assert (tally(one, "inventory"), tally(one, "billing")) == ([event.event_id], [event.event_id])


def test_the_database_itself_refuses_a_second_claim(one: Connection) -> None:
    insert = "INSERT INTO processed_events (consumer_name, event_id) VALUES ('inventory', 'evt_1')"
    one.execute(insert)
    with pytest.raises(UniqueViolation):
        one.execute(insert)


def test_a_claim_is_gone_with_its_transaction(one: Connection) -> None:
    with pytest.raises(ZeroDivisionError), one.transaction():
        assert claim(one, "tally", ["evt_1"]) == {"evt_1"}
        raise ZeroDivisionError
    assert claim(one, "tally", ["evt_1"]) == {"evt_1"}
    assert claim(one, "tally", ["evt_1"]) == set()


def test_ids_are_being_claimed_while_something_else_is_done(one: Connection, two: Connection) -> None:
    """The claim waits for another one of the same id, and that ends because of what is done meanwhile."""
    with connected(one.info.dsn + f" password={one.info.password}") as watcher, two.transaction():
        one.execute("BEGIN")
        claim(one, "tally", ["evt_1"])

        def meanwhile() -> None:
            eventually(lambda: is_waiting_for_a_lock(watcher, two.info.backend_pid))
            one.execute("COMMIT")

        assert claim_or_tell(two, "tally", ["evt_1", "evt_2"], meanwhile) == Claims({"evt_2"}, set())


def test_a_client_that_stands_still_while_its_claim_is_done_loses_its_session_and_so_the_claim(
    one: Connection, two: Connection
) -> None:
    """As every client that sleeps inside a transaction, so that another consumer need not wait for it for ever."""

    def stand_still() -> None:
        eventually(lambda: has_no_session(one, two.info.backend_pid))

    two.execute("SET idle_in_transaction_session_timeout = '50ms'")
    with pytest.raises((IdleInTransactionSessionTimeout, OperationalError)), two.transaction():
        claim_or_tell(two, "tally", ["evt_1"], stand_still)
        two.execute("SELECT 1")
    assert claim(one, "tally", ["evt_1"]) == {"evt_1"}


def test_a_claim_whose_session_is_ended_says_why(one: Connection, two: Connection) -> None:
    def end_it() -> None:
        eventually(lambda: is_waiting_for_a_lock(one, two.info.backend_pid))
        one.execute("SELECT pg_terminate_backend(%s)", (two.info.backend_pid,))

    with one.transaction(), pytest.raises(AdminShutdown), two.transaction():
        claim(one, "tally", ["evt_1"])
        claim_or_tell(two, "tally", ["evt_1"], end_it)


def test_a_claim_that_fails_while_something_else_is_done_raises_its_own_error(one: Connection, two: Connection) -> None:
    done: list[str] = []
    with one.transaction(), pytest.raises(LockNotAvailable), two.transaction():
        claim(one, "tally", ["evt_1"])
        two.execute("SET LOCAL lock_timeout = '10ms'")
        claim_or_tell(two, "tally", ["evt_1"], lambda: done.append("meanwhile"))
    assert done == ["meanwhile"]
    assert claim(two, "tally", ["evt_2"]) == {"evt_2"}


def test_events_of_a_batch_are_handled_in_their_order(one: Connection) -> None:
    events = [placed("ord_1", ("pen", 1)) for _ in range(20)]
    apply(one, *events, projection=Tally())
    assert tally(one) == [event.event_id for event in events]


def test_a_handler_that_fails_leaves_nothing_of_its_batch(one: Connection) -> None:
    def fail(contract: Contract, tx: Connection) -> None:
        if contract.key == "ord_2":
            raise RuntimeError("as the test wants it")

    with pytest.raises(RuntimeError):
        apply(one, placed("ord_1"), placed("ord_2"), placed("ord_3"), projection=Tally(then=fail))
    assert (tally(one), count(one, "processed_events")) == ([], 0)
