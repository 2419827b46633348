"""One run: everything is built, work begins, the plan happens, and at the end everything must be right."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

from tests.chaos.account import check, has_arrived
from tests.chaos.house import House, built, ends_well
from tests.chaos.intruder import intrude
from tests.chaos.plan import Accident, plan
from tests.support.kafka_programs import KafkaPrograms
from tests.support.wait import eventually

ARRIVES = 150.0
"""Seconds within which all is done once nothing goes wrong any more, on a busy machine."""

TURN = 0.1


def run(seed: int, seconds: float, programs: KafkaPrograms, folder: Path, say: Callable[[str], None] = print) -> None:
    """Raises AssertionError when something is wrong at the end; the programs' logs are in the folder then."""
    say(f"chaos: seed {seed}, {seconds:g} s; the same seed makes the same plan")
    with built(seed, programs, folder) as house:
        stop = Event()
        intruder = Thread(target=intrude, args=(house.kafka.bootstrap, seed, stop), name="intruder")
        intruder.start()
        try:
            _suffer(house, plan(seed, seconds), say)
        finally:
            stop.set()
            intruder.join(60.0)
        house.recover()
        house.stop_writing()
        eventually(partial(_tended_and_arrived, house), within=ARRIVES, every=1.0)
        say(check(house))
        for fleet in house.fleets.values():
            for program, _ in fleet.members:
                ends_well(program)


def _suffer(house: House, accidents: list[Accident], say: Callable[[str], None]) -> None:
    started = monotonic()
    passing: list[tuple[float, Callable[[], None]]] = []
    for accident in accidents:
        while True:
            house.tend()
            passing = _over(passing)
            if monotonic() - started >= accident.at:
                break
            sleep(TURN)
        say(f"  {accident.at:6.1f} s  {accident.whom} {accident.what}")
        begun = monotonic()
        if end := house.suffer(accident):
            passing.append((monotonic() + accident.lasts, end))
        started += monotonic() - begun
    for _, end in passing:
        end()


def _over(passing: list[tuple[float, Callable[[], None]]]) -> list[tuple[float, Callable[[], None]]]:
    """Ends those whose time has come; returns the others."""
    now = monotonic()
    for until, end in passing:
        if until <= now:
            end()
    return [each for each in passing if each[0] > now]


def _tended_and_arrived(house: House) -> bool:
    house.tend()
    return has_arrived(house)
