"""A projection is found by name, and a wrong name is told what is missing."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from projections import inventory
from projections.inventory.projection import PROJECTION
from projections.loading import Feed, NoSuchProjection, all_projections, load_projection


def test_the_projection_of_a_folder_is_found_by_the_folders_name() -> None:
    loaded = load_projection("projections.inventory")

    assert (loaded.name, loaded.projection, loaded.migrations) == ("inventory", PROJECTION, inventory.MIGRATIONS)


def test_a_projection_says_what_feeds_it_and_kafka_does_unless_told() -> None:
    by_kafka, by_store = load_projection("projections.inventory"), load_projection("projections.order_summary")

    assert (by_kafka.feed, by_store.feed, by_store.outboxes) == (Feed.KAFKA, Feed.STORE, ("domain.orders",))


@pytest.mark.parametrize(
    ("said", "problem"),
    [({"FEED": "rabbit", "OUTBOX": ("domain.orders",)}, "FEED is none of"), ({"FEED": "store"}, "needs an OUTBOX")],
)
def test_a_feed_that_cannot_be_is_told_so(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, object], problem: str
) -> None:
    package, module = ModuleType("fed"), ModuleType("fed.projection")
    vars(package).update({"MIGRATIONS": inventory.MIGRATIONS, **said})
    vars(module)["PROJECTION"] = PROJECTION
    for each in (package, module):
        monkeypatch.setitem(sys.modules, each.__name__, each)

    with pytest.raises(NoSuchProjection, match=problem):
        load_projection("fed")


def test_all_projections_are_those_folders_that_have_one() -> None:
    assert {"inventory", "order_summary"} <= {loaded.name for loaded in all_projections()}


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", ".x", "x.", "projections..inventory", "projections.inventory ", "projections/inventory", "a\0b"),
        *("nosuch", "projections.nosuch", "projections.nosuch.sub", "projections.inventory.queries", "projections"),
    ],
)
def test_a_wrong_name_is_told_so(name: str) -> None:
    with pytest.raises(NoSuchProjection) as not_found:
        load_projection(name)

    assert not_found.value.name == name


@pytest.mark.parametrize("missing", ["MIGRATIONS", "PROJECTION"])
def test_a_folder_that_lacks_something_is_told_what(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    package, module = ModuleType("incomplete"), ModuleType("incomplete.projection")
    vars(package)["MIGRATIONS"], vars(module)["PROJECTION"] = inventory.MIGRATIONS, PROJECTION
    for each in (package, module):
        vars(each).pop(missing, None)
        monkeypatch.setitem(sys.modules, each.__name__, each)

    with pytest.raises(NoSuchProjection, match=missing):
        load_projection("incomplete")


def test_what_goes_wrong_inside_a_projection_comes_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A library that is not installed is no wrong name."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_projection.py").write_text("import a_library_that_is_not_there")

    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there"):
        load_projection("broken_projection")
