"""Place, import and show orders."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from counterfoil.order_files import Columns, CsvLayout, Entry, HeaderError, Refusal, read_csv, read_json_lines
from counterfoil.output import complain, err, print_fields, print_json
from domain.base import DomainError
from domain.money import to_minor_units
from domain.orders.application import Answer, Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from domain.orders.order import Order
from infrastructure.event_store import store_env
from infrastructure.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Place, cancel, import and show orders.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def open_orders() -> Orders:
    return Orders(env=store_env(Settings.load().required_store_dsn()))


@app.command()
def place(
    order_id: Annotated[str, typer.Argument(help="The same id again, with the same content, changes nothing.")],
    customer: Annotated[str, typer.Option(help="Customer id.")],
    line: Annotated[list[str], typer.Option(help="SKU:QUANTITY:UNIT_PRICE, such as pen:2:3.45; may be repeated.")],
    currency: Annotated[str, typer.Option(help="ISO 4217 code.")] = "EUR",
    as_json: AsJson = False,
) -> None:
    """Place an order."""
    lines = tuple(_line_item(text, currency) for text in line)
    command = PlaceOrder(order_id=order_id, customer_id=customer, currency=currency, lines=lines)
    with closing(open_orders()) as orders:
        _print_answer(orders.place(command), as_json)


@app.command()
def cancel(
    order_id: str, reason: Annotated[str, typer.Option(help="Why, in a few words.")], as_json: AsJson = False
) -> None:
    """Cancel an order."""
    with closing(open_orders()) as orders:
        _print_answer(orders.cancel(CancelOrder(order_id=order_id, reason=reason)), as_json)


@app.command()
def show(order_id: str, as_json: AsJson = False) -> None:
    """Show an order as its events make it."""
    with closing(open_orders()) as orders:
        order = orders.get(order_id)
    if order is None:
        complain(f"There is no order {order_id!r}.")
        raise typer.Exit(1)
    print_json(_as_dict(order)) if as_json else print_fields(_as_dict(order))


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="*.csv, else JSON Lines.")],
    column: Annotated[
        list[str] | None, typer.Option(help="OURS=THEIRS, such as order_id=InvoiceNo; may be repeated.")
    ] = None,
    currency: Annotated[str, typer.Option(help="Currency where the file has no such column.")] = "",
    time_format: Annotated[str, typer.Option(help="As for strptime; ISO 8601 when not given.")] = "",
    cancel_prefix: Annotated[
        str, typer.Option(help="An id that begins so cancels the order named by the rest of it, which must exist.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Import orders. What is refused is reported by line and never stops the rest; the exit code is 1 then.

    An order one of whose CSV rows is refused is refused whole: half an order is a wrong order.
    """
    layout = CsvLayout(_columns(column or []), currency, time_format, cancel_prefix)
    with closing(open_orders()) as orders, file.open("rb") as lines:
        entries = read_csv(lines, layout) if file.suffix.lower() == ".csv" else read_json_lines(lines)
        try:
            summary, refusals = _import(orders, entries)
        except HeaderError as error:
            raise typer.BadParameter(f"{error}. Map columns with --column OURS=THEIRS.") from None
    if as_json:
        print_json({**summary, "refusals": [{"line": each.line, "reason": each.reason} for each in refusals]})
    else:
        print_fields(summary)
    if refusals:
        raise typer.Exit(1)


def _import(orders: Orders, entries: Iterator[Entry | Refusal]) -> tuple[dict[str, int], list[Refusal]]:
    counts: Counter[str] = Counter()
    refusals = []
    for entry in entries:
        outcome = entry if isinstance(entry, Refusal) else _carry_out(orders, entry)
        if isinstance(outcome, Refusal):
            err.print(f"line {outcome.line}: {outcome.reason}", markup=False)
            refusals.append(outcome)
        else:
            counts[outcome] += 1
    return {name: counts[name] for name in ("placed", "cancelled", "unchanged")} | {"refused": len(refusals)}, refusals


def _carry_out(orders: Orders, entry: Entry) -> str | Refusal:
    """What became of the command: placed, cancelled or unchanged; or why it was refused."""
    try:
        if isinstance(entry.command, PlaceOrder):
            return "placed" if orders.place(entry.command).changed else "unchanged"
        return "cancelled" if orders.cancel(entry.command).changed else "unchanged"
    except DomainError as error:
        return Refusal(entry.line, str(error))


def _columns(mappings: list[str]) -> Columns:
    pairs = dict(mapping.partition("=")[::2] for mapping in mappings)
    unknown = pairs.keys() - Columns.__dataclass_fields__.keys()
    if unknown or "" in pairs.values():
        names = ", ".join(Columns.__dataclass_fields__)
        raise typer.BadParameter(f"--column takes OURS=THEIRS, where OURS is one of {names}")
    return Columns(**pairs)


def _line_item(text: str, currency: str) -> LineItem:
    """A sku may hold colons; quantity and price stand after the last two."""
    try:
        sku, quantity, price = text.rsplit(":", 2)
        return LineItem(sku=sku, quantity=int(quantity), unit_price_minor=to_minor_units(price, currency))
    except ValueError as error:
        raise typer.BadParameter(f"--line {text!r} is not SKU:QUANTITY:UNIT_PRICE: {error}") from None


def _print_answer(answer: Answer, as_json: bool) -> None:
    fields = {"changed": answer.changed, **_as_dict(answer.order)}
    print_json(fields) if as_json else print_fields(fields)


def _as_dict(order: Order) -> dict[str, object]:
    return {
        "order_id": order.id,
        "status": order.status,
        "customer_id": order.customer_id,
        "currency": order.currency,
        "total_minor": order.total_minor,
        "lines": [line.model_dump(by_alias=False) for line in order.lines],
        "placed_at": _iso(order.placed_at or order.created_on),
        "cancelled_because": order.cancelled_because,
        "version": order.version,
    }


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
