"""One worker of a rebuild: pages of stored events, applied to the other tables together with the position reached."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import Connection, sql

from domain.contracts import Contract
from infrastructure.event_reader import RecordedEvent
from infrastructure.postgres import cause_of
from infrastructure.shards import shard_of
from projections.applying import apply_contracts
from projections.base import Quarantine
from projections.effects import silence
from projections.faults import HandlerWaits, is_no_event_at_fault
from projections.rebuilding.errors import RebuildStopped, Superseded
from projections.rebuilding.source import Source, Told
from projections.rebuilding.target import Target

PAGE = 5_000
PAGE_BYTES = 16 * 2**20
"""Of the events' states. What a worker holds in memory is bounded by these two, however long the history is."""

# Before the effects, so that whoever else would apply the same events waits here and is then refused.
MOVE = """
    UPDATE {live}.rebuild_workers SET position = %(to)s, applied = applied + %(applied)s
    WHERE projection = %(projection)s AND worker = %(worker)s AND position = %(position)s
      AND EXISTS (SELECT FROM {live}.rebuilds WHERE projection = %(projection)s AND run = %(run)s)
"""
POSITION = "SELECT position FROM {live}.rebuild_workers WHERE projection = %s AND worker = %s"
AHEAD = "SELECT event_id FROM {live}.rebuild_ahead WHERE projection = %s"
DISCARDED = """
    SELECT event_id FROM {live}.quarantined_events
    WHERE consumer_name = %s AND state = 'discarded' AND event_id IS NOT NULL
"""
HELD_KEYS = "SELECT DISTINCT key FROM {live}.rebuild_refused WHERE projection = %s"
REFUSE = """
    INSERT INTO {live}.rebuild_refused (projection, position, event_id, key, reason)
    SELECT %s, * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) ON CONFLICT DO NOTHING
"""
KEEP_IDS = "INSERT INTO rebuilt_events (event_id) SELECT unnest(%s::text[])"

BEHIND = "an earlier event of its key was refused"


@dataclass(frozen=True)
class Place:
    """One worker among `workers`, in the process that has the rebuild's `run`. live: schema of the live tables."""

    live: str
    run: int
    worker: int = 0
    workers: int = 1

    def is_mine(self, event: RecordedEvent) -> bool:
        return self.workers == 1 or shard_of(event.originator_id, self.workers) == self.worker


class Placed(NamedTuple):
    """A contract, and the position of the event that it tells of."""

    position: int
    contract: Contract

    @property
    def event_id(self) -> str:
        return self.contract.event_id


class Filler:
    """Applies the events of its shard, in the order of their positions, each exactly once.

    What a transaction applies and the position it reaches are committed together, and refused when another
    process has taken over. Only the other tables are written.
    """

    def __init__(self, target: Target, place: Place, source: Source, other: Connection) -> None:
        """other: a connection whose names mean the other tables. Raises Superseded."""
        self._target, self._place, self._source, self._other = target, place, source, other
        row = self._execute(POSITION, (target.name, place.worker)).fetchone()
        if row is None:
            raise Superseded(target.name)
        self.position: int = row[0]
        self._not_to_apply = {event_id for (event_id,) in self._execute(AHEAD, (target.name,))}
        if not target.is_fed_by_the_store:  # somebody has decided that they are never to be applied
            self._not_to_apply |= {event_id for (event_id,) in self._execute(DISCARDED, (target.name,))}
        self._held = {key for (key,) in self._execute(HELD_KEYS, (target.name,))}

    def step(self) -> int:
        """One page. How many events it had, other shards' included; 0 when there is nothing more to read now.

        Raises RebuildStopped at an event that fails, with all before it applied; Superseded; psycopg.Error.
        """
        page = self._source.reader.read(self.position, PAGE, PAGE_BYTES)
        if not page.events:
            return 0
        told, stopped = self._source.told([event for event in page.events if self._place.is_mine(event)])
        self.bring_to(stopped.position - 1 if stopped else page.events[-1].position, told)
        if stopped:
            raise stopped
        return len(page.events)

    def bring_to(self, position: int, told: Sequence[Told]) -> None:
        """told: all events of this shard that lie above its position, up to this one. Raises as `step` does."""
        contracts = [Placed(each.event.position, contract) for each in told for contract in each.contracts]
        try:
            self._move_and_apply(position, contracts)
        except Exception as error:
            if not _is_of_an_event(error):
                raise
            if len(told) <= 1:
                raise self._stopped(position, contracts, error) from error
            for each in told:  # up to the one at fault
                self.bring_to(each.event.position, [each])
            self.bring_to(position, [])

    def apply(self, contracts: Iterable[Placed]) -> list[str]:
        """Within the caller's transaction, whatever the position is. The ids of those that are applied now; what is
        left was applied before, or discarded, or is refused and written down. Raises what the handler raises."""
        todo = [each for each in contracts if each.event_id not in self._not_to_apply]
        refusals: dict[str, str] = {}
        while True:
            keep, refused = _sort_out(todo, refusals, self._held)
            try:
                with self._other.transaction():
                    self._hand_over([each.contract for each in keep])
            except _Refused as answer:
                refusals |= answer.reasons
                continue
            self._write_down(keep, refused)
            return [each.event_id for each in keep]

    def _move_and_apply(self, position: int, contracts: Sequence[Placed]) -> None:
        with self._other.transaction():
            values = vars(self._place) | {
                "projection": self._target.name,
                "position": self.position,
                "to": position,
                "applied": len(contracts),
            }
            if self._execute(MOVE, values).rowcount != 1:
                raise Superseded(self._target.name)
            self.apply(contracts)
        self.position = position

    def _hand_over(self, contracts: Sequence[Contract]) -> None:
        silence(self._other)
        refused = apply_contracts(contracts, self._target.projection, self._other, lambda: None)
        if refused:
            raise _Refused(refused)

    def _write_down(self, applied: Sequence[Placed], refused: Mapping[Placed, str]) -> None:
        """What the other tables hold, for comparing it with the live inbox. (The store's own feed has positions.)"""
        if refused:
            each = list(refused)
            keys = [one.contract.key for one in each]
            columns = ([one.position for one in each], [one.event_id for one in each], keys, list(refused.values()))
            self._execute(REFUSE, (self._target.name, *columns))
            self._held.update(keys)
        if applied and not self._target.is_fed_by_the_store:
            self._other.execute(KEEP_IDS, ([each.event_id for each in applied],))

    def _stopped(self, position: int, contracts: Sequence[Placed], error: Exception) -> RebuildStopped:
        event_id = contracts[0].event_id if contracts else None
        at = contracts[0].position if contracts else position
        problem = f"the handler failed with {cause_of(error)}"
        if isinstance(error, HandlerWaits):  # for what no history will bring about
            problem = f"the handler waits: {error.reason}"
        return RebuildStopped(self._target.name, at, event_id, problem)

    def _execute(self, statement: LiteralString, values: Sequence[Any] | Mapping[str, Any]) -> psycopg.Cursor[Any]:
        return self._other.execute(sql.SQL(statement).format(live=sql.Identifier(self._place.live)), values)


class _Refused(Exception):
    """Rolls back what was written before the projection's answer. reasons: by event id."""

    def __init__(self, answers: Mapping[str, Quarantine]) -> None:
        self.reasons = {event_id: answer.reason for event_id, answer in answers.items()}


def _is_of_an_event(error: Exception) -> bool:
    return isinstance(error, HandlerWaits) or not (isinstance(error, Superseded) or is_no_event_at_fault(error))


def _sort_out(
    todo: Sequence[Placed], refusals: Mapping[str, str], held: set[str]
) -> tuple[list[Placed], dict[Placed, str]]:
    """Those to apply, and those refused: by the projection, or because an earlier event of their key was."""
    keep: list[Placed] = []
    refused: dict[Placed, str] = {}
    behind = set(held)
    for each in todo:
        if each.contract.key in behind:
            refused[each] = BEHIND
        elif each.event_id in refusals:
            refused[each] = refusals[each.event_id]
            behind.add(each.contract.key)
        else:
            keep.append(each)
    return keep, refused
