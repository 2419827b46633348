"""A confirmed order is told to its customer, once: asked for here, sent by a worker."""

from psycopg import Connection

from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from projections import effects
from projections.base import Projection, Quarantine

ORDER_CONFIRMED = "order-confirmed"


class Notifications(Projection):
    consumer_name = "order-notifications"
    contracts = (OrderPlaced,)
    kept = ("delivered_notifications",)
    pipelined = True  # it only writes

    def handle(self, contract: Contract, tx: Connection) -> Quarantine | None:
        match contract:
            case OrderPlaced():
                content = {"customerId": contract.customer_id, "orderId": contract.order_id}
                effects.request(tx, self.consumer_name, contract, ORDER_CONFIRMED, content)
        return None


PROJECTION = Notifications()
