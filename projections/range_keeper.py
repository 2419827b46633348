"""Keeps the inbox's ranges made ahead of time, and its size in sight, while a projection runs."""

import logging
from contextlib import closing
from threading import Event
from time import monotonic

import psycopg

from infrastructure import metrics
from infrastructure.postgres import Connection, Timeouts, cause_of, connect
from infrastructure.supervisor import beat
from projections.inbox_ranges import make_ranges_ahead

logger = logging.getLogger(__name__)

INTERVAL = 3_600.0
"""Seconds between two looks."""

_TURN = 5.0
"""Seconds between two beats."""

TIMEOUTS = Timeouts(lock=2.0)
"""lock: the longest that consumers queue behind us."""

BYTES = """
    SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint
    FROM pg_inherits WHERE inhparent = 'processed_events'::regclass
"""


class RangeKeeper:
    """A loop for the supervisor. Where it fails (no right to make tables, a busy inbox) nothing stops: ids without a
    range go to the rest, and it tries again after a while."""

    def __init__(self, dsn: str, projection: str) -> None:
        self.name = f"{projection} ranges"
        self._dsn, self._projection = dsn, projection

    def run(self, stop: Event) -> None:
        due = 0.0
        while not stop.is_set():
            beat(self.name)
            if monotonic() >= due:
                self.step()
                due = monotonic() + INTERVAL
            stop.wait(_TURN)

    def step(self) -> None:
        """Makes what is missing. Database errors are logged, and passed by."""
        try:
            with closing(connect(self._dsn, application_name="counterfoil ranges", timeouts=TIMEOUTS)) as connection:
                self._look_after(connection)
        except psycopg.Error as error:
            about = {"projection": self._projection, "error": cause_of(error)}
            logger.warning("ranges of the inbox could not be made ahead", extra=about)

    def _look_after(self, connection: Connection) -> None:
        if made := make_ranges_ahead(connection):
            logger.info("ranges of the inbox made", extra={"projection": self._projection, "tables": made})
        (size,) = connection.execute(BYTES).fetchone() or (0,)
        metrics.INBOX_BYTES.labels(self._projection).set(size)
