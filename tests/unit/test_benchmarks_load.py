"""`make bench` needs nothing that the lock file does not install."""

from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("module", sorted(path.stem for path in BENCHMARKS.glob("[a-z]*.py")))
def test_a_benchmark_finds_all_that_it_imports(module: str) -> None:
    assert import_module(f"tests.benchmarks.{module}")
