"""Asking for an effect: a row in the transaction that claims the event, and nothing else."""

import json
from collections.abc import Mapping

from psycopg import Connection

from domain.contracts import Contract

REQUEST = """
    INSERT INTO outgoing_effects (id, consumer_name, effect, key, content)
    SELECT %(id)s, %(consumer_name)s, %(effect)s, %(key)s, %(content)s::json
    WHERE coalesce(current_setting('counterfoil.effects', true), '') <> 'none'
    ON CONFLICT DO NOTHING
"""

# For this transaction only: it holds behind a pooler too, and nobody inherits it with the connection.
SILENCE = "SELECT set_config('counterfoil.effects', 'none', true)"


def request(tx: Connection, consumer_name: str, contract: Contract, effect: str, content: Mapping[str, object]) -> None:
    """Asks for one effect of an event. It is called for after `tx` has committed, and never when it rolls back.

    effect: a short name, durable: with the event's id it is the idempotency key, so that asking twice is asking
    once, under whatever consumer's name. content: what the provider needs, as JSON; it is stored, so no secret.
    Effects of one contract key are called for in the order in which they were asked for.
    """
    tx.execute(
        REQUEST,
        {
            "id": f"{contract.event_id}:{effect}",
            "consumer_name": consumer_name,
            "effect": effect,
            "key": contract.key,
            "content": json.dumps(content),
        },
    )


def silence(tx: Connection) -> None:
    """From here to the end of the transaction nothing that is asked for is kept: what is applied is a rebuild."""
    tx.execute(SILENCE)
