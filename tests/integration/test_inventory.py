"""What the inventory makes of each event, in whichever order they come."""

import itertools
import random
from collections.abc import Iterator

import pytest
from psycopg import Connection
from psycopg.errors import CheckViolation

from domain.base import DomainError
from domain.contracts import Contract
from projections.decoding import Category
from projections.inventory.queries import Reservation, ReservationLine, Stock, reservation, set_stock, stock
from tests.support.inventory import apply, connected, count, everything, fill
from tests.support.messages import cancelled, placed


@pytest.fixture
def inventory(inventory_dsn: str) -> Iterator[Connection]:
    """With 10 pens and 3 inks."""
    with connected(inventory_dsn) as connection:
        fill(connection, {"pen": 10, "ink": 3})
        yield connection


def test_an_order_reserves_all_its_lines(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("pen", 2), ("ink", 3)))
    lines = (ReservationLine("ink", 3, 0), ReservationLine("pen", 2, 0))
    assert reservation(inventory, "ord_1") == Reservation("ord_1", "reserved", lines)
    assert stock(inventory) == [Stock("ink", 3, 3), Stock("pen", 10, 2)]


def test_too_little_of_one_sku_reserves_nothing_and_records_what_is_missing(inventory: Connection) -> None:
    outcome = apply(inventory, placed("ord_1", ("pen", 2), ("ink", 5)))
    lines = (ReservationLine("ink", 5, 2), ReservationLine("pen", 2, 0))
    assert reservation(inventory, "ord_1") == Reservation("ord_1", "rejected", lines)
    assert stock(inventory) == [Stock("ink", 3, 0), Stock("pen", 10, 0)]
    assert (outcome.applied, outcome.parked) == (1, [])


def test_a_sku_nobody_knows_counts_as_none_on_hand(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("chalk", 4)))
    assert reservation(inventory, "ord_1") == Reservation("ord_1", "rejected", (ReservationLine("chalk", 4, 4),))


def test_lines_of_one_sku_are_added_up(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("ink", 2), ("pen", 1), ("ink", 2)))
    found = reservation(inventory, "ord_1")
    assert found == Reservation("ord_1", "rejected", (ReservationLine("ink", 4, 1), ReservationLine("pen", 1, 0)))


def test_what_is_reserved_is_not_available_to_the_next_order_of_the_same_batch(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("ink", 2)), placed("ord_2", ("ink", 2)), placed("ord_3", ("ink", 1)))
    found = {order_id: reservation(inventory, order_id) for order_id in ("ord_1", "ord_2", "ord_3")}
    assert [each and each.status for each in found.values()] == ["reserved", "rejected", "reserved"]


def test_an_order_without_lines_is_quarantined_with_that_reason(inventory: Connection) -> None:
    event = placed("ord_1")
    outcome = apply(inventory, event)
    [(_, fault)] = outcome.parked
    assert (fault.category, "lines" in fault.reason, fault.event_id) == (Category.REFUSED, True, event.event_id)
    assert reservation(inventory, "ord_1") is None
    assert count(inventory, "quarantined_events") == 1


def test_a_cancelled_order_releases_what_it_reserved(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("pen", 2), ("ink", 3)), placed("ord_2", ("pen", 1)))
    apply(inventory, cancelled("ord_1"))
    assert reservation(inventory, "ord_1") == Reservation("ord_1", "cancelled", ())
    assert stock(inventory) == [Stock("ink", 3, 0), Stock("pen", 10, 1)]


def test_a_cancelled_order_that_was_rejected_releases_nothing(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("pen", 3)), placed("ord_2", ("pen", 8)))
    apply(inventory, cancelled("ord_2"))
    assert reservation(inventory, "ord_2") == Reservation("ord_2", "cancelled", ())
    assert stock(inventory) == [Stock("ink", 3, 0), Stock("pen", 10, 3)]


def test_an_order_whose_cancellation_came_first_reserves_nothing(inventory: Connection) -> None:
    apply(inventory, cancelled("ord_1"))
    apply(inventory, placed("ord_1", ("pen", 2)))
    assert reservation(inventory, "ord_1") == Reservation("ord_1", "cancelled", ())
    assert stock(inventory) == [Stock("ink", 3, 0), Stock("pen", 10, 0)]


@pytest.mark.parametrize("lines", [[("pen", 2), ("ink", 1)], [("pen", 2), ("ink", 9)]], ids=["enough", "too little"])
@pytest.mark.parametrize("batches", ["one batch", "a batch each"])
def test_the_end_is_the_same_whichever_event_comes_first(
    inventory_dsn: str, lines: list[tuple[str, int]], batches: str
) -> None:
    ends = []
    both: list[Contract] = [placed("ord_1", *lines), cancelled("ord_1")]
    for order in itertools.permutations(both):
        with connected(inventory_dsn) as connection:
            fill(connection, {"pen": 10, "ink": 3})
            for batch in [order] if batches == "one batch" else [(each,) for each in order]:
                apply(connection, *batch)
            ends.append(everything(connection))
            connection.execute("TRUNCATE stock, reservations, reservation_lines, processed_events")
    assert ends[0] == ends[1]
    assert ends[0]["reservation_lines"] == []


def test_the_same_order_told_twice_under_two_ids_reserves_once(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("pen", 2)))
    before = everything(inventory)
    apply(inventory, placed("ord_1", ("pen", 2)), placed("ord_1", ("pen", 3)))
    assert everything(inventory) == before


def test_two_cancellations_release_once(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("pen", 2)), placed("ord_2", ("pen", 2)))
    apply(inventory, cancelled("ord_1"), cancelled("ord_1"))
    apply(inventory, cancelled("ord_1"))
    assert stock(inventory) == [Stock("ink", 3, 0), Stock("pen", 10, 2)]


def test_two_orders_of_one_customer_alike_in_everything_but_id_are_two(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("pen", 2)), placed("ord_2", ("pen", 2)))
    assert stock(inventory) == [Stock("ink", 3, 0), Stock("pen", 10, 4)]


def test_no_order_stays_undecided(inventory: Connection) -> None:
    events: list[Contract] = [placed("ord_1"), placed("ord_2", ("pen", 1)), cancelled("ord_3"), placed("ord_3")]
    apply(inventory, *events)
    assert everything(inventory)["reservations"] == [("ord_2", "reserved"), ("ord_3", "cancelled")]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_any_events_ends_as_a_plain_recount(inventory: Connection, seed: int) -> None:
    """Cancellations before or after their orders, batches of any size."""
    chance = random.Random(seed)
    orders = {f"ord_{n}": chance.choice(["pen", "ink"]) for n in range(12)}
    events: list[Contract] = []
    for order_id, sku in orders.items():
        own: list[Contract] = [placed(order_id, (sku, chance.randint(1, 3)))]
        if chance.random() < 0.4:
            own.append(cancelled(order_id))
        for event in own:
            events.insert(chance.randint(0, len(events)), event)
    while events:
        size = chance.randint(1, 5)
        apply(inventory, *events[:size])
        events = events[size:]
    reserved = {"ink": 0, "pen": 0}
    for order_id, sku in orders.items():
        found = reservation(inventory, order_id)
        assert found is not None
        if found.status == "reserved":
            reserved[sku] += sum(line.quantity for line in found.lines)
    assert stock(inventory) == [Stock("ink", 3, reserved["ink"]), Stock("pen", 10, reserved["pen"])]


@pytest.mark.parametrize("reserved", [11, -1])
def test_the_database_itself_refuses_an_oversell(inventory: Connection, reserved: int) -> None:
    with pytest.raises(CheckViolation):
        inventory.execute("UPDATE stock SET reserved = %s WHERE sku = 'pen'", (reserved,))


def test_stock_is_never_set_below_what_is_reserved(inventory: Connection) -> None:
    apply(inventory, placed("ord_1", ("pen", 4)))
    with pytest.raises(DomainError) as refused:
        set_stock(inventory, "pen", 3)
    assert (refused.value.rule, refused.value.aggregate_id) == ("stock_below_reserved", "pen")
    assert set_stock(inventory, "pen", 4) == Stock("pen", 4, 4)


@pytest.mark.parametrize("sku", ["", " pen", "pe\0n", "x" * 129])
def test_a_sku_that_no_contract_could_name_is_refused(inventory: Connection, sku: str) -> None:
    with pytest.raises(DomainError) as refused:
        set_stock(inventory, sku, 1)
    assert refused.value.rule == "invalid_sku"


@pytest.mark.parametrize("on_hand", [-1, 2**53])
def test_a_quantity_that_cannot_be_is_refused(inventory: Connection, on_hand: int) -> None:
    with pytest.raises(DomainError) as refused:
        set_stock(inventory, "pen", on_hand)
    assert refused.value.rule == "invalid_quantity"


def test_an_order_nobody_told_of_has_no_reservation(inventory: Connection) -> None:
    assert reservation(inventory, "ord_1") is None
