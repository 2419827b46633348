"""Each stored event has its effect once, together with the position, or nothing happened; none is skipped."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import psycopg
import pytest

from domain.contracts import Contract
from infrastructure.postgres import Connection
from projections import positions
from projections.base import NotYet, Quarantine
from projections.positions import Place
from projections.store_feed import GONE, SET_BACK, Outcome, Step, StoreFeed
from projections.store_health import store_health
from tests.integration.test_store_set_back import lose_the_tail
from tests.support.parcel_counts import OUTBOXES, ParcelCounts, counts, with_counts
from tests.support.parcels import Parcels, parcels_in
from tests.support.stored_events import autocommit, burn
from tests.support.wait import eventually

NEVER = Event()
NAME = ParcelCounts.consumer_name


@pytest.fixture
def dsn(store_dsn: str) -> str:
    return with_counts(store_dsn)


@pytest.fixture
def parcels(dsn: str) -> Iterator[Parcels]:
    with parcels_in(dsn) as parcels:
        yield parcels


@contextmanager
def feed(
    dsn: str, projection: ParcelCounts | None = None, batch_size: int = 500, shard: int = 0, beat_every: float = 3.0
) -> Iterator[StoreFeed]:
    """By hand: it does nothing by itself."""
    projection = projection or ParcelCounts()
    with autocommit(dsn) as connection:
        positions.begin(connection, NAME, 1)
        feed = StoreFeed(projection, OUTBOXES, shard, batch_size, beat_every=beat_every)
        feed.connect(connection)
        yield feed


def run(feed: StoreFeed) -> Step:
    """Until there is nothing more to apply."""
    while (step := feed.step(NEVER)).outcome is Outcome.MOVED:
        pass
    return step


def place(dsn: str) -> Place:
    with autocommit(dsn) as connection:
        (found,) = positions.read(connection, NAME)
        return found


def counted(dsn: str) -> dict[str, int]:
    with autocommit(dsn) as connection:
        return counts(connection)


def faults(dsn: str, version: int = 1) -> tuple[str, ...]:
    return store_health("parcel_counts", dsn, ParcelCounts(version=version)).faults


class Slow:
    """A handler that stays in its first event until it is let go."""

    def __init__(self) -> None:
        self.reached, self.go = Event(), Event()

    def __call__(self, contract: Contract, tx: Connection) -> None:
        self.reached.set()
        assert self.go.wait(30)


def test_it_applies_all_and_passes_what_concerns_others_and_what_never_came(dsn: str, parcels: Parcels) -> None:
    parcels.move_all(["a", "b"], 3)
    parcels.weigh("a")
    burn(dsn, 2)
    last = parcels.move("a")
    with feed(dsn, batch_size=2) as it:
        assert run(it).outcome is Outcome.IDLE
    assert (counted(dsn), place(dsn).position) == ({"a": 4, "b": 3}, last)


def test_of_two_that_apply_the_same_events_one_does_and_the_other_goes_on_behind_it(dsn: str, parcels: Parcels) -> None:
    """As when the lock that lets only one work was lost with its session."""
    parcels.move_all(["a"], 3)
    slow = Slow()
    with feed(dsn, ParcelCounts(slow)) as first, feed(dsn) as second:
        steps: list[Step] = []
        threads = [Thread(target=lambda it=it: steps.append(run(it))) for it in (first, second)]
        threads[0].start()
        assert slow.reached.wait(30)
        threads[1].start()
        with autocommit(dsn) as connection:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            eventually(lambda: connection.execute(waiting).fetchone() == (1,), within=30)
        slow.go.set()
        for thread in threads:
            thread.join(30)
        assert [step.outcome for step in steps] == [Outcome.IDLE] * 2
        parcels.move("a")
        assert second.step(NEVER).outcome is Outcome.MOVED
    assert counted(dsn) == {"a": 4}


def test_an_event_that_cannot_be_mapped_holds_it_with_its_position_and_all_before_it_is_applied(
    dsn: str, parcels: Parcels
) -> None:
    parcels.move_all(["a"], 2)
    unmappable = parcels.move("a", note="!")
    parcels.move("b")
    with feed(dsn) as it:
        step = run(it)
        assert (step.outcome, step.position) == (Outcome.HELD, unmappable - 1)
    assert counted(dsn) == {"a": 2}
    (fault,) = faults(dsn)
    assert fault.startswith(f"held before position {unmappable}: ")


def refusing(contract: Contract, tx: Connection) -> Quarantine | None:
    return Quarantine("step: three is too many") if getattr(contract, "step", 0) == 3 else None


def failing(contract: Contract, tx: Connection) -> None:
    if getattr(contract, "step", 0) == 3:
        raise RuntimeError("a bug")


def overflowing(contract: Contract, tx: Connection) -> None:
    if getattr(contract, "step", 0) == 3:
        tx.execute("SELECT 1 / 0")


def waiting(contract: Contract, tx: Connection) -> NotYet | None:
    return NotYet("its price list is not there") if getattr(contract, "step", 0) == 3 else None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refusing, "step: three is too many"),
        (failing, "its handler failed with RuntimeError"),
        (overflowing, "its handler failed with 22012"),
        (waiting, "its handler waits: its price list is not there"),
    ],
)
def test_an_event_that_its_handler_does_not_take_holds_it_with_its_id_until_other_code_takes_it(
    dsn: str, parcels: Parcels, answer: object, reason: str
) -> None:
    culprit = [parcels.move("a") for _ in range(9)][2]
    with feed(dsn, ParcelCounts(answer)) as it:  # type: ignore[arg-type]
        assert run(it) == Step(Outcome.HELD, culprit - 1, reason=reason)
        assert counted(dsn) == {"a": 2}, "all before it, and nothing of it"
    (fault,) = faults(dsn)
    assert fault.startswith(f"held before position {culprit} (event evt_")
    assert fault.endswith(reason)

    with feed(dsn) as it:
        assert run(it).outcome is Outcome.IDLE
    assert (counted(dsn), faults(dsn)) == ({"a": 9}, ())


def test_trouble_that_no_event_is_at_fault_for_is_raised_and_nothing_has_happened(dsn: str, parcels: Parcels) -> None:
    parcels.move("a")
    with feed(dsn) as it, psycopg.connect(dsn) as other:
        other.execute("DROP TABLE counts")
        other.commit()
        with pytest.raises(psycopg.errors.UndefinedTable):
            it.step(NEVER)
    assert (place(dsn).position, faults(dsn)) == (0, ())


def test_told_to_stop_within_a_batch_it_rolls_back(dsn: str, parcels: Parcels) -> None:
    stop = Event()
    parcels.move_all(["a"], 3)
    with feed(dsn, ParcelCounts(lambda contract, tx: stop.set())) as it:
        assert it.step(stop).outcome is Outcome.STOPPED
    assert (counted(dsn), place(dsn).position) == ({}, 0)


@pytest.mark.parametrize("new", [0, 3, 8], ids=lambda new: f"{new} new events")
def test_a_store_set_back_is_found_whatever_was_stored_since(dsn: str, parcels: Parcels, new: int) -> None:
    parcels.move_all(["a"], 8)
    with feed(dsn) as it:
        run(it)
        lose_the_tail(dsn, 5)
        parcels.move_all(["b"], new)
        assert it.step(NEVER) == Step(Outcome.HELD, 8, reason=SET_BACK)
    assert counted(dsn) == {"a": 8}
    (fault,) = faults(dsn)
    assert "set back" in fault


def test_code_of_another_version_writes_nothing(dsn: str, parcels: Parcels) -> None:
    """The rows are swapped under it, as a rebuild does, after it has read its position."""
    parcels.move("a")
    with feed(dsn) as old, autocommit(dsn) as connection, feed(dsn, ParcelCounts(version=2)) as new:
        run(old)
        assert "version 1" in str(new.step(NEVER).reason)
        with connection.transaction():
            (now,) = positions.lock(connection, NAME)
            positions.replace(connection, NAME, 1, 2, now.position, now.anchor)
        parcels.move("a")
        run(old)
        assert counted(dsn) == {"a": 1}
        assert old.step(NEVER).outcome is Outcome.HELD
        new.step(NEVER)  # it reads its row again
        assert run(new).outcome is Outcome.IDLE
    assert counted(dsn) == {"a": 2}
    assert "this code is of version 1" in faults(dsn)[0]
    assert faults(dsn, version=2) == ()


def test_a_position_that_is_gone_is_an_alarm_and_no_new_beginning(dsn: str, parcels: Parcels) -> None:
    parcels.move("a")
    with feed(dsn) as it, autocommit(dsn) as connection:
        run(it)
        connection.execute("DELETE FROM projection_positions")
        parcels.move("a")
        run(it)
        assert it.step(NEVER).reason == GONE
    assert counted(dsn) == {"a": 1}
    assert faults(dsn) == ("it has never run on this store: start it",)


def test_without_a_row_its_session_stays_in_use_and_finds_the_row_that_is_put_back(dsn: str, parcels: Parcels) -> None:
    position = parcels.move("a")
    with feed(dsn, beat_every=0.0) as it, autocommit(dsn) as connection:
        run(it)
        connection.execute("DELETE FROM projection_positions")
        assert it.step(NEVER).reason == GONE
        positions.replace(connection, NAME, 1, 1, position, None)
        it.keep_alive()
        assert it.position == position
