"""One batch in one transaction: what can be applied is applied, what never can be is parked, or nothing happened."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import psycopg
from psycopg import Connection

from domain.contracts import Contract
from infrastructure.record import Record
from projections.base import BatchProjection, Projection, Quarantine
from projections.decoding import Category, Faulty
from projections.inbox import claim
from projections.quarantine import Parked, park


class Readable(NamedTuple):
    """A record whose contract can be applied."""

    record: Record
    contract: Contract

    def parked(self, category: Category, reason: str) -> Parked:
        return Parked(self.record, Faulty(category, reason, self.contract.event_id))


Batch = Sequence[Readable | Parked]


class Outcome(NamedTuple):
    """What a committed batch did. duplicates: events that were processed or parked before, or that came twice in it.

    parked: those that are new in the quarantine.
    """

    applied: int
    duplicates: int
    parked: list[Parked]


def apply_batch(
    batch: Batch, projection: Projection, connection: Connection, before_each: Callable[[], None] = lambda: None
) -> Outcome:
    """Applies the batch in order, in one transaction of its own. After an error nothing of it has happened.

    `before_each` is called before each event is handled, or once before a BatchProjection handles them
    all. What it raises ends the batch, as does what a handler or the database raises. An event that its
    handler refuses is parked, and nothing else is kept of it: the transaction is rolled back and done again
    without that event.
    """
    while True:
        with connection.transaction():
            outcome, refused = _apply(batch, projection, connection, before_each)
            if refused:
                raise psycopg.Rollback
        if not refused:
            return outcome
        batch = [refused.get(id(each), each) for each in batch]


def _apply(
    batch: Batch, projection: Projection, tx: Connection, before_each: Callable[[], None]
) -> tuple[Outcome, dict[int, Parked]]:
    """The outcome, or which of the events the projection refused. Locks are taken in this order: the claims,
    what the projection locks, the places in the quarantine."""
    readable = [each for each in batch if isinstance(each, Readable)]
    parked = [each for each in batch if isinstance(each, Parked)]
    ours = _claim(readable, projection.consumer_name, tx)
    if ours:
        projection.prepare([each.contract for each in ours], tx)
    answers = _handle(ours, projection, tx, before_each)
    refused = {
        id(each): each.parked(Category.REFUSED, answers[each.contract.event_id].reason)
        for each in ours
        if each.contract.event_id in answers
    }
    new = [] if refused else park(tx, projection.consumer_name, parked)
    return Outcome(len(ours), len(batch) - len(ours) - len(new), new), refused


def _handle(
    ours: list[Readable], projection: Projection, tx: Connection, before_each: Callable[[], None]
) -> Mapping[str, Quarantine]:
    """The events that the projection refused, by their ids."""
    if isinstance(projection, BatchProjection):
        if not ours:
            return {}
        before_each()
        return projection.handle_batch([each.contract for each in ours], tx)
    answers = {}
    for each in ours:
        before_each()
        answer = projection.handle(each.contract, tx)
        if isinstance(answer, Quarantine):
            answers[each.contract.event_id] = answer
    return answers


def _claim(readable: list[Readable], consumer_name: str, tx: Connection) -> list[Readable]:
    """Those to be applied: of an event that came twice, the first."""
    if not readable:
        return []
    claimed = claim(tx, consumer_name, (each.contract.event_id for each in readable))
    ours = []
    for each in readable:
        if each.contract.event_id in claimed:
            claimed.remove(each.contract.event_id)
            ours.append(each)
    return ours
