"""Snapshots of aggregates in PostgreSQL, beside the events they were made of."""

from domain.snapshots import Outcome, Snapshot, SnapshotStore
from infrastructure import metrics
from infrastructure.pool import Pool

FIND = """
    SELECT originator_id, originator_version, topic, snapshot_version, fingerprint, state, seal
    FROM snapshots WHERE originator_id = %s
"""

REPLACE = """
    INSERT INTO snapshots (originator_id, originator_version, topic, snapshot_version, fingerprint, state, seal)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (originator_id) DO UPDATE SET
        originator_version = excluded.originator_version, topic = excluded.topic,
        snapshot_version = excluded.snapshot_version, fingerprint = excluded.fingerprint,
        state = excluded.state, seal = excluded.seal, taken_at = excluded.taken_at
"""


class PostgresSnapshots(SnapshotStore):
    """One row for each aggregate. Every call is one round trip and one attempt."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def get(self, originator_id: str) -> Snapshot | None:
        with self._pool.connection() as connection:
            row = connection.execute(FIND, (originator_id,), prepare=True, binary=True).fetchone()
        return Snapshot(*row) if row else None

    def put(self, snapshot: Snapshot) -> None:
        """A slower process may put an older one in place of a newer: it is as true, and the next one is near."""
        with self._pool.connection() as connection:
            connection.execute(REPLACE, tuple(vars(snapshot).values()), prepare=True)

    def count(self, topic: str, outcome: Outcome) -> None:
        metrics.SNAPSHOTS.labels(topic, outcome).inc()
