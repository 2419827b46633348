"""Stored events that a relay passes without publishing them, written down before its checkpoint may pass them."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from infrastructure.event_ids import fingerprint
from infrastructure.event_reader import RecordedEvent
from infrastructure.lease import Lease, Shard
from infrastructure.postgres import Connection
from infrastructure.shards import shard_of


class Kind(StrEnum):
    CULPRIT = "culprit"
    """It cannot be published as things are."""
    FOLLOWER = "follower"
    """Nothing is known against it: it waits behind an earlier event of its aggregate."""


class Category(StrEnum):
    """Why an event is parked. A metric label: few, and ours."""

    UNMAPPABLE = "unmappable"
    """It does not become messages: the code does not know it, or its contract does not allow it."""
    NO_KEY = "no_key"
    REFUSED = "refused"
    """Kafka would refuse it again, or has refused it, for what it is: it is too large."""
    BEHIND = "behind"
    GONE = "gone"
    """Another event is stored in its place by now, or none: the store was set back."""


class Parked(NamedTuple):
    """problem: names fields, classes and errors, never a value."""

    event: RecordedEvent
    kind: Kind
    category: Category
    problem: str


# The lock keeps the next holder of the lease from reading, before these rows are committed, where to go on.
FENCE = """
    SELECT 1 FROM relay_checkpoints
    WHERE relay = %(relay)s AND shard = %(shard)s AND epoch = %(epoch)s AND owner = %(owner)s
    FOR NO KEY UPDATE
"""

# The lock lets a discard that is under way end first, so that the next statement sees it.
AWAIT_DISCARDS = """
    SELECT 1 FROM outgoing_quarantine
    WHERE relay = %(relay)s AND released_at IS NULL AND discarded_at IS NULL
      AND (originator_id, position) IN (SELECT * FROM unnest(%(originator_ids)s::text[], %(positions)s::bigint[]))
    ORDER BY id FOR SHARE
"""

PARK = """
    INSERT INTO outgoing_quarantine (
        relay, position, originator_id, originator_version, fingerprint, hash, kind, category, problem
    )
    SELECT %(relay)s, new.* FROM unnest(
        %(positions)s::bigint[], %(originator_ids)s::text[], %(versions)s::bigint[], %(fingerprints)s::bytea[],
        %(hashes)s::bigint[], %(kinds)s::text[], %(categories)s::text[], %(problems)s::text[]
    ) AS new (position, originator_id, originator_version, fingerprint, hash, kind, category, problem)
    WHERE NOT EXISTS (
        SELECT FROM outgoing_quarantine AS gone
        WHERE gone.relay = %(relay)s AND gone.position = new.position AND gone.fingerprint = new.fingerprint
          AND gone.discarded_at IS NOT NULL
    )
    ON CONFLICT DO NOTHING
    RETURNING position
"""

PARKED_AGGREGATES = """
    SELECT originator_id, min(position) FROM outgoing_quarantine
    WHERE relay = %(relay)s AND released_at IS NULL AND discarded_at IS NULL AND hash %% %(shards)s = %(shard)s
      AND originator_id >= %(from)s
    GROUP BY originator_id ORDER BY originator_id LIMIT %(limit)s
"""

DISCARDED_AFTER = """
    SELECT position, fingerprint FROM outgoing_quarantine
    WHERE relay = %s AND position > %s AND discarded_at IS NOT NULL
"""

LONGEST_PROBLEM = 1_000
_PAGE = 20_000


def hash_of(originator_id: str) -> int:
    """What names the shard of an aggregate, modulo the number of shards."""
    return shard_of(originator_id, 2**32)


def park(connection: Connection, lease: Lease, parked: Sequence[Parked]) -> list[Parked]:
    """Writes these down, all or none, in a transaction of its own; returns those that are new. An event that is
    parked already stays as it is, and so does one that was discarded.

    To be called before the checkpoint, here or in Kafka, passes any of them. Raises LeaseLost.
    """
    if not parked:
        return []
    with connection.transaction():
        fence(connection, lease)
        values = {"relay": lease.relay} | _columns(parked)
        connection.execute(AWAIT_DISCARDS, values)
        new = {position for (position,) in connection.execute(PARK, values)}
    return [each for each in parked if each.event.position in new]


def fence(tx: Connection, lease: Lease) -> None:
    """Until the end of this transaction nobody else gets the lease. Raises LeaseLost when somebody has it."""
    if tx.execute(FENCE, lease.fields).fetchone() is None:
        raise lease.lost()


def parked_aggregates(connection: Connection, shard: Shard, turn: Callable[[], None] = lambda: None) -> dict[str, int]:
    """The aggregates of this shard that have parked events, with the position of the first of these.

    Read in pages, so that no statement takes long however many there are; `turn` is called between them.
    """
    found: dict[str, int] = {}
    values: dict[str, object] = {"relay": shard.relay, "shard": shard.number, "shards": shard.shards, "limit": _PAGE}
    first = ""
    while page := connection.execute(PARKED_AGGREGATES, values | {"from": first}).fetchall():
        found.update(page)
        first = page[-1][0] + "\x01"  # the next text there is: no text column holds a NUL
        turn()
    return found


def discarded_after(connection: Connection, relay: str, position: int) -> set[tuple[int, bytes]]:
    """Position and fingerprint of the events that are never to be published: some only where it was set back."""
    return {(each, bytes(print_)) for each, print_ in connection.execute(DISCARDED_AFTER, (relay, position))}


def storable(problem: str) -> str:
    """As a text column takes it."""
    return problem[:LONGEST_PROBLEM].encode(errors="replace").decode().replace("\0", "?")


def _columns(parked: Sequence[Parked]) -> dict[str, list[object]]:
    return {
        "positions": [each.event.position for each in parked],
        "originator_ids": [each.event.originator_id for each in parked],
        "versions": [each.event.originator_version for each in parked],
        "fingerprints": [fingerprint(each.event) for each in parked],
        "hashes": [hash_of(each.event.originator_id) for each in parked],
        "kinds": [str(each.kind) for each in parked],
        "categories": [str(each.category) for each in parked],
        "problems": [storable(each.problem) for each in parked],
    }
