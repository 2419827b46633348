"""Statements of a handler that are sent without waiting for the answer to each.

Waiting is most of what a small statement costs: some 250 us each on one machine, against 60 without.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, NoReturn, Self, cast

import psycopg
from psycopg import Connection, Cursor, Pipeline, sql
from psycopg.abc import Params, Query, QueryNoTemplate
from psycopg.errors import PipelineAborted
from psycopg.pq import PipelineStatus
from psycopg.rows import Row

from projections.refused_commands import refused_command

MOST_UNDER_WAY = 32
"""Events whose statements may be under way at once. A batch that is not larger is not pipelined."""

QUICK = 0.1
"""Seconds. When the answers took longer, fewer statements are sent ahead: a wait is for all that is under way, and no
wait on PostgreSQL may be endless."""


class Ahead:
    """The pipeline that statements are sent through, and what it had to refuse."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.refusal: psycopg.NotSupportedError | None = None

    def refuse(self, what: str) -> NoReturn:
        """It is remembered: the handler may swallow it, and would then have done something else than without."""
        self.refusal = self.refusal or psycopg.NotSupportedError(
            f"{what} is not possible where statements are sent ahead: "
            "put what may fail into a `with tx.transaction():`, or do not set `pipelined`"
        )
        raise self.refusal

    def end_if_refused(self) -> None:
        if self.refusal is not None:
            raise self.refusal


class PipelinedCursor(Cursor[Row]):
    """Answers as one without a pipeline would, or refuses.

    Whatever is asked of it waits for the results first (what fetches rows does so by itself). And a cursor that is
    used again waits before that: psycopg would take the answer to its earlier statement for that to the later one.
    """

    def __init__(self, connection: Connection[Any], ahead: Ahead, **options: Any) -> None:
        super().__init__(connection, **options)
        self._ahead = ahead
        self._sent = self._sent_many = False

    def execute(
        self, query: Query, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        self._begin(query)
        self._sent = True
        return super().execute(cast(QueryNoTemplate, query), params, prepare=prepare, binary=binary)

    def executemany(self, query: Query, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        self._begin(query)
        self._sent_many = True
        super().executemany(query, params_seq, returning=returning)

    def copy(self, *_args: Any, **_options: Any) -> NoReturn:
        self._ahead.refuse("COPY")

    def stream(self, *_args: Any, **_options: Any) -> NoReturn:
        self._ahead.refuse("stream()")

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

    def results(self) -> Iterator[Self]:
        self._wait()
        return super().results()

    def set_result(self, index: int) -> Self:
        self._wait()
        return super().set_result(index)

    def _begin(self, query: Query) -> None:
        if command := refused_command(_text(query, self.connection)):
            self._ahead.refuse(f"{command} as a text")
        self._wait()

    def _wait(self) -> None:
        """Until its statements are answered; without a wait when the one result that `execute` brings is there."""
        under_way = self._sent_many or (self._sent and self.pgresult is None)
        if under_way and self.connection.info.pipeline_status is not PipelineStatus.OFF:
            self._ahead.pipeline.sync()
        self._sent = self._sent_many = False


@contextmanager
def pipelined(tx: Connection) -> Iterator[Callable[[], None]]:
    """Within the block, statements are sent without waiting; at its end all of them have succeeded.

    Yields what is to be called after each event: it waits now and then, so that little is ever under way. Raises
    the first error of a statement, at the latest at the end of the block, instead of whatever followed from it; and
    NotSupportedError after an event whose handler did what is not possible here, even if it swallowed that.
    """
    factories = tx.cursor_factory, tx.server_cursor_factory
    with tx.pipeline() as pipeline:
        ahead, pace = Ahead(pipeline), Pace(pipeline)
        tx.cursor_factory = partial(PipelinedCursor, ahead=ahead)  # type: ignore[assignment, arg-type]  # any factory will do
        tx.server_cursor_factory = lambda *_, **__: ahead.refuse("a server-side cursor")  # type: ignore[assignment]

        def after_event() -> None:
            ahead.end_if_refused()
            pace.after_event()

        try:
            yield after_event
            pipeline.sync()
        except Exception as error:
            # An error of an earlier statement, which the handler could not know of yet, comes before its own. To be
            # looked for here: when the block ends with an error, psycopg would only log it, with the values in it.
            earlier = _first_error(pipeline)
            ahead.end_if_refused()  # what failed may have followed from that, and the batch is done again without
            if earlier is not None:
                raise earlier from error
            raise
        finally:
            tx.cursor_factory, tx.server_cursor_factory = factories


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


def _text(query: Query, connection: Connection[Any]) -> str:
    if isinstance(query, str):
        return query
    return query.decode(errors="replace") if isinstance(query, bytes) else sql.as_string(query, connection)
