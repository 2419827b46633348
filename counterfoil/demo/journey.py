"""From the first order to the last reservation, watched live, with one relay and one runner killed on the way."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from threading import Event
from time import monotonic

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from counterfoil.demo.house import RELAY, RUNNER, DemoFailed, House
from counterfoil.demo.shop import Shop
from counterfoil.output import err
from infrastructure.postgres import Connection, connect

LOOK_EVERY = 0.5
LONGEST_STANDSTILL = 60.0
"""Seconds without any progress after which the demo gives up."""

STORED = "SELECT count(*) FROM stored_events"
PUBLISHED = "SELECT count(*) FROM stored_events WHERE position <= (SELECT min(position) FROM relay_checkpoints)"
PROCESSED = "SELECT count(*) FROM processed_events"

_PUBLISHED, _PROCESSED = 1, 2
"""Places of these stations among the counts."""

Accident = tuple[int, int, Callable[[House, str], bool]]
"""At which station after how many events it happens, and what, told where it stands then; False when it could not
happen just now."""


def travel(house: House, shop: Shop, stop: Event) -> bool:
    """True when every event has been processed; False when told to stop before. Raises DemoFailed."""
    with ExitStack() as stack:
        name = "counterfoil demo"
        store = stack.enter_context(closing(connect(house.store_dsn, application_name=name)))
        inventory = stack.enter_context(closing(connect(house.inventory_dsn, application_name=name)))
        stack.enter_context(shop.open(house.store_dsn, stop))
        progress = stack.enter_context(_bars())
        stations = [
            _Station(progress, progress.add_task(label, total=shop.events), _counting(connection, statement))
            for label, connection, statement in (
                ("stored   ", store, STORED),
                ("published", store, PUBLISHED),
                ("processed", inventory, PROCESSED),
            )
        ]
        accidents: list[Accident] = [
            (_PUBLISHED, shop.events // 3, _kill_the_leading_relay),
            (_PROCESSED, shop.events // 10, _kill_a_runner),
        ]
        return _watch(house, stations, accidents, shop.events, stop)


class _Station:
    def __init__(self, progress: Progress, task: TaskID, count: Callable[[], int]) -> None:
        self._progress, self._task, self._count = progress, task, count

    def look(self) -> int:
        done = self._count()
        self._progress.update(self._task, completed=done)
        return done


def _watch(
    house: House,
    stations: list[_Station],
    accidents: list[Accident],
    events: int,
    stop: Event,
) -> bool:
    before, moved_at = [0, 0, 0], monotonic()
    while not stop.wait(LOOK_EVERY):
        counts = [station.look() for station in stations]
        if counts != before:
            before, moved_at = counts, monotonic()
            _tell(counts)
        if accidents and _happens(accidents[0], counts, events, house):
            accidents.pop(0)
        if counts[_PROCESSED] == events and not accidents:
            return True
        house.check()
        if monotonic() - moved_at > LONGEST_STANDSTILL:
            raise DemoFailed(f"Nothing has moved for {LONGEST_STANDSTILL:.0f} s", house.log_tails())
    return False


def _happens(accident: Accident, counts: list[int], events: int, house: House) -> bool:
    station, after, what = accident
    return counts[station] >= after and what(house, f"{counts[station]:,} of {events:,} events")


def _tell(counts: list[int]) -> None:
    """For a log file, where no bar can move."""
    if not err.is_terminal:
        err.print("stored {:>7,}   published {:>7,}   processed {:>7,}".format(*counts))


def _kill_the_leading_relay(house: House, published: str) -> bool:
    leader = house.leading_relay()
    if leader is None:
        return False  # between two leaders
    house.kill(leader)
    err.print(f"kill -9 {leader}, which had the lease, at {published} published; another one has to take over")
    house.start(RELAY)
    return True


def _kill_a_runner(house: House, processed: str) -> bool:
    runner = house.a_runner()
    house.kill(runner)
    err.print(f"kill -9 {runner} at {processed} processed; another one has to take over, and a new one joins")
    house.start(RUNNER)
    return True


def _counting(connection: Connection, statement: str) -> Callable[[], int]:
    def count() -> int:
        row = connection.execute(statement.encode()).fetchone()
        return int(row[0]) if row else 0

    return count


def _bars() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=err)
