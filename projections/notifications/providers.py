"""Who sends the notifications: a pretended provider, which delivers into a table of its own.

It behaves as a real one should: what it did under an idempotency key it does not do again.
"""

from contextlib import closing

from infrastructure.postgres import Timeouts, connect
from projections.effects.queue import Effect
from projections.effects.worker import Providers, Refused
from projections.notifications.projection import ORDER_CONFIRMED

_TIMEOUTS = Timeouts(lock=3.0, statement=5.0)

DELIVER = """
    INSERT INTO delivered_notifications (idempotency_key, customer_id, text) VALUES (%s, %s, %s)
    ON CONFLICT DO NOTHING
"""


class PretendedMail:
    """Never refuses anything but a customer it cannot have."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def send(self, effect: Effect) -> Refused | None:
        customer_id = effect.content.get("customerId")
        if not isinstance(customer_id, str):
            return Refused("customerId: there is none")
        text = f"Your order {effect.content.get('orderId')} is confirmed."
        with closing(connect(self._dsn, application_name="pretended mail", timeouts=_TIMEOUTS)) as connection:
            connection.execute(DELIVER, (effect.id, customer_id, text))
        return None


def open_providers(dsn: str) -> Providers:
    return {ORDER_CONFIRMED: PretendedMail(dsn)}
