"""The id of a public event: a fact of the stored event, so that every publish of it carries the same one."""

import hashlib
from datetime import UTC, datetime, timedelta
from uuid import UUID

from eventsourcing.persistence import StoredEvent

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_MILLISECOND = 2**48 - 1


def event_id(namespace: UUID, stored: StoredEvent, timestamp: datetime, contract_type: str) -> str:
    """`evt_` and the 32 hexadecimal digits of a UUID of version 8 (RFC 9562, section 5.8).

    namespace: of the store. stored: the event as it is stored. timestamp: the domain event's own.
    contract_type: the public event made of it; one stored event may become several.

    Guarantees: the same arguments always give the same id; ids sort by time as text, to the millisecond;
    another fact gets another id, even one stored under the same id and version after the store was set
    back to an older backup, because the stored bytes are part of it.
    """
    digest = _digest(
        namespace.bytes,
        str(stored.originator_id).encode(),
        stored.originator_version.to_bytes(8, "big"),
        contract_type.encode(),
        stored.topic.encode(),
        stored.state,
    )
    return "evt_" + _uuid_of_version_8(_milliseconds(timestamp), digest).hex


def fingerprint(stored: StoredEvent) -> bytes:
    """32 bytes that tell this stored event from any other, whatever position it has."""
    return _digest(
        str(stored.originator_id).encode(),
        stored.originator_version.to_bytes(8, "big"),
        stored.topic.encode(),
        stored.state,
    )


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))  # so that no two lists of parts make the same bytes
        digest.update(part)
    return digest.digest()


def _milliseconds(timestamp: datetime) -> int:
    """Kept within the 48 bits there are: a wrong clock must not make an event unpublishable."""
    return max(0, min(_LARGEST_MILLISECOND, (timestamp - _EPOCH) // timedelta(milliseconds=1)))


def _uuid_of_version_8(milliseconds: int, digest: bytes) -> UUID:
    """48 bits of time, 4 of version, 12 of the digest, 2 of variant, 62 of the digest."""
    value = milliseconds << 80 | int.from_bytes(digest[:10], "big")
    value = value & ~(0xF << 76) | 0x8 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)
