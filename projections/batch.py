"""One batch in one transaction: what can be applied is applied, what never can be is parked, or nothing happened."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import psycopg

from infrastructure.postgres import Connection
from infrastructure.record import Record
from projections import versions
from projections.applying import apply_contracts
from projections.base import Projection, Quarantine
from projections.decoding import Category
from projections.inbox import claim_or_tell
from projections.order_keeping import Batch, Limits, Readable, sort_out
from projections.quarantine import Parked, park

__all__ = ["Batch", "Limits", "Outcome", "Readable", "TOO_OLD", "apply_batch"]

TOO_OLD = "eventId: older than what the inbox remembers, so nobody can tell whether it was applied"

_USUAL_LIMITS = Limits()


class Outcome(NamedTuple):
    """What a committed batch did. duplicates: events that were processed or parked before, or that came twice in it.

    parked: those that are new in the quarantine. waiting: records that nothing was done with, because the
    quarantine has no room for them, and all that follows them in their partitions.
    """

    applied: int
    duplicates: int
    parked: list[Parked]
    waiting: tuple[Record, ...] = ()


def apply_batch(
    batch: Batch,
    projection: Projection,
    connection: Connection,
    before_each: Callable[[Readable], None] = lambda _each: None,
    limits: Limits = _USUAL_LIMITS,
    after_all: Callable[[], None] = lambda: None,
    meanwhile: Callable[[], None] | None = None,
) -> Outcome:
    """Applies the batch in order, in one transaction of its own. After an error nothing of it has happened.

    Events of a key of which something is parked, or is parked now, are parked behind that. `before_each`
    is called with each event before it is handled, or once, with the first, before a BatchProjection handles
    them all. What it raises ends the batch, as does what a handler or the database raises. `after_all` is called when
    all are handled; what is raised after that may be about any of them. `meanwhile` is called while PostgreSQL claims
    the ids, and must not raise. An event that its handler refuses, or that the inbox is too young for, is parked, and
    nothing else is kept of it: the transaction is rolled back and done again without that event.

    Raises OtherVersion when the tables belong to other code.
    """
    while True:
        with connection.transaction():
            outcome, refused = _apply(batch, projection, connection, before_each, limits, after_all, meanwhile)
            if refused:
                raise psycopg.Rollback
        if not refused:
            return outcome
        batch = [refused.get(id(each), each) for each in batch]


def _apply(
    batch: Batch,
    projection: Projection,
    tx: Connection,
    before_each: Callable[[Readable], None],
    limits: Limits,
    after_all: Callable[[], None],
    meanwhile: Callable[[], None] | None,
) -> tuple[Outcome, dict[int, Parked]]:
    """The outcome, or which of the events the projection refused. Locks are taken in this order: the version, the keys
    of what is in quarantine, the claims, what the projection locks, the places in the quarantine."""
    versions.hold(tx, projection.consumer_name, projection.version)
    sorted_out = sort_out(batch, projection.consumer_name, tx, limits)
    ours, too_old = _claim(sorted_out.apply, projection.consumer_name, tx, meanwhile)
    if too_old:
        return Outcome(0, 0, []), {id(each): each.parked(Category.TOO_OLD, TOO_OLD) for each in too_old}
    coming = iter(ours)
    contracts = [each.contract for each in ours]
    answers = apply_contracts(contracts, projection, tx, lambda: before_each(next(coming)), after_all)
    refused = _first_of_each_key(ours, answers)
    new = [] if refused else park(tx, projection.consumer_name, sorted_out.park)
    waiting = tuple(sorted_out.waiting)
    return Outcome(len(ours), len(batch) - len(ours) - len(new) - len(waiting), new, waiting), refused


def _first_of_each_key(ours: Sequence[Readable], answers: Mapping[str, Quarantine]) -> dict[int, Parked]:
    """The culprits. What was answered to later events of their keys was about a state that is not to be."""
    firsts: dict[bytes | None, Readable] = {}
    for each in ours:
        if each.contract.event_id in answers:
            firsts.setdefault(each.record.key, each)
    return {id(each): each.parked(Category.REFUSED, answers[each.contract.event_id].reason) for each in firsts.values()}


def _claim(
    readable: list[Readable], consumer_name: str, tx: Connection, meanwhile: Callable[[], None] | None
) -> tuple[list[Readable], list[Readable]]:
    """Those to be applied, of an event that came twice the first; and those of which the inbox cannot tell."""
    if not readable:
        return [], []
    new, too_old = claim_or_tell(tx, consumer_name, (each.contract.event_id for each in readable), meanwhile)
    ours = []
    for each in readable:
        if each.contract.event_id in new:
            new.remove(each.contract.event_id)
            ours.append(each)
    return ours, [each for each in readable if each.contract.event_id in too_old]
