"""A projection of parcels in the store's database: it counts moves, and fails, refuses or waits where a test says."""

from collections.abc import Callable

from psycopg import Connection

from domain.contracts import Contract
from infrastructure.migrate import migrate
from projections import positions
from projections.base import Answer, Projection
from tests.support.parcels import ParcelMoved, parcel_outbox

Then = Callable[[Contract, Connection], Answer | None]

OUTBOXES = [parcel_outbox("parcels")]
CREATE = "CREATE TABLE counts (parcel_id text PRIMARY KEY, moves bigint NOT NULL, event_id text NOT NULL)"
COUNT = """
    INSERT INTO counts (parcel_id, moves, event_id) VALUES (%s, 1, %s)
    ON CONFLICT (parcel_id) DO UPDATE SET moves = counts.moves + 1, event_id = excluded.event_id
"""


class ParcelCounts(Projection):
    """Nothing but the position keeps it from counting a move twice."""

    consumer_name = "parcel-counts"
    contracts = (ParcelMoved,)

    def __init__(self, then: Then = lambda contract, tx: None, version: int = 1) -> None:
        """then: called once the move is counted; what it answers or raises is the handler's."""
        self._then, self.version = then, version

    def handle(self, contract: Contract, tx: Connection) -> Answer | None:
        tx.execute(COUNT, (contract.key, contract.event_id))
        return self._then(contract, tx)


def with_counts(store_dsn: str) -> str:
    """The store's database, with the table of counts in it."""
    migrate(store_dsn, [positions.MIGRATIONS])
    with Connection.connect(store_dsn) as session:
        session.execute(CREATE)
    return store_dsn


def counts(connection: Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT parcel_id, moves FROM counts").fetchall())
