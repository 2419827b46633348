"""The quarantine of a projection: records that could not be applied, and what waits behind them."""

import builtins
from threading import Event

from counterfoil.quarantine_side import (
    DetailedEntry,
    Entry,
    EntryIsClosed,
    EntryState,
    Kind,
    NoSuchEntry,
    QuarantineSide,
    Redriven,
)
from infrastructure import migrate
from infrastructure.postgres import Connection, connect
from projections import entries
from projections.base import Projection
from projections.database import TIMEOUTS
from projections.discarding import discard
from projections.entries import ParkedKey
from projections.loading import load_with_inbox
from projections.quarantine import count
from projections.redriving import Redriver

_MOST_TOLD = 10
"""Entries that failed again, of a redrive."""
_HEX, _ENTRY = "hex:", "entry:"


def open_incoming(module: str) -> QuarantineSide:
    """Raises NoSuchProjection, SettingsError when its database is not given, SchemaOutdated, and psycopg's errors."""
    loaded = load_with_inbox(module)
    migrate.check(loaded.dsn(), loaded.migrations)
    connection = connect(loaded.dsn(), application_name="counterfoil quarantine", timeouts=TIMEOUTS)
    return IncomingQuarantine(module, loaded.projection, connection)


class IncomingQuarantine:
    """A QuarantineSide. The key of an entry is its record's: as text, or `hex:` and its bytes where it is none.

    A record without a key is alone: its key is `entry:` and its id.
    """

    def __init__(self, module: str, projection: Projection, connection: Connection) -> None:
        self._module, self._projection, self._connection = module, projection, connection
        self._name = projection.consumer_name

    def list(self, *, key: str | None, closed: bool, limit: int) -> builtins.list[Entry]:
        wanted = entries.EVERY_KEY if key is None else _parse(key)
        found = entries.entries(self._connection, self._name, wanted, closed=closed, limit=limit)
        return [_entry(each) for each in found]

    def show(self, entry_id: int) -> DetailedEntry:
        found = self._entry(entry_id)
        record = entries.record_of(self._connection, self._name, entry_id)
        if record is None:
            raise NoSuchEntry(self._module, entry_id)
        details = {
            "consumer": self._name,
            "topic": found.topic,
            "partition": found.partition,
            "offset": found.offset,
            "timestamp_ms": record.timestamp_ms,
            "headers": [name for name, _ in record.headers],
            "bytes": len(record.value or b""),
            "exported_at": found.exported_at,
        }
        return DetailedEntry(_entry(found), details, record.value)

    def redrive(self, key: str | None, *, wait: float, stop: Event) -> Redriven:  # noqa: ARG002
        """Done here and now, by this process; `wait` is not needed. What it is stopped before is left, not pending."""
        every = entries.parked_keys(self._connection, self._name)
        wanted = every if key is None else [each for each in every if each == _parse(key)]
        redriver, released = Redriver(self._projection, self._connection), 0
        failed: builtins.list[Entry] = []
        for each in wanted:
            if stop.is_set():
                break
            done = redriver.redrive(each, stop)
            released += done.released
            if done.failed and len(failed) < _MOST_TOLD:
                failed.append(_entry(self._entry(done.failed.entry_id)))
        return Redriven(keys=len(wanted), released=released, left=self._left(key), failed=tuple(failed))

    def discard(self, entry_id: int, reason: str, by: str) -> Entry:
        discarded = discard(self._connection, self._name, entry_id, reason, by)
        entry = _entry(self._entry(entry_id))
        if not discarded:
            raise EntryIsClosed(self._module, entry_id, entry.state)
        return entry

    def close(self) -> None:
        self._connection.close()

    def _entry(self, entry_id: int) -> entries.Entry:
        found = entries.entry(self._connection, self._name, entry_id)
        if found is None:
            raise NoSuchEntry(self._module, entry_id)
        return found

    def _left(self, key: str | None) -> int:
        if key is None:
            return count(self._connection, self._name).total
        return entries.count_parked(self._connection, self._name, _parse(key))


def _entry(entry: entries.Entry) -> Entry:
    return Entry(
        id=entry.id,
        key=_text_of(entry.key, entry.id),
        kind=Kind(entry.kind),
        state=EntryState(entry.state),
        category=entry.category,
        reason=entry.reason,
        event_id=entry.event_id,
        place=f"{entry.topic}/{entry.partition}@{entry.offset}",
        attempts=entry.attempts,
        quarantined_at=entry.quarantined_at,
        closed_at=entry.closed_at,
        closed_by=entry.closed_by,
        closed_reason=entry.closed_reason,
    )


def _text_of(key: bytes | None, entry_id: int) -> str:
    if key is None:
        return f"{_ENTRY}{entry_id}"
    text = key.decode(errors="replace")
    plain = text.encode() == key and text.isprintable() and text and not text.startswith((_HEX, _ENTRY))
    return text if plain else _HEX + key.hex()


def _parse(text: str) -> ParkedKey:
    """What no key can be named by is the key that it spells: nothing is parked of it."""
    if text.startswith(_ENTRY) and text[len(_ENTRY) :].isdecimal():
        return ParkedKey(None, int(text[len(_ENTRY) :]))
    if text.startswith(_HEX):
        try:
            return ParkedKey(bytes.fromhex(text[len(_HEX) :]))
        except ValueError:
            pass
    return ParkedKey(text.encode(errors="surrogateescape"))
