"""What people see: tables and JSON on standard output, progress and complaints on standard error."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def complain(message: str) -> None:
    err.print(Text(message, style="red"))


def print_json(value: Any) -> None:
    """One JSON document, for programs; times as RFC 3339 text."""
    print(json.dumps(value, indent=2, default=_text))  # noqa: T201


def rfc3339(time: datetime) -> str:
    """In UTC, such as 2026-01-31T12:00:00Z."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Nothing is cut off: a cell that is too wide for the terminal is folded, and a pipe is as wide as the table."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else _text(cell)) for cell in row))
    console = out if out.is_terminal else Console(width=_ANY_WIDTH)
    console.print(table, soft_wrap=False)


_ANY_WIDTH = 100_000


def print_fields(fields: Mapping[str, object]) -> None:
    """One field a line; of a list, one item a line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        items = value if isinstance(value, list) else [value]
        for label, item in zip_longest([name], items, fillvalue=""):
            out.print(Text(f"{label:<{width}}  {_readable(item)}"))


def _readable(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else _text(value)


def _text(value: object) -> str:
    return rfc3339(value) if isinstance(value, datetime) else str(value)
