"""A handler whose statements are sent ahead comes to what it would have come to without, whatever fails."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event

import psycopg
import pytest
from psycopg import Connection, Cursor
from psycopg.errors import DeadlockDetected, UniqueViolation
from psycopg.pq import PipelineStatus

from domain.contracts import Contract
from projections.applying import apply_contracts
from projections.base import Answer, NotYet, Quarantine
from projections.faults import StopAsked
from projections.pipelining import MOST_UNDER_WAY
from tests.support.inventory import apply, connected
from tests.support.messages import readable
from tests.support.pgbouncer import PgBouncer
from tests.support.sent_ahead import (
    CREATE_NARROW,
    LATE_ERROR,
    MANY,
    PLACE,
    Piped,
    Plain,
    at,
    execute,
    ids,
    orders,
    reasons,
    settle,
    settling,
)
from tests.support.tally import CREATE, Tally, tally


@pytest.fixture
def inbox(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        connection.execute(CREATE_NARROW)
        yield connection


def test_an_error_that_comes_late_is_put_down_to_the_event_of_its_statement(
    inbox: Connection, inventory_dsn: str
) -> None:
    events = orders()
    culprit = events[PLACE]
    settle(inventory_dsn, Piped(then=at(culprit, lambda _contract, tx: execute(tx, LATE_ERROR))), events)
    assert reasons(inbox) == {culprit.event_id: "handling failed 1 times, at last with 23514"}
    assert tally(inbox) == ids([event for event in events if event is not culprit])


def test_an_error_of_the_handler_itself_is_put_down_to_its_event(inbox: Connection, inventory_dsn: str) -> None:
    events, called = orders(), list[str]()
    culprit = events[PLACE]

    def then(contract: Contract, tx: Connection) -> None:
        called.append(contract.event_id)
        if contract.event_id == culprit.event_id:
            raise ValueError("as the test wants it")

    settle(inventory_dsn, Piped(then=then), events)
    assert reasons(inbox) == {culprit.event_id: "handling failed 3 times, at last with ValueError"}
    assert tally(inbox) == ids([event for event in events if event is not culprit])
    assert called.count(events[0].event_id) == 2  # no halving: with all the others, then with those before the culprit


@pytest.mark.parametrize("next_one_fails", [False, True])
def test_a_deadlock_among_statements_under_way_ends_the_batch_and_blames_no_event(
    inbox: Connection, inventory_dsn: str, next_one_fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    events, asked = orders(), list[str]()

    def then(contract: Contract, tx: Connection) -> None:
        asked.append(contract.event_id)
        if asked.count(contract.event_id) > 1:
            return
        if contract is events[PLACE]:
            tx.execute("DO $$ BEGIN PERFORM pg_sleep(0.1); RAISE EXCEPTION USING ERRCODE = '40P01'; END $$")
        if contract is events[PLACE + 1] and next_one_fails:
            raise ValueError("as the test wants it")

    with settling(inventory_dsn, Piped(then=then)) as settler:
        batch = [readable(event) for event in events]
        with pytest.raises(DeadlockDetected):
            settler.settle(batch)
        assert (tally(inbox), reasons(inbox)) == ([], {})
        settler.settle(batch)
    assert (tally(inbox), reasons(inbox)) == (ids(events), {})
    assert not caplog.records  # psycopg would tell what the server said, with the values in it


def test_what_a_cursor_tells_is_true_at_once(inbox: Connection) -> None:
    told, events = list[tuple[object, ...]](), orders()

    def then(_contract: Contract, tx: Connection) -> None:
        assert tx.info.pipeline_status is PipelineStatus.ON
        number = len(told) + 1
        cursor = tx.execute("INSERT INTO narrow SELECT * FROM generate_series(%s::int, %s + 2)", (number, number))
        updated = tx.execute("UPDATE narrow SET told = told + 1 WHERE number >= %s RETURNING number", (number,))
        names = [column.name for column in updated.description or ()]
        both = tx.cursor()
        both.executemany("UPDATE narrow SET told = told WHERE number >= %s", [(number + 1,), (number + 2,)])
        told.append((cursor.rowcount, cursor.statusmessage, names, updated.rowcount, both.rowcount))
        tx.execute("DELETE FROM narrow")

    assert apply(inbox, *events, projection=Piped(then=then)).applied == MANY
    assert told == [(3, "INSERT 0 3", ["number"], 3, 3)] * MANY


def counts_after_another_statement(cursor: Cursor) -> object:
    cursor.execute("UPDATE narrow SET told = told")
    cursor.executemany("UPDATE narrow SET told = told WHERE number > %s", [(1000,), (2000,)])
    return cursor.rowcount


def results_after_another_statement(cursor: Cursor) -> object:
    cursor.execute("UPDATE narrow SET told = told")
    numbers = "UPDATE narrow SET told = told WHERE number = %s RETURNING number"
    cursor.executemany(numbers, [(1,), (2,)], returning=True)
    return [(each.rowcount, each.fetchall()) for each in cursor.results()]


def row_after_large_ones(cursor: Cursor) -> object:
    for _ in range(2):
        cursor.execute("UPDATE narrow SET told = told RETURNING repeat('x', 4000)")
    return cursor.execute("SELECT 'mine'").fetchone()


@pytest.mark.parametrize(
    ("use_again", "answer"),
    [
        (counts_after_another_statement, 0),
        (results_after_another_statement, [(1, [(1,)]), (1, [(2,)])]),
        (row_after_large_ones, ("mine",)),
    ],
)
@pytest.mark.parametrize("kind", [Piped, Plain])
def test_a_cursor_that_is_used_again_answers_about_its_last_statement(
    inbox: Connection, use_again: Callable[[Cursor], object], answer: object, kind: type[Tally]
) -> None:
    told = list[object]()
    inbox.execute("INSERT INTO narrow SELECT generate_series(1, 3)")
    then = kind(then=lambda _contract, tx: told.append(use_again(tx.cursor())))
    assert apply(inbox, *orders(), projection=then).applied == MANY
    assert told == [answer] * MANY


def test_a_handler_reads_what_it_and_the_events_before_have_written(inbox: Connection) -> None:
    seen, events = list[object](), orders()

    def then(_contract: Contract, tx: Connection) -> None:
        seen.append(tx.execute("SELECT count(*) FROM tally").fetchone())

    assert apply(inbox, *events, projection=Piped(then=then)).applied == MANY
    assert seen == [(number + 1,) for number in range(MANY)]


def test_a_savepoint_of_a_handler_keeps_what_was_before_it_and_tells_of_its_own_error(inbox: Connection) -> None:
    caught, events = list[str](), orders()

    def then(contract: Contract, tx: Connection) -> None:
        try:
            with tx.transaction():
                tx.execute("INSERT INTO narrow VALUES (%s)", (1 + len(contract.key) % 2,))
        except UniqueViolation:
            caught.append(contract.event_id)

    assert apply(inbox, *events, projection=Piped(then=then)).applied == MANY
    assert (tally(inbox), len(caught)) == (ids(events), MANY - 2)


def test_an_answer_given_because_of_another_events_error_is_not_believed(inbox: Connection, inventory_dsn: str) -> None:
    events = orders()
    culprit, victim = events[PLACE], events[PLACE + 1]

    def then(contract: Contract, tx: Connection) -> Answer | None:
        if contract.event_id == culprit.event_id:
            tx.execute(LATE_ERROR)
        if contract.event_id == victim.event_id:
            try:
                tx.execute("SELECT 1").fetchone()
            except psycopg.Error:
                return Quarantine("it seems to be my fault")
        return None

    settle(inventory_dsn, Piped(then=then), events)
    assert list(reasons(inbox)) == [culprit.event_id]
    assert tally(inbox) == ids([event for event in events if event is not culprit])


class Trusting(Plain):
    """It takes any error of a statement for the fault of the event that it is asked about."""

    def handle(self, contract: Contract, tx: Connection) -> Answer | None:
        try:
            return super().handle(contract, tx)
        except psycopg.Error:
            return Quarantine("it seems to be my fault")


def test_without_a_pipeline_it_is_not_either(inbox: Connection, inventory_dsn: str) -> None:
    (first, second), times = orders(2), iter(range(10))

    def swallow_once(_contract: Contract, tx: Connection) -> None:
        if next(times) == 0:
            with suppress(psycopg.Error):
                tx.execute(LATE_ERROR)

    settle(inventory_dsn, Trusting(then=at(first, swallow_once)), [first, second])
    assert (reasons(inbox), tally(inbox)) == ({}, ids([first, second]))


@pytest.mark.parametrize("kind", [Piped, Plain])
@pytest.mark.parametrize("many", [1, MANY])
def test_a_handler_that_goes_on_after_an_error_loses_no_event(
    inbox: Connection, inventory_dsn: str, kind: type[Tally], many: int
) -> None:
    """PostgreSQL answers such a COMMIT with a rollback, and psycopg takes that for an answer like any other."""
    events = orders(many)

    def swallow(_contract: Contract, tx: Connection) -> None:
        with suppress(psycopg.Error):
            tx.execute(LATE_ERROR)

    settle(inventory_dsn, kind(then=at(events[-1], swallow)), events)
    assert list(reasons(inbox)) == [events[-1].event_id]
    assert tally(inbox) == ids(events[:-1])


@pytest.mark.parametrize("kind", [Piped, Plain])
def test_a_handler_may_answer_for_the_error_of_its_own_statement(
    inbox: Connection, inventory_dsn: str, kind: type[Tally]
) -> None:
    events = orders()

    def answer(_contract: Contract, tx: Connection) -> Answer | None:
        try:
            tx.execute("INSERT INTO narrow VALUES (0)").statusmessage  # noqa: B018  it waits
        except psycopg.Error:
            return Quarantine("zero is not for us")
        return None

    settle(inventory_dsn, kind(then=at(events[PLACE], answer)), events)
    assert reasons(inbox) == {events[PLACE].event_id: "zero is not for us"}
    assert tally(inbox) == ids([event for event in events if event is not events[PLACE]])


def test_an_event_that_must_wait_stands_alone_at_once(inbox: Connection, inventory_dsn: str) -> None:
    events = orders()

    with settling(inventory_dsn, Piped(then=at(events[PLACE], lambda *_: NotYet("the price list")))) as settler:
        settler.settle([readable(event) for event in events])
        assert settler.waiting == {(events[PLACE].topic, 0)}
    assert (tally(inbox), reasons(inbox)) == (ids(events[:PLACE]), {})


def test_a_stop_in_the_middle_leaves_nothing_behind(inbox: Connection, inventory_dsn: str) -> None:
    events, stop, times = orders(), Event(), iter(range(10))

    def ask(_contract: Contract, _tx: Connection) -> None:
        if next(times) == 0:
            stop.set()

    with settling(inventory_dsn, Piped(then=at(events[PLACE], ask)), stop) as settler:
        with pytest.raises(StopAsked):
            settler.settle([readable(event) for event in events])
        assert (tally(inbox), reasons(inbox)) == ([], {})
        stop.clear()
        settler.settle([readable(event) for event in events])
    assert tally(inbox) == ids(events)


def test_a_small_batch_is_handled_without(inbox: Connection) -> None:
    seen = set[PipelineStatus]()

    def then(_contract: Contract, tx: Connection) -> None:
        seen.add(tx.info.pipeline_status)

    apply(inbox, *orders(MOST_UNDER_WAY), projection=Piped(then=then))
    assert seen == {PipelineStatus.OFF}


@pytest.mark.parametrize("kind", [Piped, Plain])
def test_an_error_after_the_last_event_is_looked_for_by_halving(
    inbox: Connection, inventory_dsn: str, kind: type[Tally]
) -> None:
    inbox.execute("CREATE TABLE child (number bigint REFERENCES narrow DEFERRABLE INITIALLY DEFERRED)")
    inbox.execute("INSERT INTO narrow VALUES (1)")
    events, called = orders(), list[str]()

    def then(contract: Contract, tx: Connection) -> None:
        called.append(contract.event_id)
        tx.execute("INSERT INTO child VALUES (%s)", (2 if contract is events[10] else 1,))

    settle(inventory_dsn, kind(then=then), events)
    assert reasons(inbox) == {events[10].event_id: "handling failed 1 times, at last with 23503"}
    assert tally(inbox) == ids([event for event in events if event is not events[10]])
    assert len(called) < 4 * MANY  # one event at a time would be some MANY / 2 for each


def test_a_handler_that_ends_the_transaction_loses_no_event(inbox: Connection, inventory_dsn: str) -> None:
    events = orders(8)
    settle(inventory_dsn, Plain(then=at(events[5], lambda _contract, tx: execute(tx, "ROLLBACK"))), events)
    assert list(reasons(inbox)) == [events[5].event_id]
    assert tally(inbox) == ids([event for event in events if event is not events[5]])


def test_where_nobody_would_do_it_in_smaller_parts_nothing_is_sent_ahead(inbox: Connection) -> None:
    seen = set[PipelineStatus]()
    projection = Piped(then=lambda _contract, tx: seen.add(tx.info.pipeline_status))
    with inbox.transaction():
        apply_contracts(orders(), projection, inbox, may_send_ahead=False)
    assert seen == {PipelineStatus.OFF}


def test_it_works_through_a_pooler(inbox: Connection, inventory_dsn: str, pgbouncer: PgBouncer) -> None:
    events = orders()
    culprit = at(events[PLACE], lambda _contract, tx: execute(tx, LATE_ERROR))
    settle(pgbouncer.through(inventory_dsn), Piped(then=culprit), events)
    assert list(reasons(inbox)) == [events[PLACE].event_id]
    assert tally(inbox) == ids([event for event in events if event is not events[PLACE]])
    assert "prepared statement" not in pgbouncer.log()
