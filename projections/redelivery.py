"""From what Kafka could still deliver to how much an inbox must still know. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic_core import from_json

from infrastructure.record import Record
from infrastructure.redeliverable import Redeliverable
from projections.inbox import OUR_SHAPE

_OUR_ID = re.compile(OUR_SHAPE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Limit:
    """Events of this Unix time (ms) and later may still be delivered. why: in words, without a value from a record."""

    from_ms: int
    why: str


def limits(found: Redeliverable, topics: Sequence[str], now_ms: int) -> list[Limit]:
    """now_ms: by the database's clock."""
    return [
        *(_of_topic(topic, found, now_ms) for topic in topics),
        *(Limit(at, f"{place} still has a record of {utc(at)}") for place, at in _times(found.oldest)),
        *(Limit(at, f"{place} has a record of {utc(at)} not yet read") for place, at in _times(found.unread)),
    ]


def utc(milliseconds: int) -> str:
    """A Unix time for people, to the minute."""
    try:
        return (_EPOCH + timedelta(milliseconds=milliseconds)).strftime("%Y-%m-%d %H:%M")
    except OverflowError:  # ids reach to the year 10889
        return f"{milliseconds} ms"


def _of_topic(topic: str, found: Redeliverable, now_ms: int) -> Limit:
    if topic not in found.kept_ms:
        return Limit(0, f"there is no topic {topic}: nobody can tell what it would bring")
    kept = found.kept_ms[topic]
    if kept is None:
        return Limit(0, f"{topic} keeps its records for ever, as far as Kafka tells")
    return Limit(now_ms - kept, f"{topic} keeps its records for {kept / _HOUR_MS:g} h")


def _times(records: Sequence[Record]) -> Iterator[tuple[str, int]]:
    """The earlier of a record's time and its event's: an event may be published long after it happened."""
    for record in records:
        times = [time for time in (record.timestamp_ms, _time_of_event(record)) if time is not None]
        # A record that tells no time may be of any.
        yield f"{record.topic}/{record.partition}", min(times, default=0)


def _time_of_event(record: Record) -> int | None:
    """None when its id is not one of ours."""
    try:
        event = from_json(record.value or b"")
    except ValueError:
        return None
    event_id = event.get("eventId") if isinstance(event, dict) else None
    return int(event_id[4:16], 16) if isinstance(event_id, str) and _OUR_ID.match(event_id) else None
