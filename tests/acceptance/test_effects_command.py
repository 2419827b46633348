"""`counterfoil effects` sends what was asked for, shows what was refused, and ends when it is told to."""

import json
from collections.abc import Iterator, Mapping

import pytest
from psycopg import Connection

from infrastructure.migrate import migrate
from projections import effects
from projections.effects.queue import failed_effects
from projections.notifications import MIGRATIONS
from projections.notifications.projection import PROJECTION
from tests.acceptance.test_command_line import Run, in_environment
from tests.support.effects import numbers
from tests.support.inventory import apply, connected, count
from tests.support.messages import placed
from tests.support.processes import Programs
from tests.support.wait import eventually

MODULE = "projections.notifications"


@pytest.fixture
def env(empty_dsn: str) -> Mapping[str, str]:
    migrate(empty_dsn, MIGRATIONS)
    return {"COUNTERFOIL_NOTIFICATIONS_DSN": empty_dsn}


@pytest.fixture
def house(env: Mapping[str, str]) -> Iterator[Connection]:
    with connected(env["COUNTERFOIL_NOTIFICATIONS_DSN"]) as connection:
        yield connection


def test_effects_are_sent_until_the_process_is_told_to_stop(
    env: Mapping[str, str], house: Connection, programs: Programs
) -> None:
    counterfoil: Run = in_environment(env)
    good, bad = placed("ord_1"), placed("ord_2")
    apply(house, good, projection=PROJECTION)
    with house.transaction():
        effects.request(house, PROJECTION.consumer_name, bad, "order-confirmed", {"orderId": "ord_2"})
    worker = programs.counterfoil("effects", MODULE, env=env)
    eventually(lambda: numbers(house) == (0, 1, 1), within=60)
    assert worker.stop(within=30) == 0
    assert count(house, "delivered_notifications") == 1

    shown = counterfoil("effects", "list", MODULE, "--json")
    [left] = json.loads(shown.stdout)
    assert failed_effects(house, PROJECTION.consumer_name) == 1
    assert (shown.returncode, left["id"]) == (3, f"{bad.event_id}:order-confirmed")
    assert left["last_problem"] == "customerId: there is none"
    unknown = counterfoil("effects", "redrive", MODULE, "evt_1:order-confirmed")
    assert (unknown.returncode, "no failed effect" in unknown.stderr) == (1, True)
    assert counterfoil("effects", "redrive", MODULE).returncode == 0
    assert numbers(house) == (1, 1, 0)


def test_a_projection_that_asks_for_no_effects_is_told_so() -> None:
    result = in_environment({"COUNTERFOIL_INVENTORY_DSN": "postgresql://nobody@127.0.0.1:1/none"})(
        "effects", "projections.inventory"
    )
    assert (result.returncode, "asks for no effects" in result.stderr) == (1, True)
