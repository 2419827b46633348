"""Appends that come together share a statement, and nothing else: each caller has its own outcome."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent

from infrastructure.event_store import PostgresRecorder
from infrastructure.group_append import SEATS
from tests.support.stored_events import autocommit, event, open_session, proxied, write
from tests.support.wait import eventually

WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
STATEMENTS = "SELECT count(DISTINCT xmin::text) FROM stored_events WHERE originator_id LIKE 'together-%'"
POSITIONS = "SELECT originator_id, position FROM stored_events"


@pytest.fixture
def recorder(store_dsn: str) -> Iterator[PostgresRecorder]:
    with contextlib.closing(PostgresRecorder(store_dsn, connections=8, patience=10)) as recorder:
        yield recorder


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


class Queue:
    """Takes every seat, so that the appends that come meanwhile go together."""

    def __init__(self, recorder: PostgresRecorder, threads: ThreadPoolExecutor) -> None:
        self._recorder, self._threads = recorder, threads
        self._grouping = recorder._appender

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        for _ in range(SEATS):
            assert self._grouping._seats.acquire(timeout=5)
        try:
            yield
        finally:
            for _ in range(SEATS):
                self._grouping._seats.release()
            self._grouping._wake_a_leader()

    def append(self, *events: StoredEvent) -> Future[list[int]]:
        return self._threads.submit(self._recorder.insert_events, events)

    def gathered(self, count: int) -> None:
        """Until so many wait for a seat."""
        eventually(lambda: len(self._grouping._waiting) == count)


@pytest.fixture
def queue(recorder: PostgresRecorder, threads: ThreadPoolExecutor) -> Queue:
    return Queue(recorder, threads)


def test_appends_that_come_together_take_few_statements_and_each_hears_its_own_position(
    queue: Queue, store_dsn: str
) -> None:
    with queue.held():
        appends = {f"together-{number}": queue.append(event(f"together-{number}")) for number in range(20)}
        queue.gathered(20)
    answers = {originator_id: append.result(10) for originator_id, append in appends.items()}
    with autocommit(store_dsn) as session:
        stored = dict(session.execute(POSITIONS).fetchall())
        assert answers == {originator_id: [stored[originator_id]] for originator_id in appends}
        assert session.execute(STATEMENTS).fetchone()[0] <= SEATS  # type: ignore[index]


def test_a_version_conflict_is_told_to_whom_it_concerns_and_to_nobody_else(
    queue: Queue, recorder: PostgresRecorder
) -> None:
    recorder.insert_events([event("taken")])
    with queue.held():
        late = queue.append(event("taken"))
        twins = [queue.append(event("twin")), queue.append(event("twin"))]
        others = [queue.append(event(f"together-{number}")) for number in range(5)]
        queue.gathered(8)
    assert isinstance(late.exception(10), IntegrityError)
    assert sorted(type(twin.exception(10)) is IntegrityError for twin in twins) == [False, True]
    assert all(len(other.result(10)) == 1 for other in others)
    assert len(recorder.select_events("twin")) == 1


def test_an_event_that_no_database_takes_fails_alone(queue: Queue, recorder: PostgresRecorder) -> None:
    with queue.held():
        impossible = queue.append(event("together-\0"))
        refused = queue.append(event("together-old", version=0))
        others = [queue.append(event(f"together-{number}")) for number in range(5)]
        queue.gathered(7)
    assert isinstance(impossible.exception(10), psycopg.DataError)
    assert isinstance(refused.exception(10), psycopg.errors.CheckViolation)
    assert [len(other.result(10)) for other in others] == [1] * 5
    assert all(len(recorder.select_events(f"together-{number}")) == 1 for number in range(5))


def test_callers_that_wait_for_a_foreign_transaction_do_not_keep_the_others_waiting(
    queue: Queue, store_dsn: str
) -> None:
    with open_session(store_dsn) as blocker, autocommit(store_dsn) as watcher:
        write(blocker, "contested")
        contested = [queue.append(event("contested")) for _ in range(2 * SEATS)]
        eventually(lambda: watcher.execute(WAITING).fetchone() == (2 * SEATS,))
        others = [queue.append(event(f"together-{number}")) for number in range(20)]
        done, _ = wait(others, timeout=3)
        assert len(done) == 20, "the lock timeout of a lone append is longer"
        assert not any(append.done() for append in contested)
        blocker.rollback()
    outcomes = [append.exception(10) for append in contested]
    assert sorted(isinstance(outcome, IntegrityError) for outcome in outcomes) == [False] + [True] * (2 * SEATS - 1)


def test_a_group_whose_reply_is_lost_is_stored_once_and_every_caller_hears_success(
    store_dsn: str, threads: ThreadPoolExecutor
) -> None:
    with (
        proxied(store_dsn) as (proxy, through_proxy),
        contextlib.closing(PostgresRecorder(through_proxy, connections=8, patience=10)) as recorder,
    ):
        recorder.insert_events([event("warm-up")])
        queue = Queue(recorder, threads)
        with queue.held():
            appends = [queue.append(event(f"together-{number}")) for number in range(10)]
            queue.gathered(10)
            lost = proxy.lose_reply_to(b"together-3")
        done, _ = wait(appends, timeout=20)
        assert lost.is_set()
        assert len(done) == 10
        positions = [position for append in appends for position in append.result()]
    with autocommit(store_dsn) as session:
        stored = [position for name, position in session.execute(POSITIONS) if name.startswith("together-")]
    assert sorted(stored) == sorted(positions)


def test_several_events_of_one_command_are_stored_together_or_not_at_all(
    queue: Queue, recorder: PostgresRecorder
) -> None:
    recorder.insert_events([event("thing", version=2)])
    with queue.held():
        both = queue.append(event("thing", version=1), event("thing", version=2))
        assert isinstance(both.exception(10), IntegrityError)
    assert [each.originator_version for each in recorder.select_events("thing")] == [2]
