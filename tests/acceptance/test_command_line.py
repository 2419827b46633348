"""The command line as people use it: what it prints, what it refuses, and its exit codes."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.kafka import Kafka

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def counterfoil(store_dsn: str, inventory_dsn: str, kafka: Kafka) -> Run:
    return in_environment(
        {
            "COUNTERFOIL_STORE_DSN": store_dsn,
            "COUNTERFOIL_INVENTORY_DSN": inventory_dsn,
            "COUNTERFOIL_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
        }
    )


def in_environment(settings: Mapping[str, str]) -> Run:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        ours = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")}
        command = [sys.executable, "-m", "counterfoil", *arguments]
        return subprocess.run(command, env=ours | settings, capture_output=True, text=True, timeout=60, check=False)

    return run


ORDER = ("orders", "place", "ord_1", "--customer", "cus_1", "--line", "pen:2:3.45")


def test_an_order_is_placed_shown_placed_again_and_cancelled(counterfoil: Run) -> None:
    placed = json.loads(counterfoil(*ORDER, "--json").stdout)
    again = json.loads(counterfoil(*ORDER, "--json").stdout)
    shown = json.loads(counterfoil("orders", "show", "ord_1", "--json").stdout)
    assert (placed["changed"], again["changed"]) == (True, False)
    assert shown["total_minor"] == 690
    assert shown["lines"] == [{"sku": "pen", "quantity": 2, "unit_price_minor": 345}]
    cancelled = counterfoil("orders", "cancel", "ord_1", "--reason", "changed my mind")
    assert cancelled.returncode == 0
    assert "cancelled" in cancelled.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("orders", "show", "ord_404"), 1, "no order"),
        (("orders", "cancel", "ord_404", "--reason", "x"), 1, "unknown_order"),
        (("orders", "place", "ord_2", "--customer", "", "--line", "pen:1:1"), 2, "--customer"),
        (("orders", "place", "ord_2", "--customer", "c", "--line", "pen"), 2, "SKU:QUANTITY:UNIT_PRICE"),
        (("orders", "place", "ord_2", "--customer", "c", "--line", "pen:1:1.005"), 2, "decimals"),
        (("orders", "place", "ord_2"), 2, "--customer"),
        (("stock", "set", "pen", "-1"), 2, "-1"),
        (("stock", "show", "--order", "ord_404"), 1, "ord_404"),
    ],
)
def test_what_is_refused_says_why_and_how_it_failed(
    counterfoil: Run, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    result = counterfoil(*arguments)
    assert result.returncode == code
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_the_same_id_with_other_content_is_refused(counterfoil: Run) -> None:
    counterfoil(*ORDER)
    refused = counterfoil("orders", "place", "ord_1", "--customer", "cus_2", "--line", "pen:2:3.45")
    assert (refused.returncode, "order_id_taken" in refused.stderr) == (1, True)


RETAIL = """\
InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country
536365,85123A,WHITE HANGING HEART T-LIGHT HOLDER,6,12/1/10 8:26,2.55,17850,United Kingdom
536365,71053,WHITE METAL LANTERN,6,12/1/10 8:26,3.39,17850,United Kingdom
536366,22633,HAND WARMER UNION JACK,6,12/1/10 8:28,1.85,17850,United Kingdom
536367,84879,ASSORTED COLOUR BIRD ORNAMENT,32,12/1/10 8:34,1.69,13047,United Kingdom
C536379,D,Discount,-1,12/1/10 9:41,27.5,14527,United Kingdom
C536383,35004C,SET OF 3 COLOURED  FLYING DUCKS,-1,12/1/10 9:49,4.65,15311,United Kingdom
536414,22139,,56,12/1/10 11:52,0,,United Kingdom
"""
"""Rows as in the public Online Retail data set, where a cancellation has a number of its own."""
OPERATIONS = (Path(__file__).parents[2] / "docs/operations.md").read_text()


def documented_import(file: Path) -> list[str]:
    """The command as the documentation shows it, for this file."""
    shown = re.search(r"^counterfoil (orders import (?:.*\\\n)+.*)$", OPERATIONS, re.MULTILINE)
    assert shown
    return [str(file) if each == "retail.csv" else each for each in shlex.split(shown[1].replace("\\\n", ""))]


def test_importing_reports_each_bad_line_imports_the_rest_and_changes_nothing_the_second_time(
    counterfoil: Run, tmp_path: Path
) -> None:
    file = tmp_path / "retail.csv"
    file.write_text(
        RETAIL
        + "536366,22632,HAND WARMER RED POLKA DOT,-6,12/1/10 8:28,1.85,17850,United Kingdom\n"
        + "C536367,84879,ASSORTED COLOUR BIRD ORNAMENT,-32,12/1/10 9:41,1.69,13047,United Kingdom\n"
    )
    first = counterfoil(*documented_import(file), "--json")
    second = counterfoil(*documented_import(file), "--json")
    assert (first.returncode, second.returncode) == (1, 1)
    summary, repeated = json.loads(first.stdout), json.loads(second.stdout)
    assert (summary["placed"], summary["cancelled"], summary["unchanged"]) == (2, 1, 0)
    assert (repeated["placed"], repeated["cancelled"], repeated["unchanged"]) == (0, 0, 3)
    assert summary["refused"] == repeated["refused"]
    assert {6, 7, 8, 9} <= {each["line"] for each in summary["refusals"]}
    for told in (
        r"line 6: .*unknown_order, 536379",
        r"line 7: .*unknown_order, 536383",
        r"line 8: customer_id is missing",
        r"line 9: quantity",
        r"order '536366' is left out because of line 9",
    ):
        assert re.search(told, first.stderr)


def test_bytes_that_are_no_order_are_refused_and_the_lines_around_them_imported(
    counterfoil: Run, tmp_path: Path
) -> None:
    order = {"customerId": "c", "currency": "EUR", "lines": [{"sku": "pen", "quantity": 1, "unitPriceMinor": 1}]}
    beyond = order | {"orderId": "ord_1", "placedAt": "0001-01-01T00:00:00+01:00"}
    file, table = tmp_path / "orders.jsonl", tmp_path / "orders.csv"
    file.write_text("\n".join(map(json.dumps, (beyond, order | {"orderId": "ord_2"}))))
    table.write_bytes(b"\xff\xfe\n")
    imported, no_table = (counterfoil("orders", "import", str(each)) for each in (file, table))
    assert (imported.returncode, no_table.returncode) == (1, 2)
    assert "line 1: placed" in imported.stderr
    assert counterfoil("orders", "show", "ord_2").returncode == 0
    assert "Traceback" not in imported.stderr + no_table.stderr


def test_a_wrong_column_mapping_is_a_usage_error(counterfoil: Run, tmp_path: Path) -> None:
    file = tmp_path / "retail.csv"
    file.write_text(RETAIL)
    unmapped = counterfoil("orders", "import", str(file))
    misspelt = counterfoil("orders", "import", str(file), "--column", "orderid=InvoiceNo")
    assert (unmapped.returncode, misspelt.returncode) == (2, 2)


def test_stock_is_set_and_shown(counterfoil: Run) -> None:
    assert counterfoil("stock", "set", "pen", "10").returncode == 0
    assert json.loads(counterfoil("stock", "show", "--json").stdout) == [
        {"sku": "pen", "on_hand": 10, "reserved": 0, "available": 10}
    ]


def test_migrating_is_repeatable_and_the_status_says_what_is_missing(empty_dsn: str, inventory_dsn: str) -> None:
    counterfoil = in_environment({"COUNTERFOIL_STORE_DSN": empty_dsn, "COUNTERFOIL_INVENTORY_DSN": inventory_dsn})
    assert counterfoil("db", "status").returncode == 3
    assert counterfoil("db", "migrate").returncode == 0
    assert counterfoil("db", "status").returncode == 0
    again = counterfoil("db", "migrate")
    assert (again.returncode, "Nothing to do" in again.stderr) == (0, True)


def test_a_missing_setting_is_named() -> None:
    result = in_environment({})("orders", "show", "ord_1")
    assert (result.returncode, "COUNTERFOIL_STORE_DSN" in result.stderr) == (1, True)


def test_no_secret_is_printed_when_a_database_refuses(store_dsn: str) -> None:
    secret = "s3cret-marker"
    counterfoil = in_environment({"COUNTERFOIL_STORE_DSN": f"postgresql://nobody:{secret}@127.0.0.1:1/none"})
    for arguments in (("orders", "show", "ord_1"), ("db", "status"), ("db", "migrate"), ("status",)):
        result = counterfoil(*arguments)
        assert result.returncode in (1, 3)
        assert secret not in result.stdout + result.stderr
        assert "Traceback" not in result.stderr


def test_a_store_without_any_relay_is_unhealthy(counterfoil: Run) -> None:
    counterfoil(*ORDER)
    result = counterfoil("status")
    assert result.returncode == 3
    assert "no relay" in result.stderr
