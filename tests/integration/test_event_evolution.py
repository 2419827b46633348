"""Events outlive the code that stored them: what one release has stored, every later one loads, or says why not."""

from collections.abc import Iterator

import pytest

from domain.event_mapper import UnknownTopic, UnreadableEvent
from infrastructure.event_store import store_env
from tests.support.releases import Releases, releases
from tests.support.shop import BASKET, Shop, changed

SECOND = changed(
    "        line: Line\n",
    """        class_version = 2
        line: Line
        by: str

        @staticmethod
        def upcast_v1_v2(state):
            state["by"] = "unknown"
""",
)
THIRD = changed(
    "class_version = 2",
    """class_version = 3

        @staticmethod
        def upcast_v2_v3(state):
            state["by"] = state["by"].upper()
""",
    SECOND,
)


@pytest.fixture
def release() -> Iterator[Releases]:
    with releases() as installed:
        yield installed


@pytest.fixture
def shop(store_dsn: str) -> Iterator[Shop]:
    with Shop(store_env(store_dsn)) as shop:
        yield shop


def facts(shop: Shop) -> tuple[str, list[tuple[str, int]], int]:
    basket = shop.load()
    return basket.customer, [(line.sku, line.quantity) for line in basket.lines], basket.version


@pytest.mark.parametrize("snapshots", [True, False], ids=["with snapshots", "without"])
def test_an_aggregate_is_loaded_and_goes_on_after_its_classes_were_renamed_and_moved(
    shop: Shop, release: Releases, snapshots: bool
) -> None:
    first = BASKET if snapshots else changed("snapshot_every = 5", "")
    shop.basket = release.install(first, module="shop")
    shop.open_and_fill(events=10)
    before = facts(shop)

    moved = first.replace("Basket", "Cart").replace("Filled", "ItemAdded").replace("Line", "Item")
    moved = changed(
        "ItemAdded(Aggregate.Event):", 'ItemAdded(Aggregate.Event):\n        TOPIC = "basket.filled"', moved
    )
    shop.basket = release.install(moved, module="market")
    assert facts(shop) == before
    shop.fill(quantity=7)
    assert facts(shop)[1:] == ([*before[1], ("pen", 7)], 11)
    assert {event.topic for event in shop.recorder.select_events("b-1")} == {"basket.opened", "basket.filled"}


def test_a_topic_that_the_code_has_no_longer_is_an_error_that_names_topic_aggregate_and_version(
    shop: Shop, release: Releases
) -> None:
    """As when a class is renamed and nobody thinks of its stored topic."""
    shop.basket = release.install(BASKET)
    shop.open_and_fill(events=12)
    shop.basket = release.install(BASKET.replace("Filled", "ItemAdded"))
    with pytest.raises(UnknownTopic) as unknown:
        shop.load()
    assert vars(unknown.value) == {"topic": "basket.filled", "originator_id": "b-1", "originator_version": 2}
    for named in ("basket.filled", "b-1", "event 2"):
        assert named in str(unknown.value)


def test_events_of_every_version_are_brought_up_to_date_when_they_are_loaded(shop: Shop, release: Releases) -> None:
    shop.basket = release.install(changed("snapshot_every = 5", ""))
    shop.open_and_fill(events=2)
    shop.basket = release.install(changed("line=Line(", "by='me', line=Line(", SECOND))
    shop.fill()
    shop.basket = release.install(changed("line=Line(", "by='Me', line=Line(", THIRD))
    shop.fill()
    events = [shop.mapper.to_domain_event(event) for event in shop.recorder.select_events("b-1", gt=1)]
    assert [getattr(event, "by", None) for event in events] == ["UNKNOWN", "ME", "Me"]
    assert facts(shop)[2] == 4


def test_an_old_event_without_its_conversion_is_an_error_that_names_the_field(shop: Shop, release: Releases) -> None:
    shop.basket = release.install(BASKET)
    shop.open_and_fill(events=12)
    shop.basket = release.install(changed("        line: Line\n", "        line: Line\n        by: str\n"))
    with pytest.raises(UnreadableEvent, match="by: Field required") as unreadable:
        shop.load()
    assert (unreadable.value.topic, unreadable.value.originator_version) == ("basket.filled", 2)


def test_a_conversion_step_that_is_missing_is_named(shop: Shop, release: Releases) -> None:
    shop.basket = release.install(BASKET)
    shop.open_and_fill(events=2)
    shop.basket = release.install(changed("upcast_v1_v2", "upcast_v1_v3", THIRD))
    with pytest.raises(UnreadableEvent, match="there is no upcast_v1_v2"):
        shop.load()


def test_an_event_of_a_newer_release_is_an_error_that_names_both_versions(shop: Shop, release: Releases) -> None:
    """As after a rollback."""
    shop.basket = release.install(changed("line=Line(", "by='me', line=Line(", SECOND))
    shop.open_and_fill(events=12)
    shop.basket = release.install(BASKET)
    with pytest.raises(UnreadableEvent, match=r"basket\.filled' v2 .* knows versions up to 1"):
        shop.load()


def test_values_come_back_as_what_they_were(shop: Shop, release: Releases) -> None:
    """JSON knows no tuples, no sets, no decimals, no keys but texts."""
    source = """
    from datetime import UTC, date, datetime, timedelta
    from decimal import Decimal
    from enum import Enum
    from typing import NamedTuple

    class Size(Enum):
        LARGE = "L"

    class Place(NamedTuple):
        row: int
        seat: str

    class Ticket(Aggregate, topic="ticket"):
        snapshot_every = 1

        class Bought(Aggregate.Created):
            place: Place
            pair: tuple[int, str]
            sizes: frozenset[Size]
            price: Decimal
            days: dict[int, date]
            until: AwareDatetime
            after: timedelta
            none: int | None

        place: Place
        pair: tuple[int, str]
        sizes: frozenset[Size]
        price: Decimal
        days: dict[int, date]
        until: AwareDatetime
        after: timedelta
        none: int | None

        @classmethod
        def buy(cls):
            return cls._create(
                cls.Bought, id="b-1", place=Place(1, "a"), pair=(1, "b"), sizes=frozenset({Size.LARGE}),
                price=Decimal("1.10"), days={7: date(2026, 1, 1)}, until=datetime(2026, 1, 1, tzinfo=UTC),
                after=timedelta(days=400, microseconds=1), none=None,
            )
    """
    shop.basket = release.install(source)
    bought = shop.basket.buy()
    shop.save(bought)
    kinds = {name: type(value) for name, value in vars(bought).items()}
    for _ in range(2):  # from the event, then from the snapshot
        loaded = shop.load()
        assert loaded == bought
        assert {name: type(value) for name, value in vars(loaded).items()} == kinds
        assert str(loaded.price) == "1.10"
    assert shop.reads[-1] == (0, 1)
    assert shop.snapshot().topic == "ticket"
