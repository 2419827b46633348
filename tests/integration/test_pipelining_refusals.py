"""What is not possible while statements are sent ahead is refused there, and done without."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress

import psycopg
import pytest
from psycopg import Connection, sql

from domain.contracts import Contract
from projections.faults import Fault, fault_of
from tests.support.inventory import apply, connected
from tests.support.sent_ahead import CREATE_NARROW, LATE_ERROR, PLACE, Piped, ids, orders, reasons, settle
from tests.support.tally import CREATE, tally


@pytest.fixture
def inbox(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        connection.execute(CREATE_NARROW)
        yield connection


def savepoint(tx: Connection) -> None:
    """It makes up for an error of its own, which is none of its own when an earlier event's comes late."""
    tx.execute("SAVEPOINT ours")
    try:
        tx.execute("INSERT INTO narrow VALUES (1)").statusmessage  # noqa: B018  it waits
    except psycopg.Error:
        tx.execute("ROLLBACK TO ours")


def savepoint_as_bytes(tx: Connection) -> None:
    tx.execute(b"/* ours /* and */ theirs */ savepoint ours")


def savepoint_composed(tx: Connection) -> None:
    tx.execute(sql.SQL("SAVEPOINT {}").format(sql.Identifier("ours")))


def copy(tx: Connection) -> None:
    with tx.cursor() as cursor, cursor.copy("COPY narrow FROM STDIN") as copying:
        copying.write_row((1, 1))


def stream(tx: Connection) -> None:
    assert list(tx.cursor().stream("SELECT 1")) == [(1,)]


def server_side_cursor(tx: Connection) -> None:
    with tx.cursor("ours") as cursor:
        assert cursor.execute("SELECT 1").fetchall() == [(1,)]


NOT_AHEAD = [savepoint, savepoint_as_bytes, savepoint_composed, copy, stream, server_side_cursor]


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("use", NOT_AHEAD)
def test_what_is_not_possible_ahead_is_done_without_and_loses_no_event(
    inbox: Connection, inventory_dsn: str, use: Callable[[Connection], None], swallowed: bool
) -> None:
    events, used = orders(), list[str]()

    def then(contract: Contract, tx: Connection) -> None:
        if contract is events[PLACE]:
            tx.execute(LATE_ERROR)
        with suppress(psycopg.Error) if swallowed else nullcontext():
            use(tx)
            used.append(contract.event_id)
        if use is copy:
            tx.execute("DELETE FROM narrow")

    settle(inventory_dsn, Piped(then=then), events)
    assert reasons(inbox) == {events[PLACE].event_id: "handling failed 1 times, at last with 23514"}
    assert tally(inbox) == ids([event for event in events if event is not events[PLACE]])
    assert set(tally(inbox)) <= set(used)


def test_what_is_refused_is_said_with_what_to_do_instead(inbox: Connection) -> None:
    with pytest.raises(
        psycopg.NotSupportedError, match=r"SAVEPOINT .* `with tx\.transaction\(\):`, .* `pipelined`"
    ) as said:
        apply(inbox, *orders(), projection=Piped(then=lambda _contract, tx: savepoint(tx)))
    assert fault_of(said.value) is Fault.HANDLER
