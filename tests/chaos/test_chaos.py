"""Some twenty seconds of it. `make chaos` runs for as long as one likes."""

import os
from pathlib import Path

import pytest

from tests.chaos.plan import KINDS, plan
from tests.chaos.run import run
from tests.support.kafka_programs import KafkaPrograms, find_kafka_programs
from tests.support.missing import skip_unless_ci

SECONDS = 20.0
SEED = int(os.environ.get("SEED", "6"))
"""With 6 every kind happens once in that time."""


def test_the_same_seed_makes_the_same_plan() -> None:
    assert plan(7, 600.0) == plan(7, 600.0) != plan(8, 600.0)


def test_every_kind_of_accident_happens() -> None:
    assert {(each.whom, each.what) for each in plan(6, SECONDS)} == set(KINDS)


@pytest.mark.timeout(420)
def test_whatever_happens_all_is_right_in_the_end(tmp_path: Path) -> None:
    programs = find_kafka_programs()
    if not isinstance(programs, KafkaPrograms):
        skip_unless_ci(f"this needs an Apache Kafka of its own: {programs.reason}")
    run(SEED, SECONDS, programs, tmp_path)
