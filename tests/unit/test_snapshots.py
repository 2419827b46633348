"""Which snapshots are trusted, and which states are kept at all."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from domain.aggregate_state import from_state, to_state
from domain.application import Application
from domain.base import Aggregate
from domain.event_mapper import UnreadableEvent
from domain.snapshots import Outcome
from tests.support.releases import Releases, releases
from tests.support.shop import BASKET, Shop, changed


@pytest.fixture
def release() -> Iterator[Releases]:
    with releases() as installed:
        yield installed


@pytest.fixture
def shop(release: Releases) -> Iterator[Shop]:
    with Shop() as shop:
        shop.basket = release.install(BASKET)
        yield shop


# --- Stale --------------------------------------------------------------------------------------------


RELEASES = {
    "its snapshot version was raised": changed("snapshot_every = 5", "snapshot_every = 5\n    snapshot_version = 2"),
    "a field was added": changed(
        "    pieces: int = field(default=0, init=False)",
        "    pieces: int = field(default=0, init=False)\n    note: str = field(default='none', init=False)",
    ),
    "a field got another type": changed("pieces: int = field(default=0", "pieces: float = field(default=0.0"),
    "a field begins with another value": changed("pieces: int = field(default=0", "pieces: int = field(default=100"),
    "a field begins with another object": changed('default=Line(sku="pen"', 'default=Line(sku="ink"'),
    "a value in a field got a field": changed("    quantity: int\n", "    quantity: int\n    unit: str = 'piece'\n"),
    "a rule was changed": changed("+= min(", "-= min("),
    "a constant in a rule was changed": changed("1000", "3"),
    "an event got a new version": changed(
        "    class Filled(Aggregate.Event):\n        line: Line\n",
        "    class Filled(Aggregate.Event):\n        class_version = 2\n        line: Line\n"
        "\n        @staticmethod\n        def upcast_v1_v2(state):\n            state['line']['quantity'] += 1\n",
    ),
}


@pytest.mark.parametrize("new", RELEASES.values(), ids=RELEASES)
def test_a_snapshot_made_by_other_code_is_dropped_and_made_anew(shop: Shop, release: Releases, new: str) -> None:
    """Though nobody thought of raising the version."""
    shop.open_and_fill(events=12)
    shop.basket = release.install(changed("snapshot_every = 5", "snapshot_every = 50", new))
    loaded = shop.load()
    assert loaded == shop.replayed()
    assert (shop.counted(Outcome.STALE), shop.counted(Outcome.TAKEN)) == (1, 3)
    assert shop.snapshot().originator_version == 12
    shop.reads.clear()
    assert shop.load() == loaded
    assert shop.reads == [(11, 1)]


def test_a_snapshot_never_hides_that_an_event_can_no_longer_be_read(shop: Shop, release: Releases) -> None:
    shop.open_and_fill(events=10)
    shop.load()
    shop.basket = release.install(changed("        line: Line\n", "        line: Line\n        by: str\n"))
    with pytest.raises(UnreadableEvent, match="by: Field required"):
        shop.load()


@pytest.mark.parametrize(
    "same",
    [
        BASKET + '\n"""Other words."""\n',
        changed("        def apply(self", "        # a remark\n\n        def apply(self"),
        changed("snapshot_every = 5", "snapshot_every = 3"),
        changed("class Line(Command):", 'class Line(Command):\n    """In other words."""'),
    ],
    ids=["other words", "a remark", "more often", "a docstring of a value"],
)
def test_a_release_that_changes_no_state_keeps_the_snapshots(shop: Shop, release: Releases, same: str) -> None:
    shop.open_and_fill(events=12)
    shop.basket = release.install(same)
    shop.load()
    assert shop.counted(Outcome.STALE) == 0


@pytest.mark.parametrize("error", ["ValueError", "KeyError"])
def test_a_snapshot_that_the_types_refuse_today_is_dropped(shop: Shop, release: Releases, error: str) -> None:
    """Made by the same classes, but a validator outside of them has changed."""
    checked = changed("pieces: int", "pieces: Annotated[int, AfterValidator(check)]")
    shop.basket = release.install("def check(pieces):\n    return pieces\n" + checked)
    shop.open_and_fill(events=12)
    shop.basket = release.install(f"def check(pieces):\n    raise {error}(pieces)\n" + checked)
    assert shop.load() == shop.replayed()
    assert shop.counted(Outcome.STALE) == 0
    assert (shop.counted(Outcome.UNREADABLE), shop.counted(Outcome.IMPOSSIBLE)) == (1, 1)


def test_a_dropped_snapshot_is_warned_about_once_and_counted_each_time(
    shop: Shop, release: Releases, caplog: pytest.LogCaptureFixture
) -> None:
    for basket_id in ("b-1", "b-2", "b-3"):
        shop.open_and_fill(12, basket_id)
    shop.basket = release.install(RELEASES["a field was added"])
    with caplog.at_level(logging.WARNING):
        for basket_id in ("b-1", "b-2", "b-3"):
            shop.load(basket_id)
    assert shop.counted(Outcome.STALE) == 3
    (warning,) = caplog.records
    assert (vars(warning)["aggregate"], vars(warning)["outcome"]) == ("basket", "stale")
    assert "cus_1" not in str(vars(warning))


# --- What can be kept ---


STATES = {
    "an attribute has no annotation": changed(
        "basket.pieces += min(self.line.quantity, 1000)", "basket.last = self.line"
    ),
    "a field holds another type than annotated": changed(
        "basket.pieces += min(self.line.quantity, 1000)", "basket.pieces = 'many'"
    ),
    "a field holds what is not equal to itself": changed(
        "basket.pieces += min(self.line.quantity, 1000)", "basket.pieces = float('nan')"
    ).replace("pieces: int", "pieces: float"),
    "a type is none that pydantic knows": changed("class Line", "class Opaque:\n    pass\n\nclass Line").replace(
        "    pieces: int", "    opaque: Opaque = field(default_factory=Opaque, init=False)\n    pieces: int"
    ),
    "a value is more than its annotation says": changed(
        "class Basket", "class Wide(Line):\n    more: int = 0\n\nclass Basket"
    ).replace("(*basket.lines, self.line)", "(*basket.lines, Wide(sku='w', quantity=1, more=2))"),
}


@pytest.mark.parametrize("source", STATES.values(), ids=STATES)
def test_a_state_that_does_not_come_back_the_same_is_never_kept(
    shop: Shop, release: Releases, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop.basket = release.install(source)
    with caplog.at_level(logging.WARNING):
        shop.open_and_fill(events=12)
    assert shop.load().version == 12
    assert shop.store.get("b-1") is None
    assert shop.counted(Outcome.IMPOSSIBLE) > 1
    (warning,) = caplog.records
    assert vars(warning)["problem"]


@pytest.mark.parametrize(
    ("was", "becomes"),
    [(b'"pieces":3', b'"pieces":"3"'), (b'"pieces":3', b'"pieces":3.0'), (b'"pieces":3', b'"other":3'), (b"{", b"[")],
    ids=str,
)
def test_a_state_is_read_back_strictly(shop: Shop, was: bytes, becomes: bytes) -> None:
    shop.open_and_fill(events=3)
    state = to_state(shop.load())
    assert from_state(shop.basket, "b-1", 3, state) == shop.load()
    assert was in state
    with pytest.raises(ValidationError):
        from_state(shop.basket, "b-1", 3, state.replace(was, becomes, 1))


@pytest.mark.parametrize("setting", ["is_snapshotting_enabled", "snapshotting_intervals"])
def test_the_librarys_own_snapshots_are_refused_at_start(setting: str) -> None:
    application = type("Snapping", (Application,), {setting: {Aggregate: 1}})
    with pytest.raises(ValueError, match="snapshot_every"):
        application()


# --- The fingerprint of the code ---


FINGERPRINT = """
import sys
from domain.fingerprint import fingerprint
from tests.support.releases import Releases
from tests.support.shop import changed
rule = "+= self.line.sku in {'pen', 'ink', 'pad', 'cup'}"
print(fingerprint(Releases().install(changed("+= min(self.line.quantity, 1000)", rule))))
"""


def test_all_processes_that_run_the_same_code_agree_on_its_fingerprint() -> None:
    """Whatever the seed of their hashes, which decides in what order a set is written."""
    fingerprints = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(fingerprints) == 1
    assert len(fingerprints.pop().strip()) == 32
