"""Locks on the keys of one consumer that have, or are getting, entries in quarantine.

Whoever parks an event of a key, releases one or discards one holds that key's lock until its transaction
ends. Without it an event could come to be parked behind entries that a redrive is just releasing, and
stay there with nothing before it; or be applied while an earlier one of its key is not released yet.

A batch that parks nothing, of keys of which nothing is parked, takes no lock at all. It needs none: the
events of one topic and key come to one consumer, one after the other, so whatever has to be parked first
was parked before.

Locks are taken before the claims of the inbox, and in order of their numbers: so nobody waits in a circle.
"""

import struct
from collections.abc import Iterable
from hashlib import sha256

from psycopg import Connection

STRIPES = 256
"""Keys share this many locks per consumer, because the server has room for a few thousand locks in all, and a batch
of bytes that nobody can read may have many keys. Two keys that share one wait for each other now and then."""

LOCK = "SELECT pg_advisory_xact_lock(%s, stripe) FROM unnest(%s::int[]) AS wanted (stripe)"


def lock_keys(tx: Connection, consumer_name: str, key_hashes: Iterable[bytes]) -> None:
    """Until the transaction ends. To be called once in it; what was read before may have changed meanwhile."""
    stripes = sorted({key_hash[0] % STRIPES for key_hash in key_hashes})
    if stripes:
        tx.execute(LOCK, (_number_of(consumer_name), stripes))


def _number_of(consumer_name: str) -> int:
    """Consumers of one database have locks of their own; if two share a number, they only wait needlessly."""
    (number,) = struct.unpack(">i", sha256(f"counterfoil quarantine {consumer_name}".encode()).digest()[:4])
    return int(number)
