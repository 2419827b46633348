"""Orders from a file: what can be read becomes commands, what cannot is reported by line number.

JSON Lines: one order a line, the fields of PlaceOrder in camel case. CSV: one line item a row, a header first,
one record a line (a quoted field cannot hold a line break, so that a stray quote spoils its own line only).
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from domain.errors import problems_of
from domain.money import to_minor_units
from domain.orders.commands import CancelOrder, LineItem, PlaceOrder
from domain.strict_json import repeated_names


@dataclass(frozen=True)
class Entry:
    """One command and the line (from 1) on which it starts."""

    line: int
    command: PlaceOrder | CancelOrder


@dataclass(frozen=True)
class Refusal:
    """What could not become part of a command, at most one of these a line. reason names fields and rules.

    whole: an order or a cancellation is refused by this, not only a row that may belong to one.
    """

    line: int
    reason: str
    whole: bool = True


@dataclass(frozen=True)
class Columns:
    """The header's names for what a CSV row must say. What is named here must be in the file; where currency
    or time is empty, the column of our name is read if there is one."""

    order_id: str = "order_id"
    customer_id: str = "customer_id"
    sku: str = "sku"
    quantity: str = "quantity"
    unit_price: str = "unit_price"
    currency: str = ""
    time: str = ""


@dataclass(frozen=True)
class CsvLayout:
    """currency: used where the file has no such column. time_format: as for strptime, ISO 8601 when empty;
    a time without a zone is taken as UTC. cancel_prefix: an order id that begins with it cancels the order
    named by the rest of it; none does when empty."""

    columns: Columns = field(default_factory=Columns)
    currency: str = ""
    time_format: str = ""
    cancel_prefix: str = ""


class HeaderError(ValueError):
    """The first line is no CSV header; the text says why."""


class MissingColumns(HeaderError):
    """The header lacks columns; the text names them and those it has."""


def names_of_columns() -> tuple[str, ...]:
    """Our names, in the order in which to show them."""
    return tuple(each.name for each in fields(Columns))


def read_json_lines(lines: Iterable[bytes]) -> Iterator[Entry | Refusal]:
    """Blank lines are passed over. Order of the file is kept. Reasons name fields as the file does."""
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        try:
            command = PlaceOrder.model_validate_json(text)
        except ValidationError as error:
            yield Refusal(number, problems_of(error, name=_as_in_json))
            continue
        repeated = repeated_names(text)
        yield (
            Refusal(number, f"{repeated} field names occur twice in one object") if repeated else Entry(number, command)
        )


def read_csv(lines: Iterable[bytes], layout: CsvLayout) -> Iterator[Entry | Refusal]:
    """Rows of one order are put together wherever they stand in the file, which is held in memory for that.

    An order one of whose rows is refused is refused whole: half an order is a wrong order. Refusals come first,
    by line; then orders; then cancellations, so that a second reading of the same file changes nothing.
    Raises HeaderError before anything else.
    """
    found = list(_read_csv(lines, layout))
    yield from sorted((each for each in found if isinstance(each, Refusal)), key=lambda refusal: refusal.line)
    yield from (each for each in found if isinstance(each, Entry))


def _read_csv(lines: Iterable[bytes], layout: CsvLayout) -> Iterator[Entry | Refusal]:
    orders: dict[str, _Draft] = {}
    cancellations: dict[str, Entry | Refusal] = {}
    for row in _rows(lines, layout):
        if isinstance(row, Refusal):
            yield row
        elif layout.cancel_prefix and row.order_id.startswith(layout.cancel_prefix):
            cancellations.setdefault(row.order_id, _cancellation(row, layout))
        else:
            orders.setdefault(row.order_id, _Draft(row)).add(row, layout)
    for draft in orders.values():
        yield from draft.outcome(layout)
    yield from cancellations.values()


@dataclass(frozen=True)
class _Row:
    """The texts of one row, under our names; an empty one where the file has no such column."""

    line: int
    order_id: str
    customer_id: str
    sku: str
    quantity: str
    unit_price: str
    currency: str
    time: str


@dataclass
class _Draft:
    """The rows of one order so far. The first row says whose order it is, and when it was placed."""

    first: _Row
    items: list[LineItem] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)

    def add(self, row: _Row, layout: CsvLayout) -> None:
        try:
            self._must_belong(row)
            self.items.append(_line_item(row, _currency(row, layout)))
        except ValueError as error:
            self.refused[row.line] = _reason(error)

    def outcome(self, layout: CsvLayout) -> Iterator[Entry | Refusal]:
        if self.refused:
            yield from self._refusals()
        else:
            yield self._finished(layout)

    def _refusals(self) -> list[Refusal]:
        """One for each refused row, and one for the order, which stands at its first line."""
        first, rows = self.first.line, dict(self.refused)
        left_out = f"order {self.first.order_id!r} is left out"
        others = [str(line) for line in rows if line != first]
        because = f" because of line {', '.join(others)}" if first not in rows else ""
        reason = "; ".join(filter(None, (rows.pop(first, ""), left_out + because)))
        return [Refusal(first, reason), *(Refusal(line, text, whole=False) for line, text in rows.items())]

    def _finished(self, layout: CsvLayout) -> Entry | Refusal:
        try:
            command = PlaceOrder(
                order_id=self.first.order_id,
                customer_id=self.first.customer_id,
                currency=_currency(self.first, layout),
                lines=tuple(self.items),
                placed_at=_time(self.first.time, layout.time_format),
            )
        except ValueError as error:
            return Refusal(self.first.line, _reason(error))
        return Entry(self.first.line, command)

    def _must_belong(self, row: _Row) -> None:
        if not row.customer_id:
            raise ValueError("customer_id is missing")
        for name in ("customer_id", "currency"):
            if getattr(row, name) != getattr(self.first, name):
                raise ValueError(f"{name} differs from line {self.first.line} of the same order")


def _rows(lines: Iterable[bytes], layout: CsvLayout) -> Iterator[_Row | Refusal]:
    numbered = enumerate(lines, start=1)
    header = _header(next(numbered, (0, b""))[1].removeprefix(b"\xef\xbb\xbf"))
    places = _places(header, layout)
    for number, line in numbered:
        if not line.strip():
            continue
        try:
            cells = _cells(line)
        except _NO_CSV as error:
            yield Refusal(number, f"not a CSV row in UTF-8: {error.__class__.__name__}", whole=False)
            continue
        if len(cells) != len(header):
            yield Refusal(number, f"{len(cells)} fields where the header has {len(header)}", whole=False)
            continue
        texts = {name: "" if place is None else cells[place].strip() for name, place in places.items()}
        yield _Row(number, **texts) if texts["order_id"] else Refusal(number, "order_id is missing", whole=False)


_NO_CSV = (csv.Error, UnicodeDecodeError)


def _header(line: bytes) -> list[str]:
    try:
        header = _cells(line)
    except _NO_CSV as error:
        raise HeaderError(f"The header is not CSV in UTF-8 ({type(error).__name__})") from None
    if not any(header):
        raise HeaderError("There is no header: the file or its first line is empty")
    return header


def _cells(line: bytes) -> list[str]:
    return next(csv.reader([line.decode().rstrip("\r\n")], strict=True), [])


def _places(header: list[str], layout: CsvLayout) -> dict[str, int | None]:
    """Where each of our columns stands; currency and time may be nowhere unless they were named."""
    named = {name: getattr(layout.columns, name) for name in names_of_columns()}
    optional = {name for name in ("time", "currency") if not named[name]}
    if not layout.currency:
        optional.discard("currency")
    wanted = {name: text or name for name, text in named.items()}
    missing = [text for name, text in wanted.items() if name not in optional and text not in header]
    if missing:
        raise MissingColumns(f"The header has no column {', '.join(missing)}; it has {', '.join(header)}")
    twice = [text for text in wanted.values() if header.count(text) > 1]
    if twice:
        raise HeaderError(f"The header has more than one column {', '.join(twice)}")
    return {name: header.index(text) if text in header else None for name, text in wanted.items()}


def _line_item(row: _Row, currency: str) -> LineItem:
    if not re.fullmatch(r"-?[0-9]{1,15}", row.quantity):
        raise ValueError("quantity is not a whole number")
    return LineItem(
        sku=row.sku,
        quantity=int(row.quantity),
        unit_price_minor=to_minor_units(row.unit_price, currency),
    )


def _cancellation(row: _Row, layout: CsvLayout) -> Entry | Refusal:
    order_id = row.order_id.removeprefix(layout.cancel_prefix)
    try:
        return Entry(row.line, CancelOrder(order_id=order_id, reason=f"cancelled by {row.order_id}"))
    except ValidationError as error:
        return Refusal(row.line, _reason(error))


def _currency(row: _Row, layout: CsvLayout) -> str:
    return row.currency or layout.currency


def check_time_format(time_format: str) -> None:
    """Raises ValueError when no text can be read by it."""
    some_time = datetime(2000, 1, 2, 3, 4, 5, tzinfo=UTC)
    try:
        datetime.strptime(some_time.strftime(time_format), time_format)  # noqa: DTZ007
    except (ValueError, re.error):  # the latter when a directive occurs twice
        raise ValueError(f"{time_format!r} is no format that strptime can read") from None


def _time(text: str, time_format: str) -> datetime | None:
    if not text:
        return None
    try:
        time = datetime.strptime(text, time_format) if time_format else datetime.fromisoformat(text)  # noqa: DTZ007
    except ValueError:
        raise ValueError(f"time is not {time_format or 'ISO 8601'}") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _reason(error: ValueError) -> str:
    """Names fields and rules; a value is quoted only where our own text does so."""
    return problems_of(error) if isinstance(error, ValidationError) else str(error)


_IN_JSON = {name: to_camel(name) for model in (PlaceOrder, LineItem) for name in model.model_fields}


def _as_in_json(name: str) -> str:
    return _IN_JSON.get(name, name)
