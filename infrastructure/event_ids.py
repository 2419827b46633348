"""The id of a public event: a fact of the stored event, so that every publish of it carries the same one."""

from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from uuid import UUID

from eventsourcing.persistence import StoredEvent

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_MILLISECOND = 2**48 - 1
_VERSION_AND_VARIANT = 0x8 << 76 | 0x2 << 62
_THE_REST = ~(0xF << 76 | 0x3 << 62)


def event_id(namespace: UUID, stored: StoredEvent, timestamp: datetime, contract_type: str) -> str:
    """`evt_` and the 32 hexadecimal digits of a UUID of version 8 (RFC 9562, section 5.8).

    namespace: of the store. stored: the event as it is stored. timestamp: the domain event's own.
    contract_type: the public event made of it; one stored event may become several.

    Guarantees: the same arguments always give the same id; ids sort by time as text, to the millisecond;
    another fact gets another id, even one stored under the same id and version after the store was set
    back to an older backup, because the stored bytes are part of it.
    """
    digest = sha256(
        b"".join(
            (
                _SIXTEEN + namespace.int.to_bytes(16, "big"),
                _part(str(stored.originator_id).encode()),
                _EIGHT + stored.originator_version.to_bytes(8, "big"),
                _name(contract_type),
                _name(stored.topic),
                _part(stored.state),
            )
        )
    ).digest()
    return f"evt_{_uuid_of_version_8(_milliseconds(timestamp), digest):032x}"


def fingerprint(stored: StoredEvent) -> bytes:
    """32 bytes that tell this stored event from any other, whatever position it has."""
    return sha256(
        b"".join(
            (
                _part(str(stored.originator_id).encode()),
                _EIGHT + stored.originator_version.to_bytes(8, "big"),
                _name(stored.topic),
                _part(stored.state),
            )
        )
    ).digest()


def _part(part: bytes) -> bytes:
    """With its length before it, so that no two lists of parts make the same bytes."""
    return len(part).to_bytes(8, "big") + part


_EIGHT, _SIXTEEN = (8).to_bytes(8, "big"), (16).to_bytes(8, "big")


@lru_cache(maxsize=1_000)
def _name(text: str) -> bytes:
    """Of names, of which there are few: they are kept."""
    return _part(text.encode())


def _milliseconds(timestamp: datetime) -> int:
    """Kept within the 48 bits there are: a wrong clock must not make an event unpublishable."""
    since = timestamp - _EPOCH
    milliseconds = since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000
    return max(0, min(_LARGEST_MILLISECOND, milliseconds))


def _uuid_of_version_8(milliseconds: int, digest: bytes) -> int:
    """48 bits of time, 4 of version, 12 of the digest, 2 of variant, 62 of the digest."""
    return (milliseconds << 80 | int.from_bytes(digest[:10], "big")) & _THE_REST | _VERSION_AND_VARIANT
