"""A projection that writes down every event it applies, and fails, refuses or waits where a test wants it to."""

from collections.abc import Callable

from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from projections.base import Answer, Projection

Then = Callable[[Contract, Connection], Answer | None]

CREATE = "CREATE TABLE tally (place bigserial, consumer_name text, order_id text, event_id text)"


class Tally(Projection):
    """Nothing but the inbox keeps it from writing an event down twice."""

    contracts = (OrderPlaced, OrderCancelled)

    def __init__(
        self,
        consumer_name: str = "tally",
        topics: tuple[str, ...] = (),
        then: Then = lambda contract, tx: None,
    ) -> None:
        """then: called once the event is written down; what it answers or raises is the handler's."""
        self.consumer_name = consumer_name
        self._topics = topics
        self._then = then

    @property
    def topics(self) -> tuple[str, ...]:
        return self._topics or super().topics

    def handle(self, contract: Contract, tx: Connection) -> Answer | None:
        tx.execute(
            "INSERT INTO tally (consumer_name, order_id, event_id) VALUES (%s, %s, %s)",
            (self.consumer_name, contract.key, contract.event_id),
        )
        return self._then(contract, tx)


def tally(connection: Connection, consumer_name: str = "tally") -> list[str]:
    """The event ids that it applied, in the order in which it did."""
    rows = connection.execute("SELECT event_id FROM tally WHERE consumer_name = %s ORDER BY place", (consumer_name,))
    return [event_id for (event_id,) in rows]
