"""See what became of orders, and what customers have ordered: the read model that the store feeds."""

from contextlib import closing
from typing import Annotated

import typer

from counterfoil import arguments
from counterfoil.output import complain, print_fields, print_json, print_table
from infrastructure.postgres import Connection, connect
from infrastructure.settings import Settings
from projections.order_summary import queries
from projections.order_summary.projection import PROJECTION
from projections.waiting import PositionWatch

app = typer.Typer(no_args_is_help=True, help="The summary of orders and of customers' totals.")

After = Annotated[
    int,
    typer.Option(min=0, help="Only once all is applied that was stored at or below this position, as `orders` told."),
]
Wait = Annotated[float, typer.Option(help="Seconds to wait for that.", callback=arguments.seconds_to_wait)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def order(
    order_id: Annotated[str, typer.Argument(callback=arguments.identifier)],
    after: After = 0,
    wait: Wait = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show an order. Exit code 1 when the summary does not know it, or does not get so far in time."""
    with closing(_open(after, wait)) as summary:
        state = queries.order(summary, order_id)
    if state is None:
        complain(f"The summary has not heard of order {order_id!r} (yet). See `counterfoil status`.")
        raise typer.Exit(1)
    print_json(vars(state)) if as_json else print_fields(vars(state))


@app.command()
def customer(
    customer_id: Annotated[str, typer.Argument(callback=arguments.identifier)],
    after: After = 0,
    wait: Wait = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show what a customer has ordered, by currency; cancelled orders apart. Exit code 1 as for `order`."""
    with closing(_open(after, wait)) as summary:
        totals = queries.customer(summary, customer_id)
    if not totals:
        complain(f"The summary has not heard of customer {customer_id!r} (yet). See `counterfoil status`.")
        raise typer.Exit(1)
    if as_json:
        print_json([vars(total) for total in totals])
    else:
        columns = ("currency", "orders", "total (minor units)", "cancelled", "cancelled (minor units)")
        rows = [tuple(vars(total).values())[1:] for total in totals]
        print_table(customer_id, columns, rows)


def _open(after: int, wait: float) -> Connection:
    dsn = Settings.load().required_store_dsn()
    if after:
        with closing(PositionWatch(dsn, PROJECTION.consumer_name)) as watch:
            if not watch.wait_for(after, wait):
                complain(f"The summary has not come to position {after} within {wait:g} s. See `counterfoil status`.")
                raise typer.Exit(1)
    return connect(dsn, application_name="counterfoil summary")
