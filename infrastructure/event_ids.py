"""The id of a public event: a fact of the stored event, so that every publish of it carries the same one."""

from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from uuid import UUID

from pydantic_core import TzInfo

from domain.base import Stored

_EPOCH = datetime(1970, 1, 1, tzinfo=TzInfo(0))
"""In the zone object of times that were read as UTC, so that neither is asked for its offset: 3 % of a message."""
_LARGEST_MILLISECOND = 2**48 - 1


def event_id(namespace: UUID, stored: Stored, timestamp: datetime, contract_type: str) -> str:
    """`evt_` and the 32 hexadecimal digits of a UUID of version 8 (RFC 9562, section 5.8).

    namespace: of the store. stored: the event as it is stored. timestamp: the domain event's own.
    contract_type: the public event made of it; one stored event may become several.

    Guarantees: the same arguments always give the same id; ids sort by time as text, to the millisecond;
    another fact gets another id, even one stored under the same id and version after the store was set
    back to an older backup, because the stored bytes are part of it.
    """
    originator, state = str(stored.originator_id).encode(), stored.state
    digits = sha256(
        b"".join(
            (
                _start(namespace.int),
                _length(len(originator)),
                originator,
                _EIGHT,
                _length(stored.originator_version),
                _names(contract_type, stored.topic),
                _length(len(state)),
                state,
            )
        )
    ).hexdigest()
    # A UUID of version 8: 48 bits of time, 4 of version, 12 of the digest, 2 of variant, 62 of the digest.
    return f"evt_{_milliseconds(timestamp):012x}8{digits[1:4]}{_VARIANT[digits[4]]}{digits[5:20]}"


def fingerprint(stored: Stored) -> bytes:
    """32 bytes that tell this stored event from any other, whatever position it has."""
    return sha256(
        b"".join(
            (
                _part(str(stored.originator_id).encode()),
                _EIGHT + _length(stored.originator_version),
                _part(stored.topic.encode()),
                _part(stored.state),
            )
        )
    ).digest()


def _part(part: bytes) -> bytes:
    """With its length before it, so that no two lists of parts make the same bytes."""
    return _length(len(part)) + part


_length = Struct(">Q").pack
"""A whole number in 8 bytes."""
_EIGHT = _length(8)
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""A hexadecimal digit whose upper two bits say: as RFC 9562 has it; by the digit whose lower two bits it keeps."""


@lru_cache(maxsize=100)
def _start(namespace: int) -> bytes:
    return _part(namespace.to_bytes(16, "big"))


@lru_cache(maxsize=1_000)
def _names(contract_type: str, topic: str) -> bytes:
    """Of names there are few: they are kept."""
    return _part(contract_type.encode()) + _part(topic.encode())


def _milliseconds(timestamp: datetime) -> int:
    """Kept within the 48 bits there are: a wrong clock must not make an event unpublishable."""
    since = timestamp - _EPOCH
    milliseconds = since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000
    return max(0, min(_LARGEST_MILLISECOND, milliseconds))
