"""`counterfoil relay`: runs a relay by the name of its module, and says why one is held back."""

import json

import pytest

from infrastructure.lease import acquire
from infrastructure.postgres import connect
from tests.acceptance.test_command_line import Run, in_environment
from tests.support.stored_events import autocommit, open_session, write

SECRET = "s3cret-literal"


@pytest.fixture
def counterfoil(store_dsn: str) -> Run:
    return in_environment({"COUNTERFOIL_STORE_DSN": store_dsn})


def test_an_open_transaction_below_a_stored_event_is_named(store_dsn: str, counterfoil: Run) -> None:
    with open_session(store_dsn, "month-end fix") as slow, autocommit(store_dsn) as writer:
        write(slow, SECRET)
        slow.execute(f"SELECT '{SECRET}'")
        write(writer, "waits")
        result = counterfoil("relay", "why", "--json")
        assert result.returncode == 3
        answer = json.loads(result.stdout)
        (relay,) = answer["relays"]
        (holder,) = relay["held_by"]
        assert (relay["held"], relay["held_after"]) == (True, 0)
        assert (holder["pid"], holder["application_name"]) == (slow.info.backend_pid, "month-end fix")
        assert holder["state"] == "idle in transaction"
        assert holder["transaction_seconds"] >= 1.0
        assert holder["query_start"]

        table = counterfoil("relay", "why")
        assert table.returncode == 3
        assert str(slow.info.backend_pid) in table.stdout
        assert "waits for" in table.stderr
        for printed in (result, table):
            assert SECRET not in printed.stdout + printed.stderr
        assert SECRET in counterfoil("relay", "why", "--query").stdout


def test_a_long_transaction_that_holds_nothing_back_is_not_named(store_dsn: str, counterfoil: Run) -> None:
    with open_session(store_dsn, "long report") as report, autocommit(store_dsn) as writer:
        writer.execute("CREATE TABLE notes (note text)")
        report.execute("INSERT INTO notes VALUES ('open')")
        write(writer, "delivered")
        result = counterfoil("relay", "why", "--json")
        assert result.returncode == 0
        answer = json.loads(result.stdout)
        assert (answer["relays"][0]["held"], answer["open_writers"]) == (False, [])


def test_open_writers_that_nothing_waits_for_are_told_apart(store_dsn: str, counterfoil: Run) -> None:
    with open_session(store_dsn, "month-end fix") as slow:
        write(slow, "open")
        result = counterfoil("relay", "why")
        assert result.returncode == 0
        assert "They hold nothing back now" in result.stdout
        assert "month-end fix" in result.stdout


def test_each_relay_is_judged_from_its_own_checkpoint(store_dsn: str, counterfoil: Run) -> None:
    with (
        open_session(store_dsn) as slow,
        autocommit(store_dsn) as writer,
        connect(store_dsn, application_name="test") as connection,
    ):
        for relay in ("domain.orders", "domain.parcels"):
            acquire(connection, relay, 60.0)
        write(slow, "open")
        write(writer, "waits")
        connection.execute("UPDATE relay_checkpoints SET position = 2 WHERE relay = 'domain.parcels'")
        assert counterfoil("relay", "why", "domain.orders").returncode == 3
        assert counterfoil("relay", "why", "domain.parcels").returncode == 0
        answer = json.loads(counterfoil("relay", "why", "--json").stdout)
        assert [(each["relay"], each["held"]) for each in answer["relays"]] == [
            ("domain.orders", True),
            ("domain.parcels", False),
        ]


def test_a_relay_whose_store_was_set_back_is_held_and_not_called_well(store_dsn: str, counterfoil: Run) -> None:
    with autocommit(store_dsn) as writer, connect(store_dsn, application_name="test") as connection:
        write(writer, "restored")
        acquire(connection, "domain.orders", 60.0)
        connection.execute("UPDATE relay_checkpoints SET position = 1, anchor = 'of an event that was lost'")
        told = counterfoil("relay", "why")
        assert (told.returncode, "the store was set back" in told.stderr, told.stdout) == (3, True, "")
        (relay,) = json.loads(counterfoil("relay", "why", "--json").stdout)["relays"]
        assert (relay["held"], "set back" in relay["reason"]) == (True, True)


def test_an_unknown_relay_is_said_to_be_one(counterfoil: Run) -> None:
    result = counterfoil("relay", "why", "domain.oders")
    assert (result.returncode, "domain.oders" in result.stderr) == (1, True)


@pytest.mark.parametrize("command", [("relay",), ("relay", "run")])
def test_what_is_no_command_is_the_module_to_run(counterfoil: Run, command: tuple[str, ...]) -> None:
    result = counterfoil(*command, "domain.oders")
    assert (result.returncode, "'domain.oders' has no outbox" in result.stderr) == (1, True)


def test_a_wrong_option_is_a_usage_error_and_help_names_both_commands(counterfoil: Run) -> None:
    assert counterfoil("relay", "--jsn").returncode == 2
    assert counterfoil("relay", "domain.orders", "--jsn").returncode == 2
    help_text = counterfoil("relay", "--help").stdout
    assert "why" in help_text
    assert "domain.orders" in help_text
    assert counterfoil("relay").returncode == 2
