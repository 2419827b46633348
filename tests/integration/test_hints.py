"""Hints: quick when all is well, harmless when it is not."""

import contextlib
import json
import multiprocessing
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from domain.orders.application import Orders
from domain.orders.commands import LineItem, PlaceOrder
from infrastructure import metrics
from infrastructure.event_store import PostgresRecorder, store_env
from infrastructure.hints import LISTEN, SLOWING, STEADY, HintListener, HintSender, Pace
from infrastructure.postgres import Connection
from infrastructure.settings import Settings
from tests.acceptance.test_command_line import in_environment
from tests.support.stored_events import autocommit, event, proxied
from tests.support.wait import eventually

PLACE = PlaceOrder(
    order_id="ord_1",
    customer_id="cus_1",
    currency="EUR",
    lines=(LineItem(sku="pen", quantity=1, unit_price_minor=345),),
)
LISTENERS = "pg_stat_activity WHERE application_name = 'counterfoil listener' AND datname = current_database()"


@contextlib.contextmanager
def listening(dsn: str) -> Iterator[threading.Event]:
    """An event that hints set; it begins listening before the test goes on."""
    heard = threading.Event()
    listener = HintListener(dsn, heard.set)
    listener.start()
    try:
        assert heard.wait(10), "it calls once when it begins to listen"
        heard.clear()
        yield heard
    finally:
        assert listener.stop()


def most_in(seconds: float, pace: Pace) -> int:
    """How many hints may be sent in this time. One more begins it, and one that `close` sends ends it."""
    return int(seconds / pace.each) + 2


@pytest.fixture
def ear(store_dsn: str) -> Iterator[Connection]:
    """A plain listening session that counts."""
    with autocommit(store_dsn) as session:
        session.execute(LISTEN)
        yield session


@pytest.fixture
def role_of_one_connection(store_dsn: str) -> Iterator[str]:
    """A connection string whose role may have one session, so that the store answers and hints cannot be sent."""
    role, password = f"clerk_{secrets.token_hex(5)}", secrets.token_hex(8)
    with autocommit(store_dsn) as session:
        session.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}' CONNECTION LIMIT 1".encode())
        session.execute(f"GRANT SELECT, INSERT ON stored_events TO {role}".encode())
        try:
            yield make_conninfo(store_dsn, user=role, password=password)
        finally:
            session.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


# --- Sending ------------------------------------------------------------------------------------------


def test_an_append_is_heard_by_a_listener(store_dsn: str) -> None:
    with listening(store_dsn) as heard, contextlib.closing(PostgresRecorder(store_dsn, 2, patience=5)) as recorder:
        recorder.insert_events([event("a")])
        assert heard.wait(5)


def test_a_hint_that_cannot_be_sent_is_told_without_address_and_role(
    role_of_one_connection: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever embeds Orders has Python's own log format, which prints the text of every exception it is given."""
    with Orders(env=store_env(role_of_one_connection, connections=1)) as orders:
        assert orders.place(PLACE).changed
        eventually(lambda: "loop failed" in caplog.text, within=10)
    failed = next(record for record in caplog.records if "loop failed" in record.message)
    assert (vars(failed)["loop"], vars(failed)["error"]) == ("hint-sender", "OperationalError")
    assert re.fullmatch(r"\w+\.py:\d+", vars(failed)["at"])
    for told in ("clerk_", conninfo_to_dict(role_of_one_connection)["host"], "Traceback", "connection limit"):
        assert str(told) not in caplog.text


def test_a_command_whose_hint_cannot_be_sent_prints_one_line_without_address_and_role(
    role_of_one_connection: str,
) -> None:
    counterfoil = in_environment({"COUNTERFOIL_STORE_DSN": role_of_one_connection, "COUNTERFOIL_LOG_FORMAT": "json"})
    result = counterfoil("orders", "place", "ord_1", "--customer", "cus_1", "--line", "pen:1:3.45")
    assert result.returncode == 0
    assert json.loads(result.stderr.splitlines()[0])["error"] == "OperationalError"
    assert "clerk_" not in result.stderr


def test_a_hint_comes_after_the_commit_and_on_another_connection(store_dsn: str, ear: Connection) -> None:
    """Inside the append a NOTIFY would make all commits of the server queue."""
    with contextlib.closing(PostgresRecorder(store_dsn, 2, patience=5)) as recorder:
        recorder.insert_events([event("a")])
        (notify,) = ear.notifies(timeout=5, stop_after=1)
        appending = "SELECT pid FROM pg_stat_activity WHERE application_name = 'counterfoil store'"
        assert notify.pid not in {pid for (pid,) in ear.execute(appending)}


def test_many_hints_at_once_become_few(store_dsn: str, ear: Connection) -> None:
    sender, began = HintSender(store_dsn), time.monotonic()
    for _ in range(1_000):
        sender.hint()
        time.sleep(0.0002)  # lets the sending thread run
    sender.close()
    most = most_in(time.monotonic() - began, STEADY)
    assert 1 <= len(list(ear.notifies(timeout=0.5))) <= most


def test_appends_that_follow_each_other_closely_are_told_of_together(store_dsn: str, ear: Connection) -> None:
    recorder, began = PostgresRecorder(store_dsn, 2, patience=5), time.monotonic()
    for number in range(300):
        recorder.insert_events([event(f"a{number}")])
    recorder.close()
    most = most_in(time.monotonic() - began, SLOWING)
    assert 1 <= len(list(ear.notifies(timeout=0.5))) <= most


def test_what_comes_while_a_sender_rests_is_told_of_afterwards_by_one_hint(store_dsn: str, ear: Connection) -> None:
    of_each: list[int] = []
    over = threading.Event()

    class UntilItIsOver(Pace):
        def rest_after(self, told: int) -> float:
            of_each.append(told)
            over.wait(30)
            return 0.0

    sender = HintSender(store_dsn, pace=UntilItIsOver(0, 0))
    sender.hint()
    eventually(lambda: of_each == [1])
    for _ in range(5):
        sender.hint()
    over.set()
    eventually(lambda: of_each == [1, 5])
    sender.close()
    assert len(list(ear.notifies(timeout=0.5))) == 2


def test_closing_does_not_wait_for_a_rest_to_end(store_dsn: str, ear: Connection) -> None:
    sender = HintSender(store_dsn, pace=Pace(each=300, longest=300))
    sender.hint()
    assert len(list(ear.notifies(timeout=5, stop_after=1))) == 1
    sender.hint()
    sender.close(within=10)
    assert len(list(ear.notifies(timeout=1, stop_after=1))) == 1


def test_the_rest_after_a_hint_grows_with_what_it_told_of() -> None:
    assert [SLOWING.rest_after(told) for told in (1, 2, 4, 1_000)] == [0.02, 0.04, 0.08, 0.1]


def test_a_lone_append_is_followed_by_no_longer_rest_than_a_reader_takes_by_itself() -> None:
    assert SLOWING.rest_after(1) <= Settings(_env_file=None).relay_poll_busy


def test_a_short_lived_process_is_heard(store_dsn: str, ear: Connection) -> None:
    """It ends as soon as its event is stored, before any background thread has got far."""
    program = (
        "import sys; from infrastructure.event_store import PostgresRecorder; "
        "from tests.support.stored_events import event; "
        "recorder = PostgresRecorder(sys.argv[1], 1, patience=5); "
        "recorder.insert_events([event('a')]); recorder.close()"
    )
    subprocess.run([sys.executable, "-c", program, store_dsn], check=True, timeout=30)
    assert len(list(ear.notifies(timeout=1, stop_after=1))) == 1


def test_closing_flushes_a_hint_of_this_very_moment(store_dsn: str, ear: Connection) -> None:
    for _ in range(20):
        sender = HintSender(store_dsn)
        sender.hint()
        sender.close()
        assert len(list(ear.notifies(timeout=1, stop_after=1))) == 1


def test_a_forked_child_sends_hints_of_its_own(store_dsn: str, ear: Connection) -> None:
    sender = HintSender(store_dsn)
    sender.hint()
    (of_the_parent,) = ear.notifies(timeout=5, stop_after=1)

    def child() -> None:
        sender.hint()
        sender.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    (of_the_child,) = ear.notifies(timeout=5, stop_after=1)
    process.join(10)
    assert process.exitcode == 0
    sender.hint()
    (again,) = ear.notifies(timeout=5, stop_after=1)
    assert of_the_child.pid != of_the_parent.pid == again.pid
    sender.close()


def test_with_no_database_hinting_neither_waits_nor_fails(store_dsn: str) -> None:
    sender = HintSender(make_conninfo(store_dsn, port=1))
    began = time.monotonic()
    for _ in range(1_000):
        sender.hint()
    assert time.monotonic() - began < 0.5
    sender.close(within=0.3)
    assert time.monotonic() - began < 2


def test_with_a_silent_database_an_append_and_its_close_are_not_delayed(store_dsn: str) -> None:
    with proxied(store_dsn) as (proxy, through):
        sender = HintSender(through)
        proxy.blackhole()
        began = time.monotonic()
        sender.hint()
        sender.close(within=0.5)
        assert time.monotonic() - began < 2


def test_hints_are_sent_again_when_the_database_is_back(store_dsn: str, ear: Connection) -> None:
    with proxied(store_dsn) as (proxy, through):
        sender = HintSender(through)
        sender.hint()
        assert len(list(ear.notifies(timeout=5, stop_after=1))) == 1
        proxy.cut()
        sender.hint()
        time.sleep(0.2)
        proxy.resume()
        assert len(list(ear.notifies(timeout=10, stop_after=1))) == 1
        sender.close()


# --- Listening ----------------------------------------------------------------------------------------


def test_a_terminated_listener_is_rebuilt(store_dsn: str) -> None:
    with listening(store_dsn) as heard, autocommit(store_dsn) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM " + LISTENERS)
        assert heard.wait(10), "what may have gone unheard is announced"
        heard.clear()
        admin.execute("NOTIFY counterfoil_stored")
        assert heard.wait(5)


def test_a_listener_whose_connection_died_without_a_word_is_rebuilt(store_dsn: str) -> None:
    """No error ever arrives: the listener must ask."""
    given_up = metrics.LOOP_RESTARTS.labels("hint-listener", "OperationalError")
    with proxied(store_dsn) as (proxy, through), listening(through) as heard:
        before = given_up._value.get()
        proxy.blackhole()
        eventually(lambda: given_up._value.get() > before, within=15)
        assert not heard.is_set()
        proxy.resume()
        assert heard.wait(15)


def test_a_quiet_listener_still_beats(store_dsn: str) -> None:
    beats = metrics.LOOP_BEAT.labels("hint-listener")
    with listening(store_dsn):
        first = beats._value.get()
        eventually(lambda: beats._value.get() > first)


def test_a_listener_stops_during_an_outage(store_dsn: str) -> None:
    with proxied(store_dsn) as (proxy, through), listening(through):
        proxy.cut()
