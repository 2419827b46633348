"""Say how much there is, and see what is reserved."""

from contextlib import closing
from time import monotonic
from typing import Annotated

import typer

from counterfoil import arguments
from counterfoil.output import complain, print_json, print_table
from infrastructure.postgres import Connection, connect
from infrastructure.settings import projection_dsn
from infrastructure.supervisor import stop_on_signals
from projections.inventory import queries
from projections.inventory.queries import Reservation

app = typer.Typer(no_args_is_help=True, help="The inventory's stock and reservations.")

_POLL = 0.05


def open_inventory() -> Connection:
    return connect(projection_dsn("inventory"), application_name="counterfoil stock")


@app.command("set")
def set_(sku: str, on_hand: Annotated[int, typer.Argument(help="Pieces on hand, reserved ones included.")]) -> None:
    """Say how many pieces of a sku are on hand."""
    with closing(open_inventory()) as inventory:
        level = queries.set_stock(inventory, sku, on_hand)
    print_table("Stock", ("sku", "on hand", "reserved"), [(level.sku, level.on_hand, level.reserved)])


@app.command()
def show(
    order: Annotated[
        str | None, typer.Option(help="Show what became of this order instead.", callback=arguments.identifier)
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for the order to arrive.", callback=arguments.seconds_to_wait)
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the stock, or with --order what inventory made of an order. Exit code 1 when it has not arrived."""
    with closing(open_inventory()) as inventory:
        if order is None:
            _show_stock(inventory, as_json)
        else:
            _show_order(_arrived(inventory, order, wait), order, as_json)


def _show_stock(inventory: Connection, as_json: bool) -> None:
    levels = queries.stock(inventory)
    if as_json:
        print_json([vars(level) | {"available": level.available} for level in levels])
    else:
        rows = [(level.sku, level.on_hand, level.reserved, level.available) for level in levels]
        print_table("Stock", ("sku", "on hand", "reserved", "available"), rows)


def _show_order(reservation: Reservation | None, order_id: str, as_json: bool) -> None:
    if reservation is None:
        complain(f"Inventory has not heard of order {order_id!r} (yet). See `counterfoil status`.")
        raise typer.Exit(1)
    if as_json:
        print_json(vars(reservation) | {"lines": [vars(line) for line in reservation.lines]})
    else:
        lines = [(line.sku, line.quantity, line.missing) for line in reservation.lines]
        print_table(f"{reservation.order_id}: {reservation.status}", ("sku", "quantity", "missing"), lines)


def _arrived(inventory: Connection, order_id: str, wait: float) -> Reservation | None:
    stop, deadline = stop_on_signals(), monotonic() + wait
    while True:
        reservation = queries.reservation(inventory, order_id)
        if reservation is not None or monotonic() >= deadline or stop.wait(_POLL):
            return reservation
