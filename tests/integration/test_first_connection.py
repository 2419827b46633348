"""A process that is started before its database is there: what is waited for, what is not, and how it is seen."""

import threading
from collections.abc import Callable
from threading import Event, Timer

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from counterfoil.embedded.ports import free_port
from infrastructure import metrics
from infrastructure.first_connection import REFUSALS, NotLetIn, wait_for_database
from infrastructure.migrate import STORE_MIGRATIONS, SchemaOutdated, check
from infrastructure.postgres import connect
from tests.support.stored_events import autocommit
from tests.support.wait import eventually

LOOP = "first-connection-test"


def opens(dsn: str) -> Callable[[], object]:
    return lambda: connect(dsn, application_name="test").close()


def waits() -> float:
    return metrics.WAITING_FOR_DATABASE.labels(LOOP)._value.get()


@pytest.fixture
def stop() -> Event:
    return Event()


@pytest.mark.parametrize("wrong", [{"password": "a guess"}, {"dbname": "nowhere"}, {"user": "nobody"}])
def test_a_server_that_answers_and_lets_nobody_in_is_for_the_operator(
    empty_dsn: str, stop: Event, wrong: dict[str, str]
) -> None:
    dsn = make_conninfo(empty_dsn, **wrong)
    with pytest.raises(NotLetIn, match=r"password.*name of the.*database"):
        wait_for_database(dsn, LOOP, opens(dsn), stop, refused_seconds=0)
    assert waits() == 0


def test_a_server_that_is_full_for_a_while_is_waited_for_in_sight_and_said_once(
    empty_dsn: str, stop: Event, caplog: pytest.LogCaptureFixture
) -> None:
    full = make_conninfo(empty_dsn, dbname="nowhere")  # to us, a refusal is like any other
    seen: list[float] = []

    def in_the_end() -> None:
        seen.append(waits())
        opens(full if len(seen) <= REFUSALS + 1 else empty_dsn)()

    assert wait_for_database(full, LOOP, in_the_end, stop, refused_seconds=600)
    assert seen == [0, *[1] * (REFUSALS + 1)]
    said = [(record.message, vars(record)["reason"]) for record in caplog.records]
    assert said == [("waiting for the database", "it lets nobody in")]


def test_a_missing_migration_is_for_the_operator(empty_dsn: str, stop: Event) -> None:
    with pytest.raises(SchemaOutdated, match="db migrate"):
        wait_for_database(empty_dsn, LOOP, lambda: check(empty_dsn, STORE_MIGRATIONS), stop)


def test_a_server_that_is_not_there_is_waited_for_in_sight_and_said_once(
    stop: Event, caplog: pytest.LogCaptureFixture
) -> None:
    dsn = make_conninfo(host="127.0.0.1", port=free_port("127.0.0.1"), dbname="none", user="u", password="s3cret")
    calls = 0
    seen: list[float] = []

    def counted() -> None:
        nonlocal calls
        calls += 1
        seen.append(waits())
        if calls == 5:
            stop.set()
        opens(dsn)()

    assert not wait_for_database(dsn, LOOP, counted, stop)
    assert seen == [0, 1, 1, 1, 1]
    assert waits() == 0
    assert [record.message for record in caplog.records] == ["waiting for the database"]
    assert "s3cret" not in caplog.text


def test_a_server_that_takes_no_writes_is_waited_for_until_it_does(empty_dsn: str, stop: Event) -> None:
    name = sql.Identifier(str(conninfo_to_dict(empty_dsn)["dbname"]))
    read_only = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
    with autocommit(empty_dsn) as admin:
        admin.execute(read_only.format(name, sql.SQL("on")))
        there: list[bool] = []
        starting = threading.Thread(
            target=lambda: there.append(wait_for_database(empty_dsn, LOOP, opens(empty_dsn), stop))
        )
        starting.start()
        eventually(lambda: waits() == 1)
        admin.execute(read_only.format(name, sql.SQL("off")))
        starting.join(30.0)
    assert there == [True]


def test_told_to_stop_it_waits_for_no_answer(empty_dsn: str, stop: Event) -> None:
    answers = Event()
    Timer(0.3, stop.set).start()
    assert not wait_for_database(empty_dsn, LOOP, lambda: answers.wait(60.0), stop)
    answers.set()


def test_what_does_not_pass_ends_it(empty_dsn: str, stop: Event) -> None:
    def fails() -> None:
        with autocommit(empty_dsn) as session:
            session.execute("SELECT FROM what_is_not_there")

    with pytest.raises(psycopg.errors.UndefinedTable):
        wait_for_database(empty_dsn, LOOP, fails, stop)
