"""Both sides of a projection that is fed by Kafka. What the live tables hold is in their inbox, event by event.

The inbox stays where it is. At the swap the other tables hold the same events as the live ones: those that the
inbox has, whatever their place in the store. So an event that has not come by Kafka comes after the swap, and one
that came before it is known, on either side of the swap.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psycopg import Connection, sql

from projections import versions
from projections.inbox import OUR_SHAPE
from projections.rebuilding.fill import Filler
from projections.rebuilding.sides import FOR_WRITERS, Left
from projections.rebuilding.source import Rest, Source, TooFarApart
from projections.rebuilding.target import Target

MOST_CANDIDATES = 10_000

POSITIONS = "SELECT position FROM {live}.rebuild_workers WHERE projection = %s ORDER BY worker"

# Ids that the inbox has forgotten were applied; so were all of ours below its horizon.
NOT_IN_INBOX = """
    SELECT event_id FROM {other}.rebuilt_events AS rebuilt
    WHERE NOT EXISTS (
        SELECT FROM {live}.processed_events AS processed
        WHERE processed.consumer_name = %(consumer)s AND processed.event_id = rebuilt.event_id
    ) AND NOT EXISTS (
        SELECT FROM {live}.inbox_horizons AS horizon
        WHERE horizon.consumer_name = %(consumer)s AND rebuilt.event_id < horizon.event_id
          AND rebuilt.event_id ~ %(our_shape)s
    )
"""
SINCE = " AND (place > %(since)s OR event_id = ANY (%(candidates)s))"
AT_MOST = " LIMIT %(limit)s"

LAST_PLACE = "SELECT coalesce(max(place), 0) FROM {other}.rebuilt_events"

IN_QUARANTINE = """
    SELECT DISTINCT event_id FROM {live}.quarantined_events
    WHERE consumer_name = %s AND state = 'parked' AND event_id = ANY (%s)
"""
IN_INBOX = "SELECT event_id FROM {live}.processed_events WHERE consumer_name = %s AND event_id = ANY (%s)"

ADD_TO_INBOX = """
    INSERT INTO processed_events (consumer_name, event_id)
    SELECT %s, event_id FROM unnest(%s::text[]) AS added (event_id) ORDER BY event_id ON CONFLICT DO NOTHING
"""
# What the handler has refused is not in the tables; should it come again, that must be noticed. But what somebody
# has discarded is not to come again.
REMOVE_REFUSED = """
    DELETE FROM processed_events USING rebuild_refused AS refused
    WHERE consumer_name = %(consumer)s AND refused.projection = %(consumer)s
      AND processed_events.event_id = refused.event_id AND NOT EXISTS (
        SELECT FROM quarantined_events AS discarded
        WHERE discarded.consumer_name = %(consumer)s AND discarded.event_id = refused.event_id AND state = 'discarded'
      )
"""


class KafkaSides:
    def __init__(self, target: Target, live: str, source: Source) -> None:
        self._target, self._live, self._source = target, live, source
        self._at, self._rest = list[int](), Rest((), (), ())
        self._since, self._candidates = 0, list[str]()
        self._complete = False
        self._add: list[str] = []

    def waiting(self, connection: Connection, _reached: int) -> int:
        if not self._complete:
            self._since = connection.execute(self._sql(LAST_PLACE)).fetchone()[0]  # type: ignore[index]
            self._candidates = self._not_in_inbox(connection, AT_MOST)
            self._complete = len(self._candidates) < MOST_CANDIDATES
        else:
            self._candidates = self._not_in_inbox(connection, SINCE)
        return len(self._candidates) - len(self._parked(connection, self._candidates))

    @contextmanager
    def fenced(self, connection: Connection) -> Iterator[None]:
        """No transaction is open while the source is read. What it has by then is all that can have come to the live
        tables."""
        with versions.fence(connection, self._target.name, FOR_WRITERS):
            self._at = [position for (position,) in connection.execute(self._sql(POSITIONS), (self._target.name,))]
            self._rest = self._source.rest(self._at)
            yield

    def fence(self, tx: Connection) -> None:
        """There is one already."""

    def meet(self, tx: Connection, filler: Filler, positions: Sequence[int]) -> Left:
        if list(positions) != self._at:  # by a process that has been superseded since
            raise TooFarApart
        known = self._in_inbox(tx, [each.event_id for each in self._rest.beyond])
        filler.apply(self._rest.due)
        filler.apply([each for each in self._rest.beyond if each.event_id in known])
        self._add = self._not_in_inbox(tx, SINCE if self._complete else "")
        # Those in quarantine among them are claimed at the swap too: the former tables lack them, and so does the
        # redrive that would have asked for their effects.
        return Left(self._rest.reached, sorted(known), returnable=not self._add, complete=not self._add)

    def hand_over(self, tx: Connection, version: int) -> None:
        tx.execute(ADD_TO_INBOX, (self._target.name, self._add))
        tx.execute(REMOVE_REFUSED, {"consumer": self._target.name})
        versions.write(tx, self._target.name, version)

    def live_version(self, tx: Connection) -> int:
        return versions.read(tx, self._target.name) or self._target.projection.version

    def _not_in_inbox(self, connection: Connection, condition: str) -> list[str]:
        values = {
            "consumer": self._target.name,
            "our_shape": OUR_SHAPE,
            "since": self._since,
            "candidates": self._candidates,
            "limit": MOST_CANDIDATES,
        }
        statement = self._sql(NOT_IN_INBOX) + sql.SQL(condition)
        return [event_id for (event_id,) in connection.execute(statement, values)]

    def _in_inbox(self, tx: Connection, event_ids: list[str]) -> set[str]:
        return {each for (each,) in tx.execute(self._sql(IN_INBOX), (self._target.name, event_ids))}

    def _parked(self, connection: Connection, event_ids: list[str]) -> set[str]:
        return {each for (each,) in connection.execute(self._sql(IN_QUARANTINE), (self._target.name, event_ids))}

    def _sql(self, statement: str) -> sql.Composed:
        other = sql.Identifier(self._target.other_schema)
        return sql.SQL(statement).format(live=sql.Identifier(self._live), other=other)
