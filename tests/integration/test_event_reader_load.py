"""Every committed event is read, whatever writers do. A reader without the proof misses some in the same run."""

import random
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress

import psycopg

from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.event_store import PostgresRecorder
from tests.support.stored_events import autocommit, event

SECONDS = 4.0
INSERT_SELECT = """
    INSERT INTO stored_events (originator_id, originator_version, topic, state)
    SELECT gen_random_uuid()::text, 1, 'selected', '{}' FROM generate_series(1, 3)
"""
INSERT = "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (%s, 1, 'inserted', '{}')"
COPY = "COPY stored_events (originator_id, originator_version, topic, state) FROM STDIN"


class TrustingReader(EventReader):
    """Takes what is visible for all there is."""

    def _before_the_first_unsettled_gap(self, after: int, events: Sequence[RecordedEvent]) -> int:
        return len(events)


class Writer:
    """Writes in one way until told to stop: with slow commits, rollbacks, and sessions that are killed."""

    def __init__(self, dsn: str, number: int, stop: threading.Event) -> None:
        self._dsn, self._stop, self._random = dsn, stop, random.Random(number)
        self._write = (self._copy, self._insert_select, self._insert)[number % 3]
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(self._dsn, autocommit=True) as session:
                while not self._stop.is_set():
                    with suppress(ZeroDivisionError), session.transaction():
                        self._write(session)
                        self._end_somehow(session)

    def _end_somehow(self, session: psycopg.Connection) -> None:
        if self._random.random() < 0.2:
            time.sleep(self._random.uniform(0, 0.03))
        if self._random.random() < 0.01:
            session.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        if self._random.random() < 0.1:
            raise ZeroDivisionError

    def _copy(self, session: psycopg.Connection) -> None:
        with session.cursor().copy(COPY) as copy:
            for _ in range(3):
                copy.write_row((str(uuid.uuid4()), 1, "copied", b"{}"))

    def _insert_select(self, session: psycopg.Connection) -> None:
        session.execute(INSERT_SELECT)

    def _insert(self, session: psycopg.Connection) -> None:
        session.execute(INSERT, (str(uuid.uuid4()),))


class Follower:
    """Reads flat out until the writers have ended and nothing is left."""

    def __init__(self, reader: EventReader, writers_ended: threading.Event) -> None:
        self._reader, self._writers_ended = reader, writers_ended
        self.positions: list[int] = []
        self.held = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        after = 0
        while True:
            ended = self._writers_ended.is_set()
            page = self._reader.read(after, 500)
            self.positions += [event.position for event in page.events]
            self.held += not page.settled
            if page.events:
                after = page.events[-1].position
            elif ended and page.settled:
                return
            else:
                time.sleep(0.001)


def test_no_committed_event_is_missed_under_load_and_without_the_proof_some_are(store_dsn: str) -> None:
    stop, writers_ended = threading.Event(), threading.Event()
    recorder = PostgresRecorder(store_dsn, connections=4, patience=5)
    with autocommit(store_dsn) as one, autocommit(store_dsn) as other:
        careful, trusting = Follower(EventReader(one), writers_ended), Follower(TrustingReader(other), writers_ended)
        writers = [Writer(store_dsn, number, stop) for number in range(9)]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            recorder.insert_events([event(str(uuid.uuid4())), event(str(uuid.uuid4()))])
        stop.set()
        for writer in writers:
            writer.thread.join()
        writers_ended.set()
        careful.thread.join(30)
        trusting.thread.join(30)
        committed = [position for (position,) in one.execute("SELECT position FROM stored_events ORDER BY position")]
    recorder.close()

    assert careful.positions == committed
    assert careful.held > 0
    assert committed[-1] > len(committed), "positions were burned"
    assert set(trusting.positions) < set(committed), "else this run shows nothing"
    topics = {"copied", "selected", "inserted", "thing.done"}
    with autocommit(store_dsn) as session:
        assert {topic for (topic,) in session.execute("SELECT DISTINCT topic FROM stored_events")} == topics
