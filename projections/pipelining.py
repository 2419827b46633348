"""Statements of a handler that are sent without waiting for the answer to each.

Waiting is most of what a small statement costs: some 250 us each on one machine, against 60 without.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import psycopg
from psycopg import Connection, Cursor, Pipeline
from psycopg.errors import PipelineAborted
from psycopg.pq import PipelineStatus
from psycopg.rows import Row

MOST_UNDER_WAY = 32
"""Events whose statements may be under way at once. A batch that is not larger is not pipelined."""

QUICK = 0.1
"""Seconds. When the answers took longer, fewer statements are sent ahead: a wait is for all that is under way, and no
wait on PostgreSQL may be endless."""


class PipelinedCursor(Cursor[Row]):
    """Whatever is asked of it waits for the results first, so that no answer differs from one without a pipeline.

    (What fetches rows does so by itself.)
    """

    pipeline: Pipeline | None = None

    @property
    def rowcount(self) -> int:
        self._wait()
        return super().rowcount

    @property
    def statusmessage(self) -> str | None:
        self._wait()
        return super().statusmessage

    @property
    def description(self) -> list[psycopg.Column] | None:
        self._wait()
        return super().description

    @property
    def rownumber(self) -> int | None:
        self._wait()
        return super().rownumber

    def nextset(self) -> bool | None:
        self._wait()
        return super().nextset()

    def results(self) -> Iterator["PipelinedCursor[Row]"]:
        self._wait()
        return super().results()

    def set_result(self, index: int) -> "PipelinedCursor[Row]":
        self._wait()
        return super().set_result(index)

    def _wait(self) -> None:
        is_open = self.connection.info.pipeline_status is not PipelineStatus.OFF
        if self.pipeline is not None and self.pgresult is None and is_open:
            self.pipeline.sync()


@contextmanager
def pipelined(tx: Connection) -> Iterator[Callable[[], None]]:
    """Within the block, statements are sent without waiting; at its end all of them have succeeded.

    Yields what is to be called after each event: it waits now and then, so that little is ever under way. Raises
    the first error of a statement, at the latest at the end of the block, instead of whatever followed from it.
    """

    def make_cursor(connection: Connection[Any], **options: Any) -> PipelinedCursor[Any]:
        cursor = PipelinedCursor(connection, **options)
        cursor.pipeline = pipeline
        return cursor

    before = tx.cursor_factory
    with tx.pipeline() as pipeline:
        tx.cursor_factory = make_cursor  # type: ignore[assignment]  # psycopg takes any factory
        try:
            yield Pace(pipeline).after_event
            pipeline.sync()
        except Exception as error:
            # An error of an earlier statement, which the handler could not know of yet, comes before its own. To be
            # looked for here: when the block ends with an error, psycopg would only log it, with the values in it.
            if (earlier := _first_error(pipeline)) is not None:
                raise earlier from error
            raise
        finally:
            tx.cursor_factory = before


class Pace:
    """How many events may be under way: twice as many after each quick answer, one after a slow one."""

    def __init__(self, pipeline: Pipeline, quick: float = QUICK) -> None:
        self._pipeline, self._quick = pipeline, quick
        self._most, self._under_way = 1, 0

    def after_event(self) -> None:
        self._under_way += 1
        if self._under_way < self._most:
            return
        started = monotonic()
        self._pipeline.sync()
        self._under_way = 0
        self._most = min(2 * self._most, MOST_UNDER_WAY) if monotonic() - started < self._quick else 1


def _first_error(pipeline: Pipeline) -> psycopg.Error | None:
    """Of what is still under way, if anything else than a consequence. Afterwards nothing is under way."""
    try:
        pipeline.sync()
    except PipelineAborted:
        pass
    except psycopg.Error as error:
        with suppress(psycopg.Error):
            pipeline.sync()  # what it skipped
        return error
    return None
