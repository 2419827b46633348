"""Show the whole way of orders on embedded services, and that all of them arrive."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from counterfoil.demo.account import Account, draw_up
from counterfoil.demo.house import House, open_house
from counterfoil.demo.journey import travel
from counterfoil.demo.shop import WRITERS, Shop
from counterfoil.output import complain, err, out, print_table
from infrastructure import logs
from infrastructure.supervisor import stop_on_signals

ENV_FILE = Path(".counterfoil/env")


def demo(
    orders: Annotated[int, typer.Option(min=10, help="How many orders to place.")] = 3_000,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up until Ctrl-C, for a look around.")] = False,
) -> None:
    """Place orders from several writers and see them reserved, with a relay and an inventory runner killed on the way.

    Ends with an account by event id. Exit code 1 when it does not balance, or when stopped before.
    """
    stop = stop_on_signals()
    logs.configure("text", "WARNING")  # what the processes do is in their own logs
    err.print("starting PostgreSQL, a Kafka-protocol broker in memory, two relays and two inventory runners")
    with open_house() as house, _link(house, keep):
        shop = Shop(orders)
        shop.fill_stock(house.inventory_dsn)
        err.print(f"{WRITERS} writers place {orders:,} orders, which makes {shop.events:,} events")
        if not travel(house, shop, stop):
            complain("Stopped before everything had arrived.")
            raise typer.Exit(1)
        account = draw_up(house)
        show(account)
        if not account.balanced:
            raise typer.Exit(1)
        if keep:
            stay(house, stop)


def show(account: Account) -> None:
    print_table(
        "The account, by event id",
        ("", ""),
        [
            ("stored", f"{len(account.stored):,}"),
            ("published", f"{len(account.published):,}"),
            ("processed", f"{len(account.processed):,}"),
            ("missing", account.missing),
            ("unknown", account.unknown),
            ("repeats in the topics, absorbed", account.messages - len(account.published)),
            ("in quarantine", account.quarantined),
            *((f"orders {status}", f"{number:,}") for status, number in sorted(account.statuses.items())),
            ("stock against a recount", "equal" if not account.stock_differs else f"differs: {account.stock_differs}"),
        ],
    )
    out.print("[green]Balanced.[/green]" if account.balanced else "[red]NOT BALANCED.[/red]")


@contextmanager
def _link(house: House, keep: bool) -> Iterator[None]:
    """Before the work, so that a folder that cannot be used is said at once."""
    if keep:
        try:
            house.link_env(ENV_FILE)
        except OSError as error:
            complain(f"--keep writes {ENV_FILE.absolute()}, which cannot be: {error}")
            raise typer.Exit(1) from None
    try:
        yield
    finally:
        if keep:
            ENV_FILE.unlink(missing_ok=True)


def stay(house: House, stop: Event) -> None:
    out.print(f"All is up. In another shell, in this folder: [bold]. {ENV_FILE}[/bold]  (Ctrl-C here ends it)")
    while not stop.wait(1.0):
        house.check()
