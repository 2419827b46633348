"""Place, import and show orders."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from counterfoil import arguments
from counterfoil.order_files import (
    Columns,
    CsvLayout,
    Entry,
    HeaderError,
    MissingColumns,
    Refusal,
    check_time_format,
    names_of_columns,
    read_csv,
    read_json_lines,
)
from counterfoil.output import complain, err, print_fields, print_json, rfc3339
from domain.base import DomainError
from domain.errors import problems_of
from domain.money import to_minor_units
from domain.orders.application import Answer, Orders
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from domain.orders.order import Order
from infrastructure.event_store import store_env
from infrastructure.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Place, cancel, import and show orders.")

OrderId = Annotated[
    str, typer.Argument(help="Id of an order that was placed or imported.", callback=arguments.identifier)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def open_orders() -> Orders:
    return Orders(env=store_env(Settings.load().required_store_dsn()))


@app.command()
def place(
    order_id: Annotated[
        str,
        typer.Argument(
            help="The same id again, with the same content, changes nothing.", callback=arguments.identifier
        ),
    ],
    customer: Annotated[str, typer.Option(help="Customer id.", callback=arguments.identifier)],
    line: Annotated[list[str], typer.Option(help="SKU:QUANTITY:UNIT_PRICE, such as pen:2:3.45; may be repeated.")],
    currency: Annotated[str, typer.Option(help="ISO 4217 code.", callback=arguments.currency)] = "EUR",
    as_json: AsJson = False,
) -> None:
    """Place an order."""
    lines = tuple(_line_item(text, currency) for text in line)
    command = PlaceOrder(order_id=order_id, customer_id=customer, currency=currency, lines=lines)
    with closing(open_orders()) as orders:
        _print_answer(orders.place(command), as_json)


@app.command()
def cancel(
    order_id: OrderId, reason: Annotated[str, typer.Option(help="Why, in a few words.")], as_json: AsJson = False
) -> None:
    """Cancel an order."""
    with closing(open_orders()) as orders:
        _print_answer(orders.cancel(CancelOrder(order_id=order_id, reason=reason)), as_json)


@app.command()
def show(order_id: OrderId, as_json: AsJson = False) -> None:
    """Show an order as its events make it."""
    with closing(open_orders()) as orders:
        order = orders.get(order_id)
    if order is None:
        complain(f"There is no order {order_id!r}.")
        raise typer.Exit(1)
    print_json(_as_dict(order)) if as_json else print_fields(_for_people(order))


def _time_format(text: str) -> str:
    try:
        check_time_format(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


@app.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="*.csv, else JSON Lines. Standard input is not read."),
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(
            help=f"OURS=THEIRS, such as order_id=InvoiceNo; may be repeated. OURS: {', '.join(names_of_columns())}."
        ),
    ] = None,
    currency: Annotated[str, typer.Option(help="Currency where the file says none.", callback=arguments.currency)] = "",
    time_format: Annotated[
        str, typer.Option(help="As for strptime; ISO 8601 when not given.", callback=_time_format)
    ] = "",
    cancel_prefix: Annotated[
        str, typer.Option(help="An id that begins so cancels the order named by the rest of it, which must exist.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Import orders. What is refused is reported by line and never stops the rest; the exit code is 1 then.

    CSV has a header and one line item a row; all options but --json are for CSV alone. An order one of whose
    rows is refused is refused whole: half an order is a wrong order.

    JSON Lines have one order a line, where placedAt may be left out:
    {"orderId": "o-1", "customerId": "c-1", "currency": "EUR", "placedAt": "2026-01-31T12:00:00Z",
    "lines": [{"sku": "pen", "quantity": 2, "unitPriceMinor": 345}]}

    The summary counts orders and cancellations (placed, cancelled, unchanged, refused), and lines reported.
    """
    is_csv = file.suffix.lower() == ".csv"
    if not is_csv and (column or currency or time_format or cancel_prefix):
        raise typer.BadParameter(f"only --json applies to {file.name}, which is read as JSON Lines; CSV is named *.csv")
    layout = CsvLayout(_columns(column or []), currency, time_format, cancel_prefix)
    with closing(open_orders()) as orders, file.open("rb") as lines:
        entries = read_csv(lines, layout) if is_csv else read_json_lines(lines)
        try:
            summary, refusals = _import(orders, entries, tell_at_once=not is_csv)
        except MissingColumns as error:
            raise typer.BadParameter(f"{error}. Map columns with --column OURS=THEIRS.") from None
        except HeaderError as error:
            raise typer.BadParameter(f"{error}.") from None
    if as_json:
        print_json({**summary, "refusals": [{"line": each.line, "reason": each.reason} for each in refusals]})
    else:
        print_fields({name.replace("_", " "): count for name, count in summary.items()})
    if refusals:
        raise typer.Exit(1)


def _import(
    orders: Orders, entries: Iterator[Entry | Refusal], *, tell_at_once: bool
) -> tuple[dict[str, int], list[Refusal]]:
    """The summary, and the refusals by line; those of a file that is read in one piece are told in that order."""
    counts = Counter({"placed": 0, "cancelled": 0, "unchanged": 0, "refused": 0})
    refusals = []
    for entry in entries:
        outcome = entry if isinstance(entry, Refusal) else _carry_out(orders, entry)
        if isinstance(outcome, Refusal):
            refusals.append(outcome)
            counts["refused"] += outcome.whole
            if tell_at_once:
                _tell(outcome)
        else:
            counts[outcome] += 1
    refusals.sort(key=lambda refusal: refusal.line)
    if not tell_at_once:
        for refusal in refusals:
            _tell(refusal)
    return {**counts, "lines_reported": len(refusals)}, refusals


def _tell(refusal: Refusal) -> None:
    err.print(f"line {refusal.line}: {refusal.reason}", markup=False)


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
    if pairs.keys() - set(names_of_columns()) or "" in pairs.values() or len(pairs) < len(mappings):
        names = ", ".join(names_of_columns())
        raise typer.BadParameter(f"--column takes OURS=THEIRS, where OURS is one of {names}, each at most once")
    return Columns(**pairs)


_LINE = re.compile(r"(?P<sku>.*):(?P<quantity>[0-9]{1,10}):(?P<price>[^:]*)", re.DOTALL)
"""A sku may hold colons; quantity and price stand after the last two."""


def _line_item(text: str, currency: str) -> LineItem:
    parts = _LINE.fullmatch(text)
    if parts is None:
        raise _wrong_line(text, "QUANTITY is a whole number in digits, such as 2, UNIT_PRICE a decimal, such as 3.45")
    try:
        price = to_minor_units(parts["price"], currency)
        return LineItem(sku=parts["sku"], quantity=int(parts["quantity"]), unit_price_minor=price)
    except ValidationError as error:
        raise _wrong_line(text, problems_of(error)) from None
    except ValueError as error:
        raise _wrong_line(text, str(error)) from None


def _wrong_line(text: str, reason: str) -> typer.BadParameter:
    return typer.BadParameter(f"{text!r} is not SKU:QUANTITY:UNIT_PRICE: {reason}", param_hint="--line")


def _print_answer(answer: Answer, as_json: bool) -> None:
    if as_json:
        print_json({"changed": answer.changed, "position": answer.position, **_as_dict(answer.order)})
    else:
        print_fields({"changed": answer.changed, "position": answer.position, **_for_people(answer.order)})


def _for_people(order: Order) -> dict[str, object]:
    lines = [f"{line.quantity} x {line.sku} at {line.unit_price_minor}" for line in order.lines]
    return {**_as_dict(order), "lines": lines}


def _as_dict(order: Order) -> dict[str, object]:
    return {
        "order_id": order.id,
        "status": order.status,
        "customer_id": order.customer_id,
        "currency": order.currency,
        "total_minor": order.total_minor,
        "lines": [line.model_dump(by_alias=False) for line in order.lines],
        "placed_at": rfc3339(order.placed_at or order.created_on),
        "cancelled_because": order.cancelled_because,
        "version": order.version,
    }
