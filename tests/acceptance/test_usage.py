"""What people mistype is said to be wrong usage in words of ours, and what they see is whole."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.test_command_line import ORDER, Run, in_environment


@pytest.fixture
def counterfoil(store_dsn: str, inventory_dsn: str) -> Run:
    return in_environment({"COUNTERFOIL_STORE_DSN": store_dsn, "COUNTERFOIL_INVENTORY_DSN": inventory_dsn})


PLACE = ("orders", "place", "ord_2", "--customer", "c")
NO_TEXT = os.fsdecode(b"c1\xff")


@pytest.mark.parametrize(
    ("arguments", "blamed"),
    [
        (("orders", "show", NO_TEXT), "ORDER_ID"),
        (("orders", "cancel", NO_TEXT, "--reason", "x"), "ORDER_ID"),
        (("orders", "place", NO_TEXT, "--customer", "c", "--line", "pen:1:1"), "ORDER_ID"),
        (("stock", "show", "--order", NO_TEXT), "--order"),
        (("stock", "show", "--order", "o", "--wait", "nan"), "--wait"),
        (("stock", "show", "--order", "o", "--wait", "inf"), "--wait"),
        (("stock", "show", "--order", "o", "--wait", "-5"), "--wait"),
        ((*PLACE, "--line", "pen:1:1", "--currency", "eur"), "--currency"),
        ((*PLACE, "--line", "pen:1_0:0.1"), "--line"),
        ((*PLACE, "--line", "pen:\u0661:0.1"), "--line"),
        ((*PLACE, "--line", "pen"), "--line"),
        ((*PLACE, "--line", ":1:1"), "--line"),
        ((*PLACE, "--line", "pen:0:1"), "--line"),
        ((*PLACE, "--line", "pen:1:x"), "--line"),
    ],
)
def test_a_mistyped_argument_is_blamed_by_its_name(arguments: tuple[str, ...], blamed: str) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    counterfoil = in_environment({"COUNTERFOIL_STORE_DSN": nowhere, "COUNTERFOIL_INVENTORY_DSN": nowhere})
    result = counterfoil(*arguments)
    assert result.returncode == 2
    assert blamed.lower() in result.stderr.lower()
    assert not [each for each in ("Traceback", "pydantic", "validation error", "unpack") if each in result.stderr]


ROW = "order_id,customer_id,sku,quantity,unit_price\no-1,c,pen,1,1.00\n"


@pytest.mark.parametrize(
    ("name", "content", "options", "reason"),
    [
        ("o.csv", ROW, ("--currency", "EUR", "--column", "time=Tmie"), "Tmie"),
        ("o.csv", ROW, ("--currency", "EUR", "--column", "time=time"), "time"),
        ("o.csv", ROW, ("--currency", "EUR", "--column", "sku=a", "--column", "sku=sku"), "once"),
        ("o.csv", ROW, ("--currency", "EUR", "--time-format", "%Q"), "--time-format"),
        ("o.csv", ROW, ("--currency", "euro"), "--currency"),
        ("o.csv", "", ("--currency", "EUR"), "empty"),
        ("o.jsonl", "", ("--currency", "EUR"), "JSON Lines"),
        ("o.jsonl", "", ("--column", "sku=a"), "JSON Lines"),
        ("o.jsonl", "", ("--time-format", "%Y"), "JSON Lines"),
        ("o.jsonl", "", ("--cancel-prefix", "C"), "JSON Lines"),
    ],
)
def test_an_option_that_would_not_do_what_it_says_is_wrong_usage(
    counterfoil: Run, tmp_path: Path, name: str, content: str, options: tuple[str, ...], reason: str
) -> None:
    (tmp_path / name).write_text(content)
    result = counterfoil("orders", "import", str(tmp_path / name), *options)
    assert (result.returncode, reason in result.stderr) == (2, True)
    assert "line 2" not in result.stderr


def test_the_summary_of_an_import_counts_orders_apart_from_lines(counterfoil: Run, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(ROW + "o-2,c,pen,1,1.00\no-2,c,ink,x,1.00\no-2,c,cap,y,1.00\n1,2\n")
    arguments = ("orders", "import", str(file), "--currency", "EUR")
    shown, answer = counterfoil(*arguments), json.loads(counterfoil(*arguments, "--json").stdout)
    assert [each["line"] for each in answer.pop("refusals")] == [3, 4, 5, 6]
    assert answer == {"placed": 0, "cancelled": 0, "unchanged": 1, "refused": 1, "lines_reported": 4}
    assert shown.stdout.split() == "placed 1 cancelled 0 unchanged 0 refused 1 lines reported 4".split()
    assert [line.partition(":")[0] for line in shown.stderr.splitlines()] == ["line 3", "line 4", "line 5", "line 6"]


def test_an_order_is_shown_in_words(counterfoil: Run) -> None:
    placed = counterfoil(*ORDER, "--line", "ink:1:1")
    shown = counterfoil("orders", "show", "ord_1")
    assert "yes" in placed.stdout
    assert "2 x pen at 345\n" in shown.stdout
    assert "1 x ink at 100\n" in shown.stdout
    assert not [each for each in ("{", "[", "True") if each in shown.stdout + placed.stdout]


def test_a_table_in_a_pipe_is_never_cut_off(counterfoil: Run) -> None:
    skus = ["s" * 127 + last for last in "ab"]
    for sku in skus:
        counterfoil("stock", "set", sku, "1")
    shown = counterfoil("stock", "show").stdout
    assert [sku for sku in skus if sku in shown] == skus


def test_a_database_without_tables_says_what_to_run(empty_dsn: str) -> None:
    counterfoil = in_environment({"COUNTERFOIL_STORE_DSN": empty_dsn, "COUNTERFOIL_INVENTORY_DSN": empty_dsn})
    for arguments in (("orders", "show", "ord_1"), ORDER, ("stock", "show"), ("db", "check")):
        result = counterfoil(*arguments)
        assert (result.returncode, "counterfoil db migrate" in result.stderr) == (1, True), arguments


def test_the_version_is_told() -> None:
    result = in_environment({})("--version")
    assert (result.returncode, result.stdout.startswith("counterfoil ")) == (0, True)


def test_an_interrupt_at_any_moment_of_the_start_ends_it_without_a_traceback() -> None:
    interrupted_import = (
        "import importlib.abc, sys\n"
        "class Interrupt(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from counterfoil.cli import main; main()\n"
    )
    result = subprocess.run([sys.executable, "-c", interrupted_import], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (128 + signal.SIGINT, "")


def test_a_reader_that_leaves_is_no_error_of_ours() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        result = subprocess.run(
            [sys.executable, "-m", "counterfoil", "--version"], stdout=gone, stderr=subprocess.PIPE, check=False
        )
    assert (result.returncode, result.stderr) == (1, b"")
