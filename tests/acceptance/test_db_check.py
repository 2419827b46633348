"""`counterfoil db check`: before a release, can the new code read what the store holds?"""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from eventsourcing.persistence import StoredEvent

from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from infrastructure.event_store import store_env

Check = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def check(store_dsn: str) -> Check:
    def run(*arguments: str, dsn: str = store_dsn) -> "subprocess.CompletedProcess[str]":
        ours = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")}
        command = [sys.executable, "-m", "counterfoil", "db", "check", *arguments]
        environment = ours | {"COUNTERFOIL_STORE_DSN": dsn}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture(autouse=True)
def orders(store_dsn: str) -> None:
    with Orders(env=store_env(store_dsn)) as orders:
        for order_id in ("ord_1", "ord_2"):
            line = LineItem(sku="pen", quantity=1, unit_price_minor=100)
            orders.place(PlaceOrder(order_id=order_id, customer_id="cus_1", currency="EUR", lines=(line,)))
        orders.cancel(CancelOrder(order_id="ord_1", reason="changed my mind"))


def store(store_dsn: str, *events: tuple[str, bytes]) -> None:
    with Orders(env=store_env(store_dsn)) as orders:
        orders.recorder.insert_events(
            [StoredEvent("secret-id", version, topic, state) for version, (topic, state) in enumerate(events, start=1)]
        )


def test_a_store_that_the_code_can_read_passes_and_is_listed(check: Check) -> None:
    """The events of orders are known, though nothing on the command line names orders."""
    result = check()
    assert result.returncode == 0
    assert "order.placed" in result.stdout
    topics = json.loads(check("--json").stdout)["topics"]
    assert topics == [
        {"topic": "order.cancelled", "version": 1, "count": 1, "first_position": 3, "problem": None},
        {"topic": "order.placed", "version": 1, "count": 2, "first_position": 1, "problem": None},
    ]


def test_an_unknown_topic_or_version_fails_with_its_name_its_count_and_an_example(store_dsn: str, check: Check) -> None:
    store(
        store_dsn,
        ("order.shipped", b'{"secret":1}'),
        ("order.shipped", b'{"secret":2}'),
        ("order.placed", b'{"class_version":7,"secret":3}'),
    )
    result = check()
    assert result.returncode == 1
    assert "order.shipped v1: no class in the code has this topic. Events stored: 2, the first at position 4." in (
        result.stderr
    )
    assert "order.placed v7: the code knows versions up to 1. Events stored: 1, the first at position 6." in (
        result.stderr
    )
    assert "secret" not in result.stdout + result.stderr


def test_for_programs_the_answer_is_json_and_nothing_else_on_standard_output(store_dsn: str, check: Check) -> None:
    store(store_dsn, ("order.shipped", b"{}"))
    result = check("--json")
    assert result.returncode == 1
    problems = {each["topic"]: each["problem"] for each in json.loads(result.stdout)["topics"]}
    assert problems == {
        "order.cancelled": None,
        "order.placed": None,
        "order.shipped": "no class in the code has this topic",
    }


def test_a_database_that_is_no_store_is_a_plain_error(check: Check, empty_dsn: str) -> None:
    result = check(dsn=empty_dsn)
    assert result.returncode == 1
    assert "counterfoil db migrate" in result.stderr
    assert "Traceback" not in result.stderr
