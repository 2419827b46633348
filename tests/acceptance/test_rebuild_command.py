"""`counterfoil rebuild` and `replay`: what they print, what they refuse, and their exit codes."""

import json
import re
import signal
import subprocess
import sys

import psycopg
import pytest

from infrastructure.migrate import migrate
from infrastructure.postgres import connect
from projections.order_summary import MIGRATIONS
from tests.acceptance.test_command_line import Run, in_environment
from tests.support.processes import REPOSITORY
from tests.support.rebuilding import place
from tests.support.summaries import fold, read

MODULE = "projections.order_summary"


@pytest.fixture
def counterfoil(store_dsn: str) -> Run:
    migrate(store_dsn, MIGRATIONS)
    return in_environment({"COUNTERFOIL_STORE_DSN": store_dsn})


@pytest.mark.timeout(400)
def test_rebuild_compare_swap_there_and_back_and_confirm(counterfoil: Run, store_dsn: str) -> None:
    place(store_dsn, range(1, 8))
    differs = counterfoil("rebuild", MODULE, "--patience", "0")
    assert differs.returncode == 1, differs.stderr
    assert "order_summaries: 7 rows (ord_1, ord_2, ord_3, ord_4, ord_5, ...)" in differs.stderr
    assert "--accept-differences" in differs.stderr
    assert re.search(r"order_summaries +│ 0 +│ 7 +│ 0 +│ -?[0-9]+ ", differs.stdout)  # rows and checksums
    (filling,) = json.loads(counterfoil("rebuild", "status", "--json").stdout)
    assert (filling["state"], filling["position"], filling["applied"]) == ("filling", 8, 8)
    assert (filling["source"], filling["at_work"]) == ("store", False)
    assert f"`counterfoil rebuild {MODULE}` goes on" in counterfoil("status").stdout

    swapped = counterfoil("rebuild", MODULE, "--patience", "5", "--accept-differences", "--json")
    assert swapped.returncode == 0, swapped.stderr
    tables = {each["table"]: each for each in json.loads(swapped.stdout)["compared"]}
    assert (tables["order_summaries"]["rows_live"], tables["order_summaries"]["rows_rebuilt"]) == (0, 7)
    with connect(store_dsn, application_name="test") as connection:
        assert read(connection) == fold(store_dsn)
    (open_end,) = json.loads(counterfoil("status", "--json").stdout)["rebuilds"]
    assert (open_end["projection"], open_end["state"]) == ("order_summary", "swapped")
    assert f"`counterfoil rebuild confirm {MODULE}`" in open_end["what_to_do"]
    assert open_end["since"].endswith("Z")
    for _ in range(2):  # back, and forward again: what is said is true of both
        again = counterfoil("rebuild", "rollback", MODULE, "--patience", "5")
        assert (again.returncode, "Back on the tables that were live before" in again.stderr) == (0, True)
    confirmed = counterfoil("rebuild", "confirm", MODULE)
    assert (confirmed.returncode, "live before the last swap are dropped" in confirmed.stderr) == (0, True)
    assert json.loads(counterfoil("rebuild", "status", "--json").stdout) == []
    assert json.loads(counterfoil("status", "--json").stdout)["rebuilds"] == []


def test_history_is_printed_as_contracts_by_position_and_key(counterfoil: Run, store_dsn: str) -> None:
    place(store_dsn, range(1, 8))
    lines = [json.loads(line) for line in counterfoil("replay", "domain.orders").stdout.splitlines()]
    assert [each["orderId"] for each in lines] == [f"ord_{n}" for n in (1, 2, 3, 4, 5, 6, 7, 7)]
    some = counterfoil("replay", "domain.orders", "--from", "3", "--to", "5").stdout.splitlines()
    assert [json.loads(line) for line in some] == lines[2:5]
    one = counterfoil("replay", "domain.orders", "--key", "ord_7").stdout.splitlines()
    assert [json.loads(line)["eventType"] for line in one] == ["OrderPlaced", "OrderCancelled"]
    dry = counterfoil("replay", "domain.orders", "--dry-run")
    assert (dry.stdout, dry.stderr.strip()) == ("", "8 events become 8 contracts.")


def test_history_that_may_still_change_is_not_taken_for_all_there_is(counterfoil: Run, store_dsn: str) -> None:
    place(store_dsn, range(1, 4))
    with psycopg.connect(store_dsn) as writing:
        writing.execute(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES ('x', 1, 'none', '{}')"
        )
        place(store_dsn, range(4, 6))
        cut_short = counterfoil("replay", "domain.orders")
        assert (cut_short.returncode, len(cut_short.stdout.splitlines())) == (1, 3)
        assert "--from 4" in cut_short.stderr
        assert counterfoil("replay", "domain.orders", "--to", "3").returncode == 0
        writing.rollback()
    assert len(counterfoil("replay", "domain.orders", "--from", "4").stdout.splitlines()) == 2


def test_a_reader_of_history_that_leaves_is_no_error_to_speak_of(store_dsn: str) -> None:
    place(store_dsn, range(1, 800))
    command = [sys.executable, "-m", "counterfoil", "replay", "domain.orders"]
    env = {"COUNTERFOIL_STORE_DSN": store_dsn, "PATH": ""}
    with subprocess.Popen(
        command, env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline().startswith('{"eventId":"evt_')
        program.stdout.close()
        assert program.stderr.read() == ""
        assert program.wait(60) == 128 + signal.SIGPIPE
