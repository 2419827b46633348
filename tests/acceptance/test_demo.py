"""The first thing a newcomer does: one command, and an order placed here is reserved over there."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import Programs
from tests.support.wait import eventually

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def newcomer(tmp_path: Path) -> Path:
    """A folder of one's own in which `.venv/bin/counterfoil` is what the README says it is."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run(script: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["bash", "-euc", script], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_one_command_shows_orders_reserved_rejected_and_cancelled(newcomer: Path) -> None:
    demo = run(".venv/bin/counterfoil demo", newcomer)
    assert demo.returncode == 0, demo.stderr
    for order, status in (("ord_1", "reserved"), ("ord_2", "rejected"), ("ord_3", "cancelled")):
        assert re.search(rf"{order}\W+{status}", demo.stdout), demo.stdout
    assert re.search(r"pen\W+10\W+2\W", demo.stdout), demo.stdout
    assert "2 missing" in demo.stdout


def test_the_readme_is_short_and_what_it_says_works(newcomer: Path) -> None:
    assert len(README.splitlines()) < 60
    two_commands, stay, look_around = BLOCKS
    assert re.findall(r"^make (\w+)", two_commands, re.MULTILINE) == ["demo", "test"]
    with Programs(newcomer) as programs:
        demo = programs.run(["bash", "-c", f"cd {newcomer} && exec {stay}"])
        demo.wait_for_line("All is up", within=60)
        looked = run(look_around, newcomer)
        assert looked.returncode == 0, looked.stderr
        assert "ord_42: reserved" in looked.stdout
        assert demo.interrupt(within=30) == 0
    assert not (newcomer / ".counterfoil" / "env").exists()


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        demo = programs.counterfoil("demo")
        demo.wait_for_line("waiting for them to arrive", within=60)
        family = [demo.pid, *descendants(demo.pid)]
        assert len(family) > 4, "the demo runs a database, a broker, a relay and a runner"
        demo.send(signal.SIGINT)
        demo.wait(within=30)
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), within=20)


def descendants(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in (line.split() for line in listed.splitlines())}
    return [child for child in parents if child != os.getpid() and pid in ancestors(child, parents)]


def ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    chain = []
    while pid := parents.get(pid, 0):
        chain.append(pid)
    return chain
