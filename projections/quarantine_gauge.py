"""Shows in the metrics how much is in quarantine, whoever puts it there or takes it out."""

from time import monotonic

import psycopg

from infrastructure import metrics
from projections.database import Database
from projections.quarantine import count

EVERY = 10.0
"""Seconds between two looks."""


class QuarantineGauge:
    """Each process shows the number of the whole consumer, as it was a little while ago."""

    def __init__(self, consumer_name: str) -> None:
        self._name = consumer_name
        self._due = 0.0

    def refresh(self, database: Database) -> None:
        """When it is due. A database that does not answer is not this one's trouble: it shows when there is work."""
        if monotonic() < self._due:
            return
        self._due = monotonic() + EVERY
        try:
            found = count(database.connection(), self._name)
        except psycopg.Error:
            database.drop()
            return
        metrics.QUARANTINE_OPEN.labels(self._name, "culprit").set(found.culprits)
        metrics.QUARANTINE_OPEN.labels(self._name, "follower").set(found.followers)
