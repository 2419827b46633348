"""A batch that is large enough for statements to be sent ahead, and what becomes of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import cast

from psycopg import Connection

from domain.contracts import Contract
from infrastructure.subscriber import Subscriber
from projections.database import Database
from projections.entries import entries
from projections.pipelining import MOST_UNDER_WAY
from projections.settling import Settler
from tests.support.finished import Finished
from tests.support.messages import placed, readable
from tests.support.tally import Tally, Then

MANY = 6 * MOST_UNDER_WAY
PLACE = MANY // 2 + 5
"""Of an event in the middle, whose statement is under way while later events are handled."""

# It takes a while, so that the next events are handled before its error is there.
LATE_ERROR = "INSERT INTO narrow SELECT 0 FROM pg_sleep(0.1)"
CREATE_NARROW = "CREATE TABLE narrow (number bigint PRIMARY KEY CHECK (number > 0), told bigint DEFAULT 1)"


class Piped(Tally):
    pipelined = True


class Plain(Tally):
    pipelined = False


@contextmanager
def settling(dsn: str, projection: Tally, stop: Event | None = None) -> Iterator[Settler]:
    database = Database(dsn, "test")
    try:
        yield Settler(projection, database, cast(Subscriber, Finished()), stop or Event(), attempts=3)
    finally:
        database.drop()


def settle(dsn: str, projection: Tally, events: Sequence[Contract]) -> None:
    with settling(dsn, projection) as settler:
        settler.settle([readable(event) for event in events])


def orders(many: int = MANY) -> list[Contract]:
    return [placed(f"ord_{n}") for n in range(many)]


def ids(events: Sequence[Contract]) -> list[str]:
    return [event.event_id for event in events]


def reasons(connection: Connection) -> dict[str | None, str]:
    return {each.event_id: each.reason for each in entries(connection, "tally")}


def at(event: Contract, then: Then) -> Then:
    return lambda contract, tx: then(contract, tx) if contract.event_id == event.event_id else None


def execute(tx: Connection, statement: str) -> None:
    tx.execute(statement)
