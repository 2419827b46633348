"""What people see: tables and JSON on standard output, progress and complaints on standard error."""

import json
from collections.abc import Mapping, Sequence
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
    print(json.dumps(value, indent=2, default=str))  # noqa: T201


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(*columns, title=title, title_justify="left", title_style="bold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    out.print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        out.print(Text(f"{name:<{width}}  {'' if value is None else value}"))
