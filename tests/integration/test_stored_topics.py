"""What a store holds, by topic and version, and whether this code can read it."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import domain
from domain.base import stored_topics
from domain.evolution import why_unreadable
from domain.loading import load_business
from infrastructure.postgres import Connection
from infrastructure.stored_topics import COUNT_TOPICS, StoredTopic, count_topics
from tests.support.releases import releases
from tests.support.stored_events import autocommit, burn

INSERT = "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (%s, 1, %s, %s)"
numbers = itertools.count()


@pytest.fixture
def session(store_dsn: str) -> Iterator[Connection]:
    with autocommit(store_dsn) as session:
        yield session


def store(session: Connection, topic: str, state: bytes, count: int = 1) -> None:
    for _ in range(count):
        session.execute(INSERT, (f"a-{next(numbers)}", topic, state))


def counted(session: Connection, portion: int = 100_000) -> list[StoredTopic]:
    return count_topics(session, lambda at, end: None, portion)


# --- Counting -----------------------------------------------------------------------------------------


def test_an_empty_store_has_no_topics(session: Connection) -> None:
    assert counted(session) == []


@pytest.mark.parametrize("portion", [1, 2, 3, 7, 100])
def test_events_are_counted_by_topic_and_version_however_large_the_portions(
    store_dsn: str, session: Connection, portion: int
) -> None:
    burn(store_dsn, 5)
    store(session, "b", b"{}", 2)
    burn(store_dsn, 5)
    store(session, "a", b'{"class_version":2,"x":1}', 3)
    store(session, "a", b'{"class_version":12}')
    store(session, "a", b'{"x":1}', 4)
    assert counted(session, portion) == [
        StoredTopic("a", 1, 4, 17),
        StoredTopic("a", 2, 3, 13),
        StoredTopic("a", 12, 1, 16),
        StoredTopic("b", 1, 2, 6),
    ]


@pytest.mark.parametrize(
    ("state", "version"),
    [
        (b"", 1),
        (b"{", 1),
        (b"\x00\xff\xfe", 1),
        (b'{"class_version":', 0),
        (b'{"class_version":"2"}', 0),
        (b'{"class_version":-2}', 0),
        (b'{"class_version":\xff\x00}', 0),
        (b'{"class_version":' + b"9" * 100, 10**18 - 1),
        (b'{"class_version":3,"text":"' + "ü".encode() * 10_000 + b'"}', 3),
    ],
    ids=str,
)
def test_no_state_whatever_is_in_it_stops_the_count(session: Connection, state: bytes, version: int) -> None:
    store(session, "t", state)
    assert counted(session) == [StoredTopic("t", version, 1, 1)]


def test_a_leap_of_the_positions_costs_nothing(session: Connection) -> None:
    """As after a restore, when positions are moved far beyond what may have been used."""
    store(session, "t", b"{}")
    session.execute("SELECT setval('stored_events_position_seq', 1000000000000)")
    store(session, "t", b"{}")
    assert counted(session) == [StoredTopic("t", 1, 2, 1)]


def test_progress_goes_from_portion_to_portion_up_to_the_end(session: Connection) -> None:
    store(session, "t", b"{}", 5)
    said: list[tuple[int, int]] = []
    count_topics(session, lambda at, end: said.append((at, end)), portion=2)
    assert said == [(2, 5), (4, 5), (5, 5)]


def test_the_count_can_change_nothing(session: Connection) -> None:
    counted(session)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        store(session, "t", b"{}")


def test_a_portion_is_read_by_position_and_not_by_sorting_the_table(session: Connection) -> None:
    statement = re.sub("%s", "1", COUNT_TOPICS)
    session.execute("SET enable_seqscan = off")
    plan = str(session.execute(f"EXPLAIN {statement}".encode()).fetchall())
    assert "Index Scan using stored_events_position_key" in plan


# --- Whether the code can read it ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "version", "problem"),
    [
        ("note.written", 3, None),
        ("note.written", 2, None),
        ("note.written", 1, "no upcast_v1_v2"),
        ("note.written", 4, "versions up to 3"),
        ("note.written", 0, "not a whole number"),
        ("note.torn", 1, "no class in the code"),
        ("domain.orders.order:Order.Placed", 1, "no class in the code"),
    ],
)
def test_a_topic_or_version_that_the_code_cannot_read_is_named(topic: str, version: int, problem: str | None) -> None:
    with releases() as release:
        release.install(
            """
            class Note(Aggregate, topic="note"):
                class Written(Aggregate.Created):
                    class_version = 3

                    @staticmethod
                    def upcast_v2_v3(state):
                        pass
            """
        )
        answer = why_unreadable(topic, version)
    assert (answer is None) if problem is None else (answer is not None and problem in answer)


def test_all_modules_of_all_folders_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an aggregate that no outbox speaks of: others meet its events all the same."""
    (tmp_path / "payments" / "parts").mkdir(parents=True)
    for folder in ("payments", "payments/parts"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "payments" / "parts" / "refund.py").write_text(
        "from domain.base import Aggregate\n\n"
        "class Refund(Aggregate, topic='refund'):\n    class Asked(Aggregate.Created):\n        pass\n"
    )
    monkeypatch.setattr(domain, "__path__", [*domain.__path__, str(tmp_path)])
    with releases():
        assert load_business() == ("orders", "payments")
        assert "refund.asked" in stored_topics()
