"""A projection's tables are made anew from all events, compared with the live ones, and swapped."""

from collections.abc import Iterator
from threading import Event

import psycopg
import pytest
from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from projections.base import NotYet, Quarantine
from projections.inventory.projection import Inventory
from projections.inventory.queries import set_stock
from projections.rebuild import abandon, confirm, rebuild, roll_back
from projections.rebuilding import differences, state
from projections.rebuilding.differences import Differences
from projections.rebuilding.errors import RebuildRefused, RebuildStopped, TablesDiffer
from projections.rebuilding.session import session
from projections.rebuilding.target import Target
from projections.versions import OtherVersion
from tests.support.inventory import connected, count, everything, fill
from tests.support.rebuilding import AT_ONCE, NEVER, apply_live, inventory_of, place, rebuilt, schemas, told
from tests.support.wait import eventually

PLENTY = {"pen": 100_000, "ink": 100_000, "pad": 100_000}


@pytest.fixture
def target(store_dsn: str, inventory_dsn: str) -> Target:
    return inventory_of(store_dsn, inventory_dsn)


@pytest.fixture
def live(inventory_dsn: str) -> Iterator[Connection]:
    """With plenty in stock."""
    with connected(inventory_dsn) as connection:
        fill(connection, PLENTY)
        yield connection


def test_the_rebuilt_tables_hold_what_the_live_ones_did_and_take_their_place(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(60))
    apply_live(target, live, told(target))
    before, inbox = everything(live), everything(live, ["processed_events"])
    oid = live.execute("SELECT 'reservations'::regclass::oid").fetchone()

    outcome = rebuilt(target)

    assert outcome.swapped is not None
    assert outcome.swapped.returnable
    assert everything(live) == before
    assert everything(live, ["processed_events"]) == inbox
    assert live.execute("SELECT 'reservations'::regclass::oid").fetchone() != oid
    assert live.execute("SELECT 'rebuild_inventory.reservations'::regclass::oid").fetchone() == oid
    confirm(target)
    assert schemas(live) == set()
    assert everything(live) == before


def test_a_live_row_that_no_event_explains_stops_the_swap_until_it_is_accepted(
    target: Target, live: Connection
) -> None:
    place(target.store_dsn, range(20))
    apply_live(target, live, told(target))
    right = everything(live)
    live.execute("UPDATE reservations SET status = 'rejected' WHERE order_id = 'ord_5'")
    wrong = everything(live)
    with pytest.raises(TablesDiffer, match=r"reservations: 1 rows \(ord_5\)"):
        rebuilt(target)
    assert everything(live) == wrong
    assert rebuilt(target, accept_differences=True).swapped is not None
    assert everything(live) == right


def test_an_event_that_was_applied_and_is_not_in_the_store_stops_the_swap(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(5))
    apply_live(target, live, told(target))
    live.execute("INSERT INTO processed_events (consumer_name, event_id) VALUES (%s, 'evt_foreign')", (target.name,))
    with pytest.raises(TablesDiffer, match=r"1 events that were applied live and are not in the store \(evt_foreign\)"):
        rebuilt(target)


def test_what_came_by_kafka_while_an_earlier_position_was_still_open_is_there_after_the_swap(
    target: Target, live: Connection
) -> None:
    """The reader stops before the gap; what is in the live inbox beyond it must be in the new tables all the same,
    and be applied once however often one goes back and forth."""
    place(target.store_dsn, range(10))
    apply_live(target, live, told(target))
    with psycopg.connect(target.store_dsn) as writing:
        writing.execute(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES ('x', 1, 'none', '{}')"
        )
        place(target.store_dsn, range(10, 14))
        beyond = told(target)[-4:]
        apply_live(target, live, beyond[:2])  # the others are on their way
        before = everything(live)
        assert rebuilt(target).swapped is not None
        assert everything(live) == before
        writing.rollback()
    assert apply_live(target, live, beyond) == 2
    after = everything(live)
    for _ in range(2):
        assert roll_back(target, NEVER, 0.5) is not None
        assert everything(live) == after
        assert apply_live(target, live, beyond) == 0


def test_an_event_that_the_rebuild_had_first_is_known_when_it_comes_by_kafka(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(10))
    contracts = told(target)
    apply_live(target, live, contracts[:6])
    outcome = rebuilt(target, accept_differences=True)
    assert outcome.swapped is not None
    assert count(live, "reservations") == 10
    assert apply_live(target, live, contracts) == 0
    # Nobody knows any more which of them the former tables lack.
    assert not outcome.swapped.returnable
    with pytest.raises(RebuildRefused, match="did not hold the same events"):
        roll_back(target, NEVER, 0.5)


def test_what_came_after_the_swap_is_there_after_going_back(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(10))
    apply_live(target, live, told(target))
    rebuilt(target)
    place(target.store_dsn, range(10, 20))
    apply_live(target, live, told(target))
    set_stock(live, "pen", 77_777)
    before = everything(live)
    assert roll_back(target, NEVER, 0.5) is not None
    assert everything(live) == before
    place(target.store_dsn, range(20, 22))
    assert apply_live(target, live, told(target)) == 3  # two orders, and one of them cancelled
    assert apply_live(target, live, told(target)) == 0


def test_stock_that_people_counted_meanwhile_is_carried_over(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(9))
    apply_live(target, live, told(target))
    with session(target) as work:
        work.begin(1)
        work.fill(NEVER, lambda *_: None)
        set_stock(live, "pen", 5_000)
        set_stock(live, "new", 3)
        before = everything(live)
        assert work.swap(Differences(target, work.live), NEVER, 0.5, lambda *_: None) is not None
    assert everything(live) == before


def test_less_on_hand_than_would_be_reserved_stops_the_swap(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(1, 7))
    with session(target) as work:
        work.begin(1)
        work.fill(NEVER, lambda *_: None)
        set_stock(live, "pen", 1)
        with pytest.raises(RebuildRefused, match="never_oversold"):
            work.swap(Differences(target, work.live), NEVER, 0.5, lambda *_: None)
    assert count(live, "reservations") == 0


def test_a_row_that_differs_only_since_the_comparison_stops_the_swap_too(
    target: Target, live: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "QUICK", 60.0)  # however slow the machine is
    place(target.store_dsn, range(9))
    apply_live(target, live, told(target))
    with session(target) as work:
        work.begin(1)
        work.fill(NEVER, lambda *_: None)
        found = work.compare(NEVER, 0.5, lambda *_: None)
        assert not any(each.suspects for each in found.tables)
        live.execute("UPDATE reservations SET status = 'rejected' WHERE order_id = 'ord_4'")
        with pytest.raises(TablesDiffer, match=r"reservations: 1 rows \(ord_4\)") as differ:
            work.swap(found, NEVER, 5.0, lambda *_: None)
    assert {each.table: each.live.rows for each in differ.value.tables}["reservations"] == 9


def test_a_second_rebuild_at_the_same_time_is_refused(target: Target) -> None:
    with session(target) as work, connected(target.dsn) as other:
        assert state.is_at_work(other, target.name)
        with pytest.raises(RebuildRefused, match="another process"):
            rebuilt(target)
        assert not state.is_at_work(other, work.target.module)
    with connected(target.dsn) as other:
        eventually(lambda: not state.is_at_work(other, target.name))


def test_one_rebuild_after_the_other_needs_a_decision_about_the_first(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(3))
    apply_live(target, live, told(target))
    rebuilt(target)
    with pytest.raises(RebuildRefused, match="rebuild confirm"):
        rebuilt(target)
    with pytest.raises(RebuildRefused, match="it is swapped"):
        abandon(target)
    confirm(target)
    assert rebuilt(target).swapped is not None


def test_without_a_swap_the_tables_are_kept_and_the_next_run_goes_on(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(10))
    apply_live(target, live, told(target))
    assert rebuilt(target, swap=False).swapped is None
    place(target.store_dsn, range(10, 12))
    apply_live(target, live, told(target))
    assert rebuilt(target).swapped is not None
    assert count(live, "reservations") == 12
    confirm(target)
    rebuilt(target, swap=False)
    abandon(target)
    assert schemas(live) == set()


class _Failing(Inventory):
    """Fails at one order, or refuses it."""

    def __init__(self, order_id: str, refuses: bool = False) -> None:
        self._order_id, self._refuses = order_id, refuses

    def handle_batch(self, contracts, tx):  # type: ignore[no-untyped-def]
        for contract in contracts:
            if isinstance(contract, OrderPlaced) and contract.order_id == self._order_id:
                if not self._refuses:
                    raise ValueError
                return {contract.event_id: Quarantine("order_id: not this one")}
        return super().handle_batch(contracts, tx)


def test_a_failing_handler_stops_the_rebuild_at_its_event_and_leaves_live_alone(
    target: Target, live: Connection
) -> None:
    place(target.store_dsn, range(10))
    contracts = told(target)
    apply_live(target, live, contracts)
    before = everything(live)
    culprit = next(each for each in contracts if each.key == "ord_6")
    failing = inventory_of(target.store_dsn, target.dsn, _Failing("ord_6"))
    with pytest.raises(RebuildStopped) as stopped:
        rebuilt(failing)
    assert (stopped.value.event_id, stopped.value.position) == (culprit.event_id, contracts.index(culprit) + 1)
    assert everything(live) == before
    assert count(live, "rebuild_inventory.reservations") == 6
    assert rebuilt(target).swapped is not None
    assert everything(live) == before


def test_a_handler_that_waits_stops_the_rebuild_at_its_event_with_its_reason(target: Target, live: Connection) -> None:
    class Waiting(Inventory):
        def handle_batch(self, contracts, tx):  # type: ignore[no-untyped-def]
            waits = {each.event_id: NotYet("its price list is not there") for each in contracts if each.key == "ord_3"}
            return waits or super().handle_batch(contracts, tx)

    place(target.store_dsn, range(1, 6))
    waiting = inventory_of(target.store_dsn, target.dsn, Waiting())
    with pytest.raises(RebuildStopped, match="position 3: the handler waits: its price list is not there"):
        rebuilt(waiting)
    assert count(live, "rebuild_inventory.reservations") == 2


def test_an_event_that_cannot_be_mapped_stops_it_with_all_before_it_applied(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(1, 4))
    with psycopg.connect(target.store_dsn) as writing:
        writing.execute(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state)"
            " VALUES ('x', 1, 'nobody.knows', '{}')"
        )
    place(target.store_dsn, range(4, 6))
    with pytest.raises(RebuildStopped, match=r"position 4: .*nobody\.knows"):
        rebuilt(target)
    assert count(live, "rebuild_inventory.reservations") == 3


def test_an_event_that_new_code_refuses_is_told_and_comes_again_later(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(1, 8), cancel_every=6)
    contracts = told(target)
    apply_live(target, live, contracts)
    refused = [each for each in contracts if each.key == "ord_6"]
    picky = inventory_of(target.store_dsn, target.dsn, _Failing("ord_6", refuses=True))
    with pytest.raises(TablesDiffer, match="2 events that the handler refuses and that are not in quarantine"):
        rebuilt(picky)
    assert rebuilt(picky, accept_differences=True).swapped is not None
    assert live.execute("SELECT FROM reservations WHERE order_id = 'ord_6'").fetchone() is None
    assert apply_live(target, live, refused) == 2


def test_what_somebody_discarded_stays_away(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(1, 6))
    contracts = told(target)
    unwanted = next(each for each in contracts if each.key == "ord_3")
    apply_live(target, live, [each for each in contracts if each != unwanted])
    _discard(live, target, unwanted)
    before = everything(live)
    assert rebuilt(target).swapped is not None
    assert everything(live) == before


def _discard(live: Connection, target: Target, contract: Contract) -> None:
    live.execute(
        """
        INSERT INTO quarantined_events (consumer_name, topic, partition, "offset", header_names, header_values,
            event_id, kind, category, reason, state, closed_at, closed_reason, content_hash)
        VALUES (%s, 'orders', 0, 1, '{}', '{}', %s, 'culprit', 'refused', 'r', 'discarded', now(), 'r', '')
        """,
        (target.name, contract.event_id),
    )
    live.execute(
        "INSERT INTO processed_events (consumer_name, event_id) VALUES (%s, %s)", (target.name, contract.event_id)
    )


def test_new_code_has_its_tables_beside_the_old_until_the_swap_and_the_old_cannot_write_after(
    target: Target, live: Connection
) -> None:
    class Newer(Inventory):
        version = 2

    newer = inventory_of(target.store_dsn, target.dsn, Newer())
    place(target.store_dsn, range(1, 5))
    apply_live(target, live, told(target))
    more = OrderCancelled(
        event_id="evt_more", event_type="OrderCancelled", schema_version=1, occurred_at=told(target)[0].occurred_at,
        order_id="ord_99", reason="r",
    )  # fmt: skip
    with pytest.raises(OtherVersion):
        apply_live(newer, live, [more])
    rebuilt(newer)
    before = everything(live)
    with pytest.raises(OtherVersion):
        apply_live(target, live, [more])
    assert everything(live) == before
    with pytest.raises(RebuildRefused, match="run this with the code of that version"):
        roll_back(newer, NEVER, 0.5)
    assert roll_back(target, NEVER, 0.5) is not None
    assert apply_live(target, live, [more]) == 1
    with pytest.raises(OtherVersion):
        apply_live(newer, live, [more])


def test_an_unfinished_rebuild_of_other_code_is_not_gone_on_with(target: Target, live: Connection) -> None:
    class Newer(Inventory):
        version = 2

    rebuilt(target, swap=False, accept_differences=True)
    with pytest.raises(RebuildRefused, match="begun by code of version 1"):
        rebuilt(inventory_of(target.store_dsn, target.dsn, Newer()))


def test_told_to_stop_it_keeps_what_it_has(target: Target, live: Connection) -> None:
    place(target.store_dsn, range(3))
    stop = Event()
    stop.set()
    assert rebuild(target, stop, AT_ONCE).stopped
    assert rebuilt(target, accept_differences=True).swapped is not None


def test_workers_share_the_work_only_where_the_projection_allows_it(target: Target) -> None:
    with pytest.raises(RebuildRefused, match="one worker"):
        rebuilt(target, workers=2)
