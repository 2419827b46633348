"""How a table looks on both sides."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SummedUp:
    """checksum: the sum of a hash of every row, so that it does not depend on their order."""

    rows: int
    checksum: int


@dataclass(frozen=True)
class Compared:
    """suspects: keys of rows that differ. They may only be ahead or behind: look again once both sides hold the same
    events. There may be more than those when there are MOST_SUSPECTS of them. seconds: what looking at all rows took.
    """

    table: str
    live: SummedUp
    other: SummedUp
    key: Sequence[str] = ()
    columns: Sequence[str] = ()
    suspects: Sequence[tuple[Any, ...]] = field(default=(), repr=False)
    seconds: float = 0.0
