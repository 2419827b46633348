"""A projection's handler, called as it promises, whatever feeds it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from psycopg import Connection
from psycopg.pq import TransactionStatus

from domain.contracts import Contract
from domain.errors import CounterfoilError
from projections.base import Answer, BatchProjection, NotYet, Projection, Quarantine
from projections.faults import HandlerWaits
from projections.pipelining import MOST_UNDER_WAY, pipelined


@dataclass(eq=False)
class AnswerAboutNoEvent(CounterfoilError):
    """A handler of batches answered about an event that is not in its batch, so nobody knows which one it meant.

    What to do: roll back, and repair the handler.
    """

    consumer_name: str

    def __str__(self) -> str:
        return f"{self.consumer_name!r} answered about an event that is not in its batch. Repair handle_batch."


@dataclass(eq=False)
class TransactionBroken(CounterfoilError):
    """A statement failed, and a handler went on as if nothing had happened; PostgreSQL would commit nothing of it. Or
    it has ended the transaction, which is not its own.

    What to do: roll back, and repair the handler: what may fail belongs into a `with tx.transaction()` of its own.
    """

    consumer_name: str

    def __str__(self) -> str:
        return (
            f"A handler of {self.consumer_name!r} went on after a statement had failed, or has ended the transaction, "
            "so nothing can be committed. "
            "Put what may fail into a `with tx.transaction()` of its own, inside of `try`."
        )


def _nothing() -> None:
    pass


def apply_contracts(
    contracts: Sequence[Contract],
    projection: Projection,
    tx: Connection,
    before_each: Callable[[], None] = _nothing,
    after_all: Callable[[], None] = _nothing,
    may_send_ahead: bool = True,
) -> Mapping[str, Quarantine]:
    """Applies them in order, after the locks that they need; returns those that were refused, by event id.

    When there is one, the caller rolls back. `before_each` is called before each call of the handler, `after_all`
    when the last has returned and its statements are answered. may_send_ahead: False where nobody would do it again
    in smaller parts. Raises HandlerWaits when one of them cannot be applied yet, AnswerAboutNoEvent, TransactionBroken,
    and what the handler raises. In a pipeline the error of a statement may come when later events are handled, or
    after the last.
    """
    if not contracts:
        return {}
    projection.prepare(contracts, tx)
    end_if_broken = partial(_end_if_broken, projection, tx)
    # An answer in a broken transaction is believed only of an event that is alone: among others, it may be due to the
    # error of another one's statement.
    is_alone = len(contracts) == 1
    if isinstance(projection, BatchProjection):
        refused = _together(contracts, projection, tx, before_each)
    elif may_send_ahead and is_pipelined(projection, len(contracts)):
        with pipelined(tx) as after_each:
            refused = _one_by_one(contracts, projection, tx, before_each, after_each)
    else:
        refused = _one_by_one(contracts, projection, tx, before_each, _nothing if is_alone else end_if_broken)
    after_all()
    if not (is_alone and refused):
        end_if_broken()
    return refused


def _end_if_broken(projection: Projection, tx: Connection) -> None:
    """Nothing would be committed of what was done until now."""
    if tx.info.transaction_status in (TransactionStatus.INERROR, TransactionStatus.IDLE):
        raise TransactionBroken(projection.consumer_name)


def is_pipelined(projection: Projection, events: int) -> bool:
    """Whether statements of the handler are sent ahead when it is called with so many events."""
    return projection.pipelined and not isinstance(projection, BatchProjection) and events > MOST_UNDER_WAY


def _together(
    contracts: Sequence[Contract], projection: BatchProjection, tx: Connection, before_each: Callable[[], None]
) -> Mapping[str, Quarantine]:
    before_each()
    answers = projection.handle_batch(contracts, tx)
    if not answers.keys() <= {contract.event_id for contract in contracts}:
        raise AnswerAboutNoEvent(projection.consumer_name)
    return {event_id: _refusal(answer) for event_id, answer in answers.items()}


def _one_by_one(
    contracts: Sequence[Contract],
    projection: Projection,
    tx: Connection,
    before_each: Callable[[], None],
    after_each: Callable[[], None],
) -> Mapping[str, Quarantine]:
    refused = {}
    for contract in contracts:
        before_each()
        answer = projection.handle(contract, tx)
        if answer is not None:
            refused[contract.event_id] = _refusal(answer)
        after_each()
    return refused


def _refusal(answer: Answer) -> Quarantine:
    if isinstance(answer, NotYet):
        raise HandlerWaits(answer.reason)
    return answer
