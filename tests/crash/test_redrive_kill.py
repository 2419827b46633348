"""kill -9 in the middle of a redrive: each event is either released and applied once, or parked as before."""

from collections.abc import Iterator
from threading import Event

import pytest
from psycopg import Connection

from domain.contracts import Contract
from projections.base import Quarantine
from projections.entries import ParkedKey, entries
from projections.redriving import Redrive, Redriver
from tests.support.inventory import apply, connected
from tests.support.messages import placed
from tests.support.processes import Programs
from tests.support.tally import CREATE, Tally, tally
from tests.support.wait import eventually

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'redrive' AND datname = current_database()"


@pytest.fixture
def inbox(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


def refuse(contract: Contract, tx: Connection) -> Quarantine:
    return Quarantine("as the test wants it")


def test_a_redrive_killed_half_way_is_taken_up_by_the_next_where_it_had_come_to(
    inbox: Connection, inventory_dsn: str, programs: Programs
) -> None:
    events = [placed("ord_1") for _ in range(6)]
    apply(inbox, events[0], projection=Tally(then=refuse))
    apply(inbox, *events[1:], projection=Tally())
    ids = [event.event_id for event in events]

    program = programs.python("-m", "tests.support.redrive_program", ids[3], env={"DSN": inventory_dsn})
    program.wait_for_line(f"handling {ids[3]}", within=60)
    program.kill()
    assert [each.event_id for each in entries(inbox, "tally")] == ids[3:]
    assert tally(inbox) == ids[:3]

    live = placed("ord_1")
    eventually(lambda: inbox.execute(SESSIONS).fetchone() == (0,), within=60)  # the server has seen that it is gone
    assert len(apply(inbox, live, projection=Tally()).parked) == 1
    assert Redriver(Tally(), inbox).redrive(ParkedKey(b"ord_1"), Event()) == Redrive(released=4)
    assert tally(inbox) == [*ids, live.event_id]
