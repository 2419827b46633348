"""The first thing a newcomer does: one command, and an order placed here is reserved over there."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event

import psycopg
import pytest

from counterfoil.demo.account import Account, draw_up
from counterfoil.demo.house import open_house
from counterfoil.demo.journey import travel
from counterfoil.demo.shop import Shop
from tests.support.processes import Programs, is_gone
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


def test_one_command_places_orders_kills_processes_and_balances_the_account(newcomer: Path) -> None:
    demo = run(".venv/bin/counterfoil demo --orders 1000", newcomer)
    assert demo.returncode == 0, demo.stderr
    assert len(re.findall("kill -9 (relay|project)-", demo.stderr)) == 2, demo.stderr
    account = dict(re.findall(r"│ ([a-z, ]+?) +│ ([\w,]+) +│", demo.stdout))
    assert account["stored"] == account["published"] == account["processed"] == "1,100", demo.stdout
    assert (account["missing"], account["unknown"], account["in quarantine"]) == ("0", "0", "0")
    assert account["stock against a recount"] == "equal"
    assert account["orders cancelled"] == "100"
    assert int(account["orders rejected"]) > 0


def account(**changes: object) -> Account:
    ids = frozenset({"evt_1", "evt_2"})
    whole = Account(ids, ids, ids, messages=3, quarantined=0, statuses=Counter(), stock_differs=())
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_an_account_balances_only_when_nothing_is_missing_unknown_parked_or_miscounted() -> None:
    assert account().balanced
    for wrong in (
        {"published": frozenset({"evt_1"})},
        {"processed": frozenset({"evt_1"})},
        {"stored": frozenset({"evt_1"})},
        {"quarantined": 1},
        {"stock_differs": ("pen",)},
    ):
        assert not account(**wrong).balanced, wrong


def test_a_lost_event_and_a_wrong_stock_are_found_in_the_account(tmp_path: Path) -> None:
    with open_house() as house:
        shop = Shop(20)
        shop.fill_stock(house.inventory_dsn)
        assert travel(house, shop, Event())
        assert draw_up(house).balanced
        with psycopg.connect(house.inventory_dsn) as inventory:
            inventory.execute("UPDATE stock SET reserved = reserved + 1 WHERE sku = 'sku-07'")
            inventory.execute(
                "DELETE FROM processed_events WHERE event_id = (SELECT max(event_id) FROM processed_events)"
            )
        wrong = draw_up(house)
    assert (wrong.missing, wrong.stock_differs, wrong.balanced) == (1, ("sku-07",), False)


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
        demo = programs.counterfoil("demo", "--orders", "100000")
        demo.wait_for_line(r"stored +[1-9]", within=60)
        family = [demo.pid, *descendants(demo.pid)]
        assert len(family) > 6, "the demo runs a database, a broker, relays and runners"
        demo.send(signal.SIGINT)
        assert demo.wait(within=30) == 1, "stopped before the account was drawn up"
        eventually(lambda: all(map(is_gone, family)), within=20)


def descendants(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in (line.split() for line in listed.splitlines())}
    return [child for child in parents if child != os.getpid() and pid in ancestors(child, parents)]


def ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    chain = []
    while pid := parents.get(pid, 0):
        chain.append(pid)
    return chain
