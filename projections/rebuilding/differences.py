"""What was found to differ, looked at again when both sides hold the same events."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection, sql

from projections.rebuilding.compare import (
    MOST_SUSPECTS,
    MOST_TOLD,
    compare,
    differing,
    in_words,
    summed_up_again,
)
from projections.rebuilding.compared import Compared
from projections.rebuilding.errors import TablesDiffer
from projections.rebuilding.target import Target

QUICK = 0.5
"""Seconds. A table whose rows were compared in so little is compared whole within the swap too: writers wait for that,
and readers do not."""

# Applied live, and the source does not tell of it.
UNKNOWN = """
    SELECT event_id FROM {live}.processed_events AS processed
    WHERE consumer_name = %(consumer)s AND NOT EXISTS (
        SELECT FROM {other}.rebuilt_events AS rebuilt WHERE rebuilt.event_id = processed.event_id
    ) AND NOT EXISTS (
        SELECT FROM {live}.rebuild_refused AS refused
        WHERE refused.projection = %(consumer)s AND refused.event_id = processed.event_id
    ) AND NOT EXISTS (
        SELECT FROM {live}.quarantined_events AS discarded
        WHERE discarded.consumer_name = %(consumer)s AND discarded.event_id = processed.event_id AND state = 'discarded'
    ) AND (%(only)s::text[] IS NULL OR event_id = ANY (%(only)s))
    LIMIT %(limit)s
"""
REFUSED = "SELECT event_id FROM {live}.rebuild_refused AS refused WHERE projection = %(consumer)s"
NOT_IN_QUARANTINE = """
    AND NOT EXISTS (
        SELECT FROM {live}.quarantined_events AS kept
        WHERE kept.consumer_name = %(consumer)s AND kept.event_id = refused.event_id
          AND state IN ('parked', 'discarded')
    )
"""
# While the tables were being filled; before that they are left out.
DISCARDED = """
    SELECT DISTINCT event_id FROM {live}.quarantined_events AS discarded
    WHERE consumer_name = %(consumer)s AND state = 'discarded' AND EXISTS (
        SELECT FROM {other}.rebuilt_events AS rebuilt WHERE rebuilt.event_id = discarded.event_id
    ) LIMIT %(limit)s
"""
ORDER = " ORDER BY position LIMIT %(limit)s"


@dataclass(frozen=True)
class Differences:
    """Found at one moment, while both sides went on; `that_remain` says which of them are true.

    unknown: ids of events that were applied live and are not in the source, which is called `source` in words.
    """

    target: Target
    live: str
    tables: Sequence[Compared] = ()
    unknown: Sequence[str] = ()
    source: str = "the store"

    @classmethod
    def find(
        cls, target: Target, connection: Connection, live: str, tables: Sequence[str], source: str
    ) -> "Differences":
        """Reads both sides whole."""
        unknown = [] if target.is_fed_by_the_store else _unknown(target, connection, live, None)
        return cls(target, live, compare(target, connection, live, tables), unknown, source)

    def that_remain(self, connection: Connection, alike: bool = False) -> list[str]:
        """In words: which differ still.

        alike: nobody writes on either side, and both hold the same events. Then it is exact for tables that are not
        large; of the others, and else, rows that did not differ before are not looked at.
        """
        told = []
        for compared in self.tables:
            whole = alike and compared.seconds < QUICK
            if compared.key and (whole or compared.suspects):
                only = None if whole or len(compared.suspects) >= MOST_SUSPECTS else compared.suspects
                if keys := differing(compared, connection, self.live, self.target.other_schema, only):
                    told.append(in_words(compared, keys))
            if compared.columns and not compared.key:
                again = summed_up_again(compared, connection, self.live, self.target.other_schema)
                if again.live != again.other:
                    told.append(f"{again.table}: {again.live.rows} rows live, {again.other.rows} rebuilt")
        if ids := self.that_are_missing(connection):
            told.append(_ids(f"events that were applied live and are not in {self.source}", ids))
        if ids := self._discarded(connection):
            told.append(_ids("events that were discarded after the rebuild had applied them", ids))
        return told + that_are_refused(self.target, connection, self.live)

    def error(self, told: Sequence[str]) -> TablesDiffer:
        """told: as `that_remain` has it."""
        return TablesDiffer(self.target.name, told, self.tables, self.target.other_schema)

    def that_are_missing(self, connection: Connection) -> list[str]:
        """Those of `unknown` that the other tables lack still."""
        return _unknown(self.target, connection, self.live, self.unknown) if self.unknown else []

    def _discarded(self, connection: Connection) -> list[str]:
        if self.target.is_fed_by_the_store:
            return []
        values = {"consumer": self.target.name, "limit": MOST_SUSPECTS}
        return [each for (each,) in connection.execute(_named(DISCARDED, self.target, self.live), values)]


def that_are_refused(target: Target, connection: Connection, live: str) -> list[str]:
    """In words: which events up to their positions the other tables lack, that nobody keeps for later."""
    statement = REFUSED if target.is_fed_by_the_store else REFUSED + NOT_IN_QUARANTINE
    values = {"consumer": target.name, "limit": MOST_SUSPECTS}
    ids = [each for (each,) in connection.execute(_named(statement + ORDER, target, live), values)]
    return [_ids("events that the handler refuses and that are not in quarantine", ids)] if ids else []


def _unknown(target: Target, connection: Connection, live: str, only: Sequence[str] | None) -> list[str]:
    values = {"consumer": target.name, "only": None if only is None else list(only), "limit": MOST_SUSPECTS}
    return [event_id for (event_id,) in connection.execute(_named(UNKNOWN, target, live), values)]


def _named(statement: str, target: Target, live: str) -> sql.Composed:
    names = {"live": sql.Identifier(live), "other": sql.Identifier(target.other_schema)}
    return sql.SQL(statement).format(**names)


def _ids(what: str, ids: Sequence[str]) -> str:
    many = str(len(ids)) if len(ids) < MOST_SUSPECTS else f"{MOST_SUSPECTS} or more"
    return f"{many} {what} ({', '.join(ids[:MOST_TOLD])}{', ...' if len(ids) > MOST_TOLD else ''})"
