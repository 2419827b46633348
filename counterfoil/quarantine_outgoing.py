"""The quarantine of a relay: stored events that could not leave. Only the relay itself publishes any of them."""

import builtins
from threading import Event
from time import monotonic

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
from infrastructure import migrate, outgoing_records, outgoing_redrives
from infrastructure.outbox import load_outbox
from infrastructure.outgoing_records import Record
from infrastructure.postgres import Connection, connect
from infrastructure.settings import Settings

_POLL = 0.2
_MOST_TOLD = 10
"""Entries that failed again, of a redrive."""
_GONE = "gone: the store was set back, and another event is stored in its place, or none"


def open_outgoing(module: str) -> QuarantineSide:
    """Raises OutboxNotFound, SettingsError when no store is given, SchemaOutdated, and psycopg's errors."""
    relay, dsn = load_outbox(module).name, Settings.load().required_store_dsn()
    migrate.check(dsn, migrate.STORE_MIGRATIONS)
    return OutgoingQuarantine(connect(dsn, application_name="counterfoil quarantine"), relay)


class OutgoingQuarantine:
    """A QuarantineSide. The key of an entry is the id of its aggregate, whatever its messages are keyed by."""

    def __init__(self, store: Connection, relay: str) -> None:
        self._store, self._relay = store, relay

    def list(self, *, key: str | None, closed: bool, limit: int) -> builtins.list[Entry]:
        found = outgoing_records.records(self._store, self._relay, originator_id=key, closed=closed, limit=limit)
        return [_entry(each) for each in found]

    def show(self, entry_id: int) -> DetailedEntry:
        record = self._record(entry_id)
        details: dict[str, object] = {
            "position": record.position,
            "aggregate": record.originator_id,
            "version": record.originator_version,
            "tried_at": record.tried_at,
        }
        stored = outgoing_records.stored_event(self._store, record)
        if stored is None:
            return DetailedEntry(_entry(record), details | {"stored": _GONE})
        event, stored_at = stored
        details |= {"stored_topic": event.topic, "stored_at": stored_at, "bytes": len(event.state)}
        return DetailedEntry(_entry(record), details, event.state)

    def redrive(self, key: str | None, *, wait: float, stop: Event) -> Redriven:
        keys, since = outgoing_redrives.ask(self._store, self._relay, key)
        deadline = monotonic() + wait
        while True:
            progress = outgoing_records.progress(self._store, self._relay, key, since)
            if not progress.pending or monotonic() >= deadline or stop.wait(_POLL):
                break
        failed = outgoing_records.failed_since(self._store, self._relay, key, since, _MOST_TOLD)
        return Redriven(
            keys=keys,
            released=progress.released,
            left=progress.left,
            pending=progress.pending,
            failed=tuple(_entry(each) for each in failed),
        )

    def discard(self, entry_id: int, reason: str, by: str) -> Entry:
        discarded = outgoing_records.discard(self._store, self._relay, entry_id, reason, by)
        entry = _entry(self._record(entry_id))
        if not discarded:
            raise EntryIsClosed(self._relay, entry_id, entry.state)
        return entry

    def close(self) -> None:
        self._store.close()

    def _record(self, entry_id: int) -> Record:
        record = outgoing_records.record(self._store, self._relay, entry_id)
        if record is None:
            raise NoSuchEntry(self._relay, entry_id)
        return record


def _entry(record: Record) -> Entry:
    return Entry(
        id=record.id,
        key=record.originator_id,
        kind=Kind(record.kind),
        state=_state(record),
        category=record.category,
        reason=record.problem,
        event_id=None,  # of its contracts, which it may not become
        place=f"position {record.position}, version {record.originator_version}",
        attempts=record.attempts,
        quarantined_at=record.quarantined_at,
        closed_at=record.released_at or record.discarded_at,
        closed_by=record.discarded_by,
        closed_reason=record.discard_reason,
    )


def _state(record: Record) -> EntryState:
    """One that was discarded while it was on its way to Kafka has been released all the same."""
    if record.released_at:
        return EntryState.RELEASED
    if record.discarded_at:
        return EntryState.DISCARDED
    return EntryState.ASKED if record.asked else EntryState.PARKED
