"""What a swap keeps, whom it waits for, and what it refuses to break."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event

import psycopg
import pytest
from psycopg import Connection

from projections.rebuild import abandon, confirm, roll_back
from projections.rebuilding import state
from projections.rebuilding.differences import Differences
from projections.rebuilding.errors import RebuildRefused, Superseded, SwapBusy
from projections.rebuilding.from_kafka import SINCE, KafkaSides
from projections.rebuilding.session import session
from projections.rebuilding.state import State
from projections.rebuilding.swap import Swap
from projections.rebuilding.target import Target
from tests.support.inventory import connected, count, fill
from tests.support.rebuilding import NEVER, apply_live, inventory_of, place, rebuilt, schemas, told
from tests.support.wait import eventually

PLENTY = {"pen": 100_000, "ink": 100_000, "pad": 100_000}


@pytest.fixture
def target(store_dsn: str, inventory_dsn: str) -> Target:
    return inventory_of(store_dsn, inventory_dsn)


@pytest.fixture
def live(target: Target) -> Iterator[Connection]:
    """With ten orders applied."""
    place(target.store_dsn, range(10))
    with connected(target.dsn) as connection:
        fill(connection, PLENTY)
        apply_live(target, connection, told(target))
        yield connection


@pytest.fixture
def role(live: Connection, unique_name) -> Iterator[str]:  # type: ignore[no-untyped-def]
    name = unique_name("reader").replace("-", "_")
    live.execute(f"CREATE ROLE {name}")
    try:
        yield name
    finally:
        live.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


GRANTS = """
    SELECT table_name, column_name, privilege_type, is_grantable FROM information_schema.column_privileges
    WHERE grantee = %s AND table_schema = 'public' ORDER BY 1, 2, 3
"""
SHAPE = """
    SELECT 'index', tablename, indexname FROM pg_indexes WHERE schemaname = 'public' AND tablename = ANY (%(tables)s)
    UNION ALL
    SELECT 'constraint', conrelid::regclass::text, conname || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = ANY (SELECT name::regclass FROM unnest(%(tables)s::text[]) AS name)
    ORDER BY 1, 2, 3
"""
WAITING = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
TABLES = {"tables": ["stock", "reservations", "reservation_lines"]}


def test_grants_indexes_constraints_and_views_survive_there_and_back(
    target: Target, live: Connection, role: str
) -> None:
    live.execute(f"GRANT SELECT ON stock TO {role}; GRANT SELECT (status) ON reservations TO {role} WITH GRANT OPTION")
    live.execute("CREATE INDEX by_status ON reservations (status)")
    live.execute("CREATE VIEW pens WITH (security_barrier) AS SELECT sku, on_hand FROM stock WHERE sku = 'pen'")
    live.execute("CREATE SCHEMA reports")
    live.execute('CREATE VIEW reports."All pens" AS SELECT on_hand FROM pens')
    live.execute(f"GRANT SELECT ON pens TO {role}")
    grants = live.execute(GRANTS, (role,)).fetchall()
    shape = live.execute(SHAPE, TABLES).fetchall()

    rebuilt(target)
    live.execute("UPDATE stock SET on_hand = 11 WHERE sku = 'pen' AND reserved < 11 OR sku = 'pen'")
    for _ in range(2):
        assert live.execute(GRANTS, (role,)).fetchall() == grants
        assert live.execute(SHAPE, TABLES).fetchall() == shape
        assert live.execute("SELECT reloptions FROM pg_class WHERE relname = 'pens'").fetchone() == (
            ["security_barrier=true"],
        )
        on_hand = live.execute("SELECT on_hand FROM stock WHERE sku = 'pen'").fetchone()
        assert live.execute('SELECT * FROM reports."All pens"').fetchone() == on_hand
        assert roll_back(target, NEVER, 0.5) is not None
    confirm(target)
    assert live.execute('SELECT * FROM reports."All pens"').fetchone() == (11,)


@pytest.mark.parametrize(
    ("hanging", "named"),
    [
        ("CREATE MATERIALIZED VIEW m AS SELECT * FROM stock", "materialized view m on stock"),
        (
            "CREATE TABLE picked (sku text COLLATE \"C\" REFERENCES stock)",
            "foreign key picked_sku_fkey of picked",
        ),
        ("ALTER TABLE stock ADD CONSTRAINT few CHECK (on_hand < 1000000)", "constraint few of stock"),
        ("CREATE RULE quiet AS ON DELETE TO stock DO INSTEAD NOTHING", "rule quiet of stock"),
    ],
)  # fmt: skip
def test_what_would_not_survive_is_refused_before_anything_begins(
    target: Target, live: Connection, hanging: str, named: str
) -> None:
    live.execute(hanging.encode())
    with pytest.raises(RebuildRefused, match=named):
        rebuilt(target)
    assert schemas(live) == set()
    assert state.read(live, target.name) is None


def test_a_reader_that_is_still_there_delays_the_swap_and_others_get_in_between(
    target: Target, live: Connection
) -> None:
    with closing(psycopg.connect(target.dsn)) as reading, ThreadPoolExecutor(1) as threads:
        reading.execute("SELECT FROM stock")
        with pytest.raises(SwapBusy):
            rebuilt(target)
        assert count(live, "reservations") == 10
        swapping = threads.submit(rebuilt, target, patience=60.0)
        eventually(lambda: live.execute(WAITING).fetchone() != (0,), within=30, every=0.01)
        assert count(live, "reservations") == 10
        reading.rollback()
        assert swapping.result(60).swapped is not None


def test_a_transaction_that_could_not_see_the_new_rows_is_waited_for(target: Target, live: Connection) -> None:
    with closing(psycopg.connect(target.dsn)) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT 1")
        with pytest.raises(RebuildRefused, match=f"pid {old.info.backend_pid}"):
            rebuilt(target)
        old.rollback()
    assert rebuilt(target).swapped is not None


def test_readers_in_the_midst_of_it_never_miss_a_row(target: Target, live: Connection) -> None:
    """Prepared and plain statements, again and again, while tables go there and back."""
    done = Event()

    def read(prepare: bool) -> list[int]:
        found = []
        with connected(target.dsn) as connection:
            while not done.is_set():
                row = connection.execute("SELECT count(*) FROM reservations", prepare=prepare).fetchone()
                found.append(row[0] if row else -1)
        return found

    with ThreadPoolExecutor(4) as threads:
        reading = [threads.submit(read, number % 2 == 0) for number in range(4)]
        try:
            rebuilt(target, patience=30.0)
            for _ in range(3):
                roll_back(target, NEVER, 30.0)
        finally:
            done.set()
        for each in reading:
            assert set(each.result(30)) == {10}


def test_a_process_that_stood_still_while_another_took_over_swaps_nothing(target: Target, live: Connection) -> None:
    with session(target) as work:
        work.begin(1)
        work.fill(NEVER, lambda *_: None)
        sides = work.sides
        differences = Differences(target, work.live)
        stale = Swap(target, work.rebuild, work.live, sides, work.source, work.catch_up, differences)
        state.next_run(live, target.name)
        with pytest.raises(Superseded):
            stale.run(NEVER, 0.5)
    found = state.read(live, target.name)
    assert found is not None
    assert found.state is State.FILLING
    assert count(live, "reservations") == 10


def test_a_half_made_schema_of_a_killed_process_is_no_obstacle(target: Target, live: Connection) -> None:
    live.execute("CREATE SCHEMA rebuild_inventory; CREATE TABLE rebuild_inventory.stock (half integer)")
    assert rebuilt(target).swapped is not None
    with pytest.raises(RebuildRefused, match="no rebuild"):
        confirm(target)
        abandon(target)


def test_what_somebody_hung_on_the_former_tables_is_not_dropped_with_them(target: Target, live: Connection) -> None:
    rebuilt(target)
    live.execute("CREATE VIEW before AS SELECT * FROM rebuild_inventory.stock")
    with pytest.raises(RebuildRefused, match="outside of rebuild_inventory"):
        confirm(target)
    live.execute("DROP VIEW before")
    confirm(target)


def test_behind_the_fence_only_what_has_come_since_is_looked_up_in_the_inbox(
    target: Target, live: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers wait meanwhile, and an inbox may be long."""
    asked: list[str] = []
    really = KafkaSides._not_in_inbox

    def spying(self: KafkaSides, connection: Connection, condition: str) -> list[str]:
        asked.append(condition)
        return really(self, connection, condition)

    monkeypatch.setattr(KafkaSides, "_not_in_inbox", spying)
    assert rebuilt(target).swapped is not None
    assert asked[-1] == SINCE
    assert roll_back(target, NEVER, 0.5) is not None
    assert asked[-1] == SINCE
