"""The handlers that the inbox is measured with: a small effect and the inventory's, per event and per batch."""

from collections.abc import Mapping, Sequence

from psycopg import Connection
from psycopg.errors import CheckViolation

from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from projections.base import BatchProjection, Projection, Quarantine
from projections.inventory.projection import Inventory
from tests.support.inventory_one_by_one import InventoryOneByOne

CREATE = "CREATE TABLE ordered (order_id text PRIMARY KEY, pieces bigint NOT NULL)"
COUNT = "INSERT INTO ordered (order_id, pieces) VALUES (%s, %s)"
COUNT_ALL = "INSERT INTO ordered (order_id, pieces) SELECT * FROM unnest(%b::text[], %b::bigint[])"
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
    """Writes down the pieces of each order: a statement for each event."""

    pipelined = True

    def handle(self, contract: Contract, tx: Connection) -> Quarantine | None:
        _refuse_poison((contract,))
        tx.execute(COUNT, _pieces(contract))
        return None


class CountAll(_OnTopic, BatchProjection):
    """The same, with a statement for each batch."""

    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Quarantine]:
        _refuse_poison(contracts)
        tx.execute(COUNT_ALL, list(map(list, zip(*map(_pieces, contracts), strict=True))))
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


def _pieces(contract: Contract) -> tuple[str, int]:
    assert isinstance(contract, OrderPlaced)
    return contract.order_id, sum(line.quantity for line in contract.lines or ())


def _refuse_poison(contracts: Sequence[Contract]) -> None:
    if any(contract.key.startswith(POISON) for contract in contracts):
        raise CheckViolation
