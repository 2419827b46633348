"""One worker of a rebuild: pages of contracts, applied to the other tables together with the positions reached."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import Connection, sql

from domain.contracts import Contract
from infrastructure.postgres import cause_of
from projections.applying import apply_contracts
from projections.base import Quarantine
from projections.effects import silence
from projections.faults import HandlerWaits, is_no_event_at_fault
from projections.rebuilding.errors import RebuildStopped, Superseded
from projections.rebuilding.source import Page, Place, Placed, Source, Told
from projections.rebuilding.target import Target

# Before the effects, so that whoever else would apply the same events waits here and is then refused.
MOVE = """
    UPDATE {live}.rebuild_workers AS place SET position = moved.reached, applied = place.applied + moved.applied
    FROM unnest(%(rows)s::int[], %(positions)s::bigint[], %(reached)s::bigint[], %(applied)s::bigint[])
        AS moved (worker, position, reached, applied)
    WHERE place.projection = %(projection)s AND place.worker = moved.worker AND place.position = moved.position
      AND EXISTS (SELECT FROM {live}.rebuilds WHERE projection = %(projection)s AND run = %(run)s)
"""
POSITIONS = """
    SELECT worker, position FROM {live}.rebuild_workers WHERE projection = %s AND worker = ANY (%s) ORDER BY worker
"""
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
KNOWN = "SELECT event_id FROM rebuilt_events WHERE event_id = ANY (%s)"

BEHIND = "an earlier event of its key was refused"


class Filler:
    """Applies the events of its place, in the order of its source, each exactly once.

    What a transaction applies and the positions it reaches are committed together, and refused when another
    process has taken over. Only the other tables are written.
    """

    def __init__(self, target: Target, place: Place, source: Source, other: Connection) -> None:
        """other: a connection whose names mean the other tables. Raises Superseded."""
        self._target, self._place, self._source, self._other = target, place, source, other
        self.positions: dict[int, int] = dict(self._execute(POSITIONS, (target.name, place.rows)).fetchall())
        if len(self.positions) < len(place.rows):
            raise Superseded(target.name)
        self._not_to_apply = {event_id for (event_id,) in self._execute(AHEAD, (target.name,))}
        if not target.is_fed_by_the_store:  # somebody has decided that they are never to be applied
            self._not_to_apply |= {event_id for (event_id,) in self._execute(DISCARDED, (target.name,))}
        self._held = {key for (key,) in self._execute(HELD_KEYS, (target.name,))}

    def step(self) -> Page:
        """One page, which is applied now.

        Raises RebuildStopped at an event that fails, with all before it applied; Superseded; psycopg.Error; and what
        keeps the source from being read.
        """
        page = self._source.page(self.positions, self._place)
        self.bring_to(page.reached, page.told)
        if page.stopped:
            raise page.stopped
        return page

    def bring_to(self, reached: Mapping[int, int], told: Sequence[Told]) -> None:
        """told: all events between the positions and these, of the rows that it has. Raises as `step` does."""
        try:
            self._move_and_apply(reached, told)
        except Exception as error:
            contracts = [each for one in told for each in one.contracts]
            if not contracts or not _is_of_an_event(error):
                raise
            if len(told) == 1:
                raise self._stopped(told[0].row, contracts[0], error) from error
            for each in told:  # up to the one at fault
                self.bring_to({each.row: each.reached}, [each])
            self.bring_to(reached, [])

    def apply(self, contracts: Iterable[Placed]) -> list[str]:
        """Within the caller's transaction, whatever the position is. The ids of those that are applied now; what is
        left was applied before, or discarded, or is refused and written down. Raises what the handler raises."""
        todo = [each for each in contracts if each.event_id not in self._not_to_apply]
        if self._source.repeats:
            todo = self._first_of_each(todo)
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

    def _first_of_each(self, contracts: Sequence[Placed]) -> list[Placed]:
        """Those that the other tables do not hold yet."""
        first: dict[str, Placed] = {}
        for each in contracts:
            first.setdefault(each.event_id, each)
        for (event_id,) in self._other.execute(KNOWN, (list(first),)):
            del first[event_id]
        return list(first.values())

    def _move_and_apply(self, reached: Mapping[int, int], told: Sequence[Told]) -> None:
        moved = {row: to for row, to in reached.items() if to != self.positions[row]}
        if not moved:
            return
        applied = Counter(one.row for one in told for _ in one.contracts)
        with self._other.transaction():
            values = {
                "projection": self._target.name,
                "run": self._place.run,
                "rows": list(moved),
                "positions": [self.positions[row] for row in moved],
                "reached": list(moved.values()),
                "applied": [applied[row] for row in moved],
            }
            if self._execute(MOVE, values).rowcount != len(moved):
                raise Superseded(self._target.name)
            self.apply(each for one in told for each in one.contracts)
        self.positions |= moved

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

    def _stopped(self, row: int, at: Placed, error: Exception) -> RebuildStopped:
        problem = f"the handler failed with {cause_of(error)}"
        if isinstance(error, HandlerWaits):  # for what no history will bring about
            problem = f"the handler waits: {error.reason}"
        return self._source.stopped(row, at.position, at.event_id, problem)

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
