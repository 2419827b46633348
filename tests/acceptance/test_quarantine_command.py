"""`counterfoil quarantine`: what an operator sees and decides about events that cannot go on, on either side."""

import json

import pytest

from domain.orders.application import Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from infrastructure.event_store import store_env
from infrastructure.outbox import load_outbox
from infrastructure.outbox_relay import Outcome
from infrastructure.postgres import connect
from projections.inventory.projection import PROJECTION
from tests.acceptance.test_command_line import Run, in_environment
from tests.support.inventory import apply, connected
from tests.support.messages import placed
from tests.support.relays import NEVER, Recorder, relay_by_hand

ORDERS, INVENTORY = "domain.orders", "projections.inventory"
OF_A_LATER_RELEASE = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    VALUES ('ord_1', 1, 'order.gifted', '{"secret":"of the customer"}')
"""


@pytest.fixture
def counterfoil(store_dsn: str, inventory_dsn: str) -> Run:
    return in_environment({"COUNTERFOIL_STORE_DSN": store_dsn, "COUNTERFOIL_INVENTORY_DSN": inventory_dsn})


def relay_all(store_dsn: str) -> Recorder:
    """As a relay does until there is nothing left to do."""
    with relay_by_hand(store_dsn, load_outbox(ORDERS), publisher := Recorder()) as relay:
        while relay.step(NEVER).outcome is not Outcome.IDLE:
            pass
        relay.release()
    return publisher


@pytest.fixture
def with_a_culprit(store_dsn: str) -> None:
    """Order 1 begins with an event that this code does not know and goes on; order 2 is as usual."""
    with connect(store_dsn, application_name="test") as store:
        store.execute(OF_A_LATER_RELEASE)
        store.execute(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES"
            """ ('ord_1', 2, 'order.cancelled', '{"timestamp":"2026-01-01T00:00:00Z","reason":"too late"}')"""
        )
    with Orders(env=store_env(store_dsn)) as orders:
        line = LineItem(sku="pen", quantity=1, unit_price_minor=100)
        orders.place(PlaceOrder(order_id="ord_2", customer_id="c-1", currency="EUR", lines=(line,)))
        orders.cancel(CancelOrder(order_id="ord_2", reason="changed my mind"))
    assert [message.key for message in relay_all(store_dsn).messages] == [b"ord_2", b"ord_2"]


@pytest.mark.usefixtures("with_a_culprit")
def test_what_could_not_leave_is_listed_shown_discarded_with_a_reason_and_the_rest_redriven(
    counterfoil: Run, store_dsn: str
) -> None:
    culprit, follower = json.loads(counterfoil("quarantine", "list", ORDERS, "--json").stdout)
    assert (culprit["kind"], culprit["key"], culprit["category"], culprit["state"]) == (
        "culprit",
        "ord_1",
        "unmappable",
        "parked",
    )
    assert "order.gifted" in culprit["reason"]
    assert (follower["kind"], follower["category"]) == ("follower", "behind")
    assert "unmappable" in counterfoil("quarantine", "list", ORDERS, "--key", "ord_1").stdout
    assert json.loads(counterfoil("quarantine", "list", ORDERS, "--key", "ord_2", "--json").stdout) == []
    status = counterfoil("status")
    assert (status.returncode, "quarantine list domain.orders" in status.stderr) == (3, True)

    number = str(culprit["id"])
    shown = counterfoil("quarantine", "show", ORDERS, number)
    assert "order.gifted" in shown.stdout
    assert "customer" not in shown.stdout
    assert "customer" in counterfoil("quarantine", "show", ORDERS, number, "--payload").stdout

    assert counterfoil("quarantine", "discard", ORDERS, number).returncode == 2, "without a reason"
    assert counterfoil("quarantine", "discard", ORDERS, number, "--reason", " ").returncode == 2
    assert counterfoil("quarantine", "discard", ORDERS, number, "--reason", "a gift of last year").returncode == 0
    again = counterfoil("quarantine", "discard", ORDERS, number, "--reason", "twice")
    assert (again.returncode, "discarded already" in again.stderr) == (1, True)

    asked = counterfoil("quarantine", "redrive", ORDERS, "ord_1", "--wait", "0")
    assert (asked.returncode, "when domain.orders runs" in asked.stderr) == (1, True)
    assert [message.key for message in relay_all(store_dsn).messages] == [b"ord_1"]
    done = counterfoil("quarantine", "redrive", ORDERS, "--all", "--json")
    assert (done.returncode, json.loads(done.stdout)["left"]) == (0, 0)
    closed = json.loads(counterfoil("quarantine", "list", ORDERS, "--closed", "--json").stdout)
    assert [(each["state"], each["closed_reason"]) for each in closed] == [
        ("discarded", "a gift of last year"),
        ("released", None),
    ]
    assert closed[0]["closed_by"]


@pytest.mark.usefixtures("with_a_culprit")
def test_of_an_event_that_is_gone_from_the_store_no_other_events_bytes_are_shown(
    counterfoil: Run, store_dsn: str
) -> None:
    with connect(store_dsn, application_name="test") as store:
        store.execute("UPDATE outgoing_quarantine SET fingerprint = 'of an event that the store lost'")
    number = str(json.loads(counterfoil("quarantine", "list", ORDERS, "--json").stdout)[0]["id"])

    shown = counterfoil("quarantine", "show", ORDERS, number, "--payload")

    assert ("gone" in shown.stdout, "customer" in shown.stdout, shown.returncode) == (True, False, 0)


def test_the_same_commands_serve_what_could_not_be_applied(counterfoil: Run, inventory_dsn: str) -> None:
    with connected(inventory_dsn) as inventory:
        apply(inventory, placed("ord_1"), projection=PROJECTION)  # an order without lines
    (entry,) = json.loads(counterfoil("quarantine", "list", INVENTORY, "--json").stdout)
    assert (entry["key"], entry["kind"], entry["state"]) == ("ord_1", "culprit", "parked")
    tried = counterfoil("quarantine", "redrive", INVENTORY, "ord_1", "--json")
    assert (tried.returncode, json.loads(tried.stdout)["left"]) == (1, 1)
    number = str(entry["id"])
    assert counterfoil("quarantine", "show", INVENTORY, number).returncode == 0
    assert counterfoil("quarantine", "discard", INVENTORY, number, "--reason", "no lines").returncode == 0
    assert json.loads(counterfoil("quarantine", "list", INVENTORY, "--json").stdout) == []


@pytest.mark.parametrize("module", [ORDERS, INVENTORY])
def test_a_database_without_tables_says_what_to_run(empty_dsn: str, module: str) -> None:
    counterfoil = in_environment({"COUNTERFOIL_STORE_DSN": empty_dsn, "COUNTERFOIL_INVENTORY_DSN": empty_dsn})
    result = counterfoil("quarantine", "list", module)
    assert (result.returncode, "counterfoil db migrate" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("list", "domain.oders"), 1, "domain.oders"),
        (("list", "orders"), 2, "neither"),
        (("show", ORDERS, "404"), 1, "no entry 404"),
        (("discard", ORDERS, "404", "--reason", "x"), 1, "no entry 404"),
        (("redrive", ORDERS), 2, "--all"),
        (("redrive", ORDERS, "ord_1", "--all"), 2, "--all"),
    ],
)
def test_what_is_refused_says_why(counterfoil: Run, arguments: tuple[str, ...], code: int, reason: str) -> None:
    result = counterfoil("quarantine", *arguments)
    assert (result.returncode, reason in result.stderr) == (code, True)
    assert "Traceback" not in result.stderr
