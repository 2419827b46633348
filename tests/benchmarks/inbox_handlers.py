"""The handlers that the inbox is measured with: a small effect and the inventory's, per event and per batch."""

from collections import Counter
from collections.abc import Mapping, Sequence

from psycopg import Connection
from psycopg.errors import CheckViolation

from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from projections.base import BatchProjection, Projection, Quarantine
from projections.inventory.projection import Inventory
from tests.support.inventory_one_by_one import InventoryOneByOne

CREATE = "CREATE TABLE ordered (sku text PRIMARY KEY, pieces bigint NOT NULL)"
COUNT = """
    INSERT INTO ordered (sku, pieces) SELECT * FROM unnest(%b::text[], %b::bigint[]) AS line (sku, pieces) ORDER BY sku
    ON CONFLICT (sku) DO UPDATE SET pieces = ordered.pieces + excluded.pieces
"""
POISON = "poison"
"""Orders with such an id are refused, by an error as of a constraint."""


class _OnTopic(Projection):
    """Under a name and on a topic of the run."""

    contracts = (OrderPlaced,)

    def __init__(self, consumer_name: str, topic: str) -> None:
        self.consumer_name, self._topic = consumer_name, topic

    @property
    def topics(self) -> tuple[str, ...]:
        return (self._topic,)


class CountEach(_OnTopic):
    """Counts the pieces ordered of each sku: a statement for each event."""

    def handle(self, contract: Contract, tx: Connection) -> Quarantine | None:
        _count((contract,), tx)
        return None


class CountAll(_OnTopic, BatchProjection):
    """The same, with a statement for each batch."""

    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Quarantine]:
        _count(contracts, tx)
        return {}


class ReserveEach(_OnTopic, InventoryOneByOne):
    """The inventory as SQL for each event."""

    def handle(self, contract: Contract, tx: Connection) -> Quarantine | None:
        _refuse_poison((contract,))
        return super().handle(contract, tx)


class ReserveAll(_OnTopic, Inventory):
    """The inventory as it is."""

    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Quarantine]:
        _refuse_poison(contracts)
        return super().handle_batch(contracts, tx)


def _count(contracts: Sequence[Contract], tx: Connection) -> None:
    _refuse_poison(contracts)
    pieces: Counter[str] = Counter()
    for contract in contracts:
        assert isinstance(contract, OrderPlaced)
        for line in contract.lines or ():
            pieces[line.sku] += line.quantity
    tx.execute(COUNT, (list(pieces), list(pieces.values())))


def _refuse_poison(contracts: Sequence[Contract]) -> None:
    if any(contract.key.startswith(POISON) for contract in contracts):
        raise CheckViolation
