"""The two lock files: the same versions in production as in the tests, and nothing there that only tests need."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(lock: str) -> set[str]:
    return set(re.findall(r"^([\w.-]+==[\w.]+)", (ROOT / lock).read_text(), re.MULTILINE))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}


def test_production_has_the_versions_that_were_tested() -> None:
    assert pins("requirements-runtime.lock") - pins("requirements.lock") == set()


def test_production_has_all_it_needs_and_nothing_that_only_development_needs() -> None:
    installed = {pin.partition("==")[0] for pin in pins("requirements-runtime.lock")}
    groups = PROJECT["dependency-groups"]
    assert names(PROJECT["project"]["dependencies"]) <= installed
    assert installed & names([each for each in groups["dev"] + groups["embedded"] if isinstance(each, str)]) == set()
