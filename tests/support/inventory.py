"""The inventory in a database: events applied as a consumer would, and all that it then holds."""

from collections.abc import Mapping, Sequence

from psycopg import Connection

from domain.contracts import Contract
from infrastructure.postgres import connect
from projections.base import Projection
from projections.batch import Outcome, apply_batch
from projections.inventory.projection import PROJECTION
from projections.inventory.queries import set_stock
from tests.support.messages import readable


def connected(dsn: str) -> Connection:
    return connect(dsn, application_name="test")


def fill(connection: Connection, stock: Mapping[str, int]) -> None:
    for sku, on_hand in stock.items():
        set_stock(connection, sku, on_hand)


def apply(connection: Connection, *contracts: Contract, projection: Projection = PROJECTION) -> Outcome:
    """In one transaction, as one batch."""
    return apply_batch([readable(contract) for contract in contracts], projection, connection)


Rows = dict[str, list[tuple[object, ...]]]


def everything(connection: Connection, tables: Sequence[str] = ("stock", "reservations", "reservation_lines")) -> Rows:
    """All rows of these tables."""
    return {table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall()) for table in tables}


def count(connection: Connection, table: str) -> int:
    (number,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone() or (0,)
    assert isinstance(number, int)
    return number
