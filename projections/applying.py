"""A projection's handler, called as it promises, whatever feeds it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from psycopg import Connection

from domain.contracts import Contract
from domain.errors import CounterfoilError
from projections.base import Answer, BatchProjection, NotYet, Projection, Quarantine
from projections.faults import HandlerWaits


@dataclass(eq=False)
class AnswerAboutNoEvent(CounterfoilError):
    """A handler of batches answered about an event that is not in its batch, so nobody knows which one it meant.

    What to do: roll back, and repair the handler.
    """

    consumer_name: str

    def __str__(self) -> str:
        return f"{self.consumer_name!r} answered about an event that is not in its batch. Repair handle_batch."


def apply_contracts(
    contracts: Sequence[Contract],
    projection: Projection,
    tx: Connection,
    before_each: Callable[[], None] = lambda: None,
) -> Mapping[str, Quarantine]:
    """Applies them in order, after the locks that they need; returns those that were refused, by event id.

    When there is one, the caller rolls back. `before_each` is called before each call of the handler.
    Raises HandlerWaits when one of them cannot be applied yet, AnswerAboutNoEvent, and what the handler raises.
    """
    if not contracts:
        return {}
    projection.prepare(contracts, tx)
    if isinstance(projection, BatchProjection):
        before_each()
        answers = projection.handle_batch(contracts, tx)
        if not answers.keys() <= {contract.event_id for contract in contracts}:
            raise AnswerAboutNoEvent(projection.consumer_name)
        return {event_id: _refusal(answer) for event_id, answer in answers.items()}
    refused = {}
    for contract in contracts:
        before_each()
        answer = projection.handle(contract, tx)
        if answer is not None:
            refused[contract.event_id] = _refusal(answer)
    return refused


def _refusal(answer: Answer) -> Quarantine:
    if isinstance(answer, NotYet):
        raise HandlerWaits(answer.reason)
    return answer
