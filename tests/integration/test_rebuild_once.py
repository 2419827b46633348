"""A projection that is not idempotent: each event is applied once, whatever is rebuilt, swapped and delivered again."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import Connection

from domain.contracts import Contract
from infrastructure.migrate import migrate
from projections.rebuild import abandon, confirm, roll_back
from projections.rebuilding import state
from projections.rebuilding.errors import RebuildRefused
from projections.rebuilding.session import session
from projections.rebuilding.target import Target
from tests.support.counting import MIGRATIONS
from tests.support.inventory import connected, count
from tests.support.processes import REPOSITORY
from tests.support.rebuilding import NEVER, apply_live, place, rebuilt, told

INSERT = "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES ('x', 1, 'none', '{}')"


@pytest.fixture
def target(store_dsn: str, empty_dsn: str) -> Target:
    migrate(empty_dsn, MIGRATIONS)
    return Target.of("tests.support.counting", store_dsn, empty_dsn)


@pytest.fixture
def live(target: Target) -> Iterator[Connection]:
    with connected(target.dsn) as connection:
        yield connection


def counted(connection: Connection) -> tuple[dict[str, int], list[str]]:
    events = connection.execute("SELECT event_id FROM places ORDER BY event_id").fetchall()
    return dict(connection.execute("SELECT order_id, events FROM counts").fetchall()), [each for (each,) in events]


def once(contracts: list[Contract]) -> tuple[dict[str, int], list[str]]:
    keys = [each.key for each in contracts]
    return {key: keys.count(key) for key in keys}, sorted(each.event_id for each in contracts)


def test_nothing_is_counted_twice_there_and_back_around_an_open_position(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(10))
    apply_live(target, live, told(target))
    with psycopg.connect(target.store_dsn) as writing:
        writing.execute(INSERT)
        place(target.store_dsn, range(10, 16))
        apply_live(target, live, told(target)[:-4])
        assert rebuilt(target).swapped is not None
        assert counted(live) == once(told(target)[:-4])
        writing.rollback()
    assert apply_live(target, live, told(target)) == 4
    for _ in range(3):
        assert roll_back(target, NEVER, 0.5) is not None
        assert apply_live(target, live, told(target)) == 0
        assert counted(live) == once(told(target))
    assert live.execute("SELECT count(*) FROM busy").fetchone() == (3,)


def test_workers_in_processes_of_their_own_apply_each_event_once_and_in_order_per_key(
    target: Target, live: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(REPOSITORY)  # the workers import the projection
    place(target.store_dsn, range(40), cancel_every=2)
    apply_live(target, live, told(target))
    before = counted(live)
    assert rebuilt(target, workers=2).swapped is not None
    assert counted(live) == before
    order = [event_id for (event_id,) in live.execute("SELECT event_id FROM places ORDER BY place")]
    for key in before[0]:
        mine = [each.event_id for each in told(target) if each.key == key]
        assert [event_id for event_id in order if event_id in mine] == mine


def test_what_each_worker_has_applied_is_counted(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY)
    place(target.store_dsn, range(20))
    with session(target) as work:
        work.begin(2)
        work.fill(NEVER, lambda *_: None)
        assert state.progress(work.connection, target.name).applied == len(told(target))


def test_no_effect_is_asked_for_by_a_rebuild_and_none_is_lost(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(1, 6))
    contracts = told(target)
    apply_live(target, live, contracts[:3])
    with pytest.raises(RebuildRefused, match="their effects would be lost"):
        rebuilt(target, accept_differences=True)
    assert count(live, "outgoing_effects") == 3
    apply_live(target, live, contracts)
    rows = live.execute("SELECT * FROM outgoing_effects ORDER BY id").fetchall()
    assert rebuilt(target).swapped is not None
    assert live.execute("SELECT * FROM outgoing_effects ORDER BY id").fetchall() == rows
    assert live.execute("SELECT count(*) FROM rebuild_counting.outgoing_effects").fetchone() == (0,)
    assert len(rows) == 5


def test_numbers_drawn_after_the_swap_do_not_collide(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(1, 6))
    apply_live(target, live, told(target))
    rebuilt(target)
    confirm(target)
    place(target.store_dsn, range(7, 9))
    assert apply_live(target, live, told(target)) == 3
    assert counted(live) == once(told(target))


def test_a_view_of_the_projection_itself_shows_the_new_tables(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(8), cancel_every=2)
    apply_live(target, live, told(target))
    rebuilt(target)
    confirm(target)
    assert live.execute("SELECT count(*) FROM busy").fetchone() == (4,)
    rebuilt(target, swap=False)
    abandon(target)
    assert live.execute("SELECT count(*) FROM busy").fetchone() == (4,)


def test_a_rebuild_touches_nothing_but_the_other_tables_until_the_swap(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(1, 6))
    apply_live(target, live, told(target))
    tables = ("processed_events", "quarantined_events", "outgoing_effects", "projection_versions", "counts", "places")
    in_the_store = ("stored_events", "relay_checkpoints")
    with connected(target.store_dsn) as store:
        before = [_everything(live, tables), _everything(store, in_the_store)]
        rebuilt(target, swap=False)
        assert [_everything(live, tables), _everything(store, in_the_store)] == before
        rebuilt(target)
        assert _everything(store, in_the_store) == before[1]


def _everything(connection: Connection, tables: tuple[str, ...]) -> dict[str, list[str]]:
    """Hidden columns too: a row that was written anew with the same content counts as touched."""
    rows = {table: connection.execute(f"SELECT xmin, ctid, {table}::text FROM {table}") for table in tables}
    return {table: sorted(map(str, cursor.fetchall())) for table, cursor in rows.items()}
