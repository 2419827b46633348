"""Show the whole way of an order on embedded services."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from counterfoil.demo import open_house, place_some_orders, watch_them_arrive, write_env
from counterfoil.output import err, out, print_table
from infrastructure.postgres import connect
from infrastructure.supervisor import stop_on_signals
from projections.inventory.queries import Reservation, stock

ENV_FILE = Path(".counterfoil/env")


def demo(
    keep: Annotated[bool, typer.Option(help="Stay up until Ctrl-C, for a look around.")] = False,
) -> None:
    """Place orders here and see them reserved over there, on an embedded PostgreSQL and broker."""
    stop = stop_on_signals()
    err.print("starting PostgreSQL, a Kafka-protocol broker in memory, a relay and an inventory runner ...")
    with open_house() as house:
        expected = place_some_orders(house)
        err.print("orders are stored; waiting for them to arrive at inventory ...")
        arrived = watch_them_arrive(house, expected, stop)
        with closing(connect(house.inventory_dsn, application_name="counterfoil demo")) as inventory:
            levels = stock(inventory)
        print_table(
            "What inventory made of the orders",
            ("order", "status", "lines"),
            [(each.order_id, each.status, _lines(each)) for each in arrived.values()],
        )
        print_table("Stock", ("sku", "on hand", "reserved"), [(s.sku, s.on_hand, s.reserved) for s in levels])
        if keep and not stop.is_set():
            write_env(house, ENV_FILE)
            out.print(f"All is up. In another shell: [bold]. {ENV_FILE}[/bold]  (Ctrl-C here ends it)")
            try:
                while not stop.wait(1.0):
                    house.check()
            finally:
                ENV_FILE.unlink(missing_ok=True)


def _lines(reservation: Reservation) -> str:
    return ", ".join(
        f"{line.quantity} {line.sku}" + (f" ({line.missing} missing)" if line.missing else "")
        for line in reservation.lines
    )
