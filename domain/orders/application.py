"""Commands on orders: load, decide, save. Sending a command again changes nothing and gives the same answer."""

from dataclasses import dataclass

from domain.application import Application
from domain.base import DomainError
from domain.orders.commands import CancelOrder, PlaceOrder
from domain.orders.order import Order


@dataclass(frozen=True)
class Answer:
    """order: the order as it is stored. changed: whether this very call stored something.

    position: of the store; whatever the answer tells of stands at or below it. A projection that is fed by the
    store can be waited for with it (`projections.waiting.PositionWatch`).
    """

    order: Order
    changed: bool
    position: int


class Orders(Application):
    """Guarantees: one order per order id, whatever is retried or sent twice, by whomever.

    Every method raises DomainError when a rule refuses, VersionConflict when other writers were always
    faster, and the store's own errors when it is out of reach. After any error but DomainError the same
    call may be made again.
    """

    def place(self, command: PlaceOrder) -> Answer:
        """Places the order. Raises DomainError `order_id_taken` when the id belongs to another content."""
        return self.until_saved(lambda: self._place(command))

    def cancel(self, command: CancelOrder) -> Answer:
        """Cancels the order. Raises DomainError `unknown_order` or `already_cancelled`."""
        return self.until_saved(lambda: self._cancel(command))

    def get(self, order_id: str) -> Order | None:
        return self.find(Order, order_id)

    def _place(self, command: PlaceOrder) -> Answer:
        stored = self.get(command.order_id)
        if stored is None:
            order = Order.place(command)
            return Answer(order, True, self.position_of(self.save(order)))
        if not stored.is_what_was_asked(command):
            raise DomainError("order_id_taken", command.order_id, "An order of other content has this id")
        return Answer(stored, False, self.position_of(()))

    def _cancel(self, command: CancelOrder) -> Answer:
        order = self.get(command.order_id)
        if order is None:
            raise DomainError("unknown_order", command.order_id, "There is no order of this id to cancel")
        order.cancel(command.reason)
        changed = bool(order.pending_events)
        return Answer(order, changed, self.position_of(self.save(order)))
