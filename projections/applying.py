"""A projection's handler, called as it promises, whatever feeds it."""

from collections.abc import Callable, Mapping, Sequence

from psycopg import Connection

from domain.contracts import Contract
from projections.base import BatchProjection, Projection, Quarantine


def apply_contracts(
    contracts: Sequence[Contract],
    projection: Projection,
    tx: Connection,
    before_each: Callable[[], None] = lambda: None,
) -> Mapping[str, Quarantine]:
    """Applies them in order, after the locks that they need; returns those that were refused, by event id.

    When there is one, the caller rolls back. `before_each` is called before each call of the handler.
    """
    if not contracts:
        return {}
    projection.prepare(contracts, tx)
    if isinstance(projection, BatchProjection):
        before_each()
        return projection.handle_batch(contracts, tx)
    refused = {}
    for contract in contracts:
        before_each()
        answer = projection.handle(contract, tx)
        if isinstance(answer, Quarantine):
            refused[contract.event_id] = answer
    return refused
