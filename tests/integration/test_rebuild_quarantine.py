"""What is refused or in quarantine when tables change places is never lost, and never applied twice."""

from collections.abc import Iterator, Sequence

import pytest
from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from infrastructure.migrate import migrate
from projections.base import Quarantine
from projections.discarding import discard
from projections.entries import ParkedKey
from projections.inventory.projection import Inventory
from projections.rebuild import abandon, roll_back
from projections.rebuilding.errors import RebuildRefused, TablesDiffer
from projections.rebuilding.target import Target
from projections.redriving import Redriver
from tests.support import counting
from tests.support.counting.projection import Counting
from tests.support.inventory import connected, count, everything, fill
from tests.support.rebuilding import NEVER, apply_live, inventory_of, place, rebuilt, told, with_projection

TABLES = ("stock", "reservations", "reservation_lines", "processed_events", "quarantined_events")


class Picky(Inventory):
    """Refuses two orders."""

    def handle_batch(self, contracts, tx):  # type: ignore[no-untyped-def]
        refused = {each.event_id: Quarantine("order_id: not this one") for each in contracts if _is_unwanted(each)}
        return refused or super().handle_batch(contracts, tx)


class PickyCounting(Counting):
    def handle(self, contract: Contract, tx: Connection) -> Quarantine | None:
        return Quarantine("order_id: not this one") if _is_unwanted(contract) else super().handle(contract, tx)


def _is_unwanted(contract: Contract) -> bool:
    return isinstance(contract, OrderPlaced) and contract.order_id in ("ord_6", "ord_66")


@pytest.fixture
def target(store_dsn: str, inventory_dsn: str) -> Target:
    return inventory_of(store_dsn, inventory_dsn)


@pytest.fixture
def picky(target: Target) -> Target:
    return with_projection(target, Picky())


@pytest.fixture
def live(target: Target) -> Iterator[Connection]:
    """With plenty in stock, and eight orders stored, the sixth placed and cancelled."""
    place(target.store_dsn, range(1, 9), cancel_every=6)
    with connected(target.dsn) as connection:
        fill(connection, {"pen": 100_000, "ink": 100_000, "pad": 100_000})
        yield connection


def claimed(live: Connection, contracts: Sequence[Contract]) -> int:
    ids = [each.event_id for each in contracts]
    return len(live.execute("SELECT FROM processed_events WHERE event_id = ANY (%s)", (ids,)).fetchall())


def of_the_sixth(target: Target) -> list[Contract]:
    return [each for each in told(target) if each.key == "ord_6"]


def parked(live: Connection) -> list[int]:
    return [each for (each,) in live.execute("SELECT id FROM quarantined_events WHERE state = 'parked' ORDER BY id")]


def discard_the_first_and_release_the_other(target: Target, live: Connection) -> None:
    assert discard(live, target.name, parked(live)[0], "not wanted", "a person")
    assert Redriver(target.projection, live).redrive(ParkedKey(b"ord_6"), NEVER).released == 1


def test_a_swap_that_would_swallow_the_effect_of_a_parked_event_is_refused(store_dsn: str, empty_dsn: str) -> None:
    migrate(empty_dsn, counting.MIGRATIONS)
    repaired = Target.of("tests.support.counting", store_dsn, empty_dsn)
    place(store_dsn, range(5, 9))
    with connected(empty_dsn) as live:
        apply_live(with_projection(repaired, PickyCounting()), live, told(repaired))
        assert count(live, "outgoing_effects") == 4
        with pytest.raises(RebuildRefused, match="quarantine"):
            rebuilt(repaired, accept_differences=True)
        assert claimed(live, of_the_sixth(repaired)) == 0


def test_there_is_no_way_back_to_tables_that_lack_what_was_parked(
    target: Target, picky: Target, live: Connection
) -> None:
    apply_live(picky, live, told(target))
    swapped = rebuilt(target, accept_differences=True).swapped
    assert swapped is not None
    assert not swapped.returnable
    before = everything(live, TABLES)
    with pytest.raises(RebuildRefused, match="did not hold the same events"):
        roll_back(target, NEVER, 0.5)
    assert everything(live, TABLES) == before


def test_what_both_codes_refuse_and_is_still_parked_does_not_bar_the_way_back(
    target: Target, picky: Target, live: Connection
) -> None:
    apply_live(picky, live, told(target))
    before = everything(live, TABLES)
    swapped = rebuilt(picky).swapped
    assert swapped is not None
    assert swapped.returnable
    assert roll_back(picky, NEVER, 0.5) is not None
    assert everything(live, TABLES) == before


def test_what_was_discarded_since_stays_away_there_and_back(target: Target, picky: Target, live: Connection) -> None:
    apply_live(picky, live, told(target))
    rebuilt(picky)
    for entry_id in parked(live):
        assert discard(live, target.name, entry_id, "not wanted", "a person")
    before = everything(live, TABLES)
    assert roll_back(picky, NEVER, 0.5) is not None
    assert everything(live, TABLES) == before


def test_what_was_discarded_after_the_rebuild_had_applied_it_is_told(
    target: Target, picky: Target, live: Connection
) -> None:
    apply_live(picky, live, told(target))
    rebuilt(target, swap=False, accept_differences=True)
    for entry_id in parked(live):
        assert discard(live, target.name, entry_id, "not wanted", "a person")
    with pytest.raises(TablesDiffer, match="2 events that were discarded after the rebuild had applied them"):
        rebuilt(target)
    abandon(target)
    before = everything(live, TABLES)
    assert rebuilt(target).swapped is not None
    assert everything(live, TABLES) == before


def test_there_is_no_way_back_once_somebody_has_decided_about_what_was_parked(
    target: Target, picky: Target, live: Connection
) -> None:
    apply_live(picky, live, told(target))
    rebuilt(picky)
    discard_the_first_and_release_the_other(picky, live)
    assert claimed(live, of_the_sixth(target)) == 2
    before = everything(live, TABLES)
    with pytest.raises(RebuildRefused, match=r"would not hold the same events: \d events that the handler refuses"):
        roll_back(picky, NEVER, 0.5)
    assert everything(live, TABLES) == before


def test_there_is_no_way_back_with_code_that_refuses_what_was_applied_since(
    target: Target, picky: Target, live: Connection
) -> None:
    apply_live(target, live, told(target))
    rebuilt(target)
    place(target.store_dsn, [66], cancel_every=100)
    apply_live(target, live, told(target))
    before = everything(live, TABLES)
    with pytest.raises(RebuildRefused, match=r"would not hold the same events: \d events that the handler refuses"):
        roll_back(picky, NEVER, 0.5)
    assert everything(live, TABLES) == before


def test_what_only_the_former_tables_hold_is_not_applied_to_them_again(
    target: Target, picky: Target, live: Connection
) -> None:
    """They come again after the swap and are parked; a redrive after a way back would do it."""
    contracts = told(target)
    apply_live(target, live, contracts)
    swapped = rebuilt(picky, accept_differences=True).swapped
    assert swapped is not None
    assert not swapped.returnable
    apply_live(picky, live, contracts)
    with pytest.raises(RebuildRefused, match="did not hold the same events"):
        roll_back(target, NEVER, 0.5)
