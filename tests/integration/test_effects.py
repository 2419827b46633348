"""External effects: asked for with the event, called for after the commit, in order per key, never forgotten unseen."""

from collections.abc import Iterator
from threading import Event

import pytest
from psycopg import Connection

from domain.contracts import Contract
from infrastructure.migrate import migrate
from projections import effects
from projections.effects.queue import Effect, NoSuchEffect, Queue, count, redrive, unsent
from projections.effects.worker import Refused, Worker
from projections.notifications import MIGRATIONS
from projections.notifications.projection import ORDER_CONFIRMED, PROJECTION
from tests.support.effects import Recorder, numbers, working
from tests.support.inventory import apply, connected
from tests.support.messages import placed
from tests.support.tally import CREATE, Tally
from tests.support.wait import eventually

NAME = PROJECTION.consumer_name


@pytest.fixture
def dsn(empty_dsn: str) -> str:
    migrate(empty_dsn, MIGRATIONS)
    return empty_dsn


@pytest.fixture
def house(dsn: str) -> Iterator[Connection]:
    with connected(dsn) as connection:
        connection.execute(CREATE)
        yield connection


def ask(house: Connection, *orders: str) -> list[str]:
    """Applies an order placed for each, one after another; the idempotency keys of what was asked for."""
    events = [placed(order) for order in orders]
    for event in events:
        apply(house, event, projection=PROJECTION)
    return [f"{event.event_id}:{ORDER_CONFIRMED}" for event in events]


def worker(dsn: str, recorder: Recorder, **changes: float) -> Worker:
    return Worker(NAME, dsn, {ORDER_CONFIRMED: recorder}, **changes)


def test_an_effect_is_asked_for_once_whatever_is_delivered_twice(house: Connection) -> None:
    event = placed("ord_1")
    for _ in range(3):
        apply(house, event, event, projection=PROJECTION)
    [row] = house.execute("SELECT id, key, content, sent_at FROM outgoing_effects").fetchall()
    assert row == (f"{event.event_id}:order-confirmed", "ord_1", {"customerId": "cus_17", "orderId": "ord_1"}, None)


def test_nothing_is_asked_for_by_a_transaction_that_rolls_back(house: Connection) -> None:
    def fail(contract: Contract, tx: Connection) -> None:
        effects.request(tx, "tally", contract, "mail", {})
        raise RuntimeError("as the test wants it")

    with pytest.raises(RuntimeError):
        apply(house, placed("ord_1"), projection=Tally(then=fail))
    assert numbers(house) == (0, 0, 0)


def test_a_projection_under_a_new_name_asks_for_nothing_that_was_asked_for_before(house: Connection) -> None:
    event = placed("ord_1")
    for name in ("old name", "new name"):
        with house.transaction():
            effects.request(house, name, event, "mail", {})
    assert house.execute("SELECT consumer_name FROM outgoing_effects").fetchall() == [("old name",)]


def test_a_rebuild_asks_for_nothing_and_what_comes_after_it_does(house: Connection) -> None:
    with house.transaction():
        effects.silence(house)
        PROJECTION.handle(placed("ord_1"), house)
    assert numbers(house) == (0, 0, 0)
    ask(house, "ord_1")
    assert numbers(house) == (1, 0, 0)


def test_what_was_asked_for_is_sent_once_under_its_key_by_any_number_of_workers(dsn: str, house: Connection) -> None:
    recorder = Recorder()
    keys = ask(house, *(f"ord_{n % 10}" for n in range(60)))
    with working([worker(dsn, recorder) for _ in range(4)]):
        eventually(lambda: numbers(house) == (0, 60, 0), within=60)
    assert sorted(recorder.ids) == sorted(keys)
    for n in range(10):
        of_one_key = [each.id for each in recorder.calls if each.key == f"ord_{n}"]
        assert of_one_key == keys[n::10]


def test_what_fails_for_now_is_tried_again_and_nothing_of_its_key_overtakes_it(dsn: str, house: Connection) -> None:
    first, second, other = ask(house, "ord_1", "ord_1", "ord_2")

    def fail_twice(effect: Effect) -> None:
        if effect.id == first and effect.attempts < 3:
            raise ConnectionError("the address of a customer")

    recorder = Recorder(fail_twice)
    with working([worker(dsn, recorder)]):
        eventually(lambda: numbers(house) == (0, 3, 0), within=60)
    assert [each for each in recorder.ids if each != other] == [first, first, first, second]
    assert recorder.ids.index(other) < 3


def test_a_problem_is_kept_by_its_kind_without_its_text(dsn: str, house: Connection) -> None:
    ask(house, "ord_1")

    def fail(effect: Effect) -> None:
        raise ConnectionError("the address of a customer")

    stop = Event()
    stop.set()
    worker(dsn, Recorder(fail)).step(stop)
    [left] = unsent(house, NAME, 10)
    assert (left.last_problem, left.attempts, left.failed_at) == ("ConnectionError", 1, None)
    assert left.due_at > left.requested_at


def test_what_is_refused_for_good_is_seen_and_lets_others_pass_until_it_is_redriven(
    dsn: str, house: Connection
) -> None:
    first, second = ask(house, "ord_1", "ord_1")
    refusing = Recorder(lambda effect: Refused("no such address") if effect.id == first else None)
    with working([worker(dsn, refusing)]):
        eventually(lambda: numbers(house) == (0, 1, 1), within=30)
    assert refusing.ids == [first, second]
    [left] = unsent(house, NAME, 10)
    assert (left.id, left.last_problem, count(house, NAME)) == (first, "no such address", (0, 1))
    with pytest.raises(NoSuchEffect):
        redrive(house, NAME, second)
    assert redrive(house, NAME, first) == 1
    with working([worker(dsn, Recorder())]):
        eventually(lambda: numbers(house) == (0, 2, 0), within=30)


def test_no_transaction_is_open_while_the_provider_is_called(dsn: str, house: Connection) -> None:
    ask(house, "ord_1")
    states: list[list[tuple[object, ...]]] = []
    query = (
        "SELECT state FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'counterfoil effects%'"
    )
    with connected(dsn) as watcher:
        recorder = Recorder(lambda effect: states.append(watcher.execute(query).fetchall()))
        worker(dsn, recorder).step(Event())
    assert states == [[("idle",)]]


def test_a_provider_that_does_not_answer_is_asked_again_with_the_same_key(dsn: str, house: Connection) -> None:
    [key] = ask(house, "ord_1")
    gate = Event()

    def hang_once(effect: Effect) -> None:
        if effect.attempts == 1:
            gate.wait(60)

    recorder = Recorder(hang_once)
    with working([worker(dsn, recorder, provider_seconds=0.2)]):
        eventually(lambda: numbers(house) == (0, 1, 0), within=30)
    gate.set()
    assert recorder.ids == [key, key]


def test_a_worker_that_was_replaced_may_not_say_what_became_of_an_effect(house: Connection) -> None:
    ask(house, "ord_1")
    slow, other = Queue(NAME, 0.0), Queue(NAME, 60.0)
    taken = slow.take(house)
    assert taken is not None
    assert other.take(house) is not None
    slow.refused(house, taken, "far too late")
    slow.sent(house, taken)
    assert numbers(house) == (1, 0, 0)
    other.sent(house, taken)
    assert numbers(house) == (0, 1, 0)


def test_an_effect_that_no_code_here_can_send_waits_for_code_that_can(dsn: str, house: Connection) -> None:
    ask(house, "ord_1")
    stop = Event()
    stop.set()
    Worker(NAME, dsn, {}).step(stop)
    [left] = unsent(house, NAME, 10)
    assert (left.failed_at, left.last_problem) == (None, "this code has no provider for it")
