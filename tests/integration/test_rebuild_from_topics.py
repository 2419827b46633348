"""Where the store cannot be reached, a projection's tables are made anew from its topics."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from psycopg import Connection

from counterfoil.commands import rebuild as commands
from domain.contracts import Contract
from projections.discarding import discard
from projections.rebuild import confirm, roll_back
from projections.rebuilding.errors import RebuildRefused, RebuildStopped, TablesDiffer
from projections.rebuilding.target import Target
from projections.rebuilding.topic_reader import RecordsGone, TopicReader, TopicsUnreadable
from tests.support.counting_inventory import CountingInventory, counting_inventory, folded, held, once
from tests.support.group import committed, delete_records
from tests.support.inventory import connected, count, everything, fill
from tests.support.kafka import Kafka, MakeTopic, groups_with_offsets_in, grow
from tests.support.messages import Sender, cancelled, placed
from tests.support.projecting import projecting
from tests.support.published import published
from tests.support.rebuilding import NEVER, apply_live, rebuilt, schemas
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka

PLENTY = {"pen": 100_000, "ink": 100_000}
ORDERS = [placed(f"ord_{n}", ("pen", 1 + n % 3), ("ink", 1)) for n in range(40)]
CANCELLED = [cancelled(f"ord_{n}") for n in range(0, 40, 7)]
ALL: list[Contract] = [*ORDERS, *CANCELLED]


@pytest.fixture
def placing(topics: MakeTopic) -> str:
    return topics("placed", partitions=3)


@pytest.fixture
def cancelling(topics: MakeTopic) -> str:
    return topics("cancelled", partitions=2)


@pytest.fixture
def target(
    inventory_dsn: str, kafka: Kafka, unique_name: Callable[[str], str], placing: str, cancelling: str
) -> Target:
    """Without a store."""
    projection = CountingInventory(unique_name("inventory"), placing, cancelling)
    return counting_inventory(projection, inventory_dsn, kafka.bootstrap)


@pytest.fixture
def live(target: Target) -> Iterator[Connection]:
    """With plenty in stock."""
    with connected(target.dsn) as connection:
        fill(connection, PLENTY)
        yield connection


@pytest.fixture
def sender(kafka: Kafka, placing: str, cancelling: str) -> Sender:
    """Has sent all of it, some twice, and what the projection does not read."""
    sender = Sender(kafka.bootstrap)
    sender.send(placing, b'{"eventType":"OrderPraised"}', b"ord_1")
    sender.contracts(placing, *ORDERS, *ORDERS[10:20])
    sender.contracts(cancelling, *CANCELLED[:3], *CANCELLED)
    return sender


def processed(live: Connection) -> int:
    return count(live, "processed_events")


def test_the_tables_are_rebuilt_and_swapped_there_and_back_and_the_live_group_is_left_alone(
    target: Target, live: Connection, sender: Sender, kafka: Kafka, placing: str, cancelling: str
) -> None:
    def offsets() -> list[int | None]:
        places = [(placing, n) for n in range(3)] + [(cancelling, n) for n in range(2)]
        return [committed(kafka.bootstrap, target.name, *place) for place in places]

    with projecting(target.projection, target.dsn, kafka.bootstrap):
        eventually(lambda: processed(live) == len(ALL), within=60)
    at = offsets()
    outcome = rebuilt(target, from_topics=True)
    assert outcome.swapped is not None
    assert outcome.swapped.returnable
    assert held(live) == (folded(ALL, PLENTY), once(ALL))
    assert (offsets(), groups_with_offsets_in(kafka.bootstrap, placing)) == (at, [target.name])

    more: list[Contract] = [placed("ord_99", ("pen", 5)), placed("ord_98", ("ink", 1))]
    sender.contracts(placing, *ORDERS[:5], *more)  # a relay that was rewound
    apply_live(target, live, more)
    for _ in range(2):
        assert roll_back(target, NEVER, 0.5) is not None
        assert held(live) == (folded([*ALL, *more], PLENTY), once([*ALL, *more]))
        assert apply_live(target, live, [*ALL, *more]) == 0
    confirm(target)
    assert schemas(live) == set()


def test_what_the_rebuild_had_first_is_known_when_the_live_runner_comes_to_it(
    target: Target, live: Connection, sender: Sender, kafka: Kafka
) -> None:
    apply_live(target, live, ALL[:10])
    outcome = rebuilt(target, from_topics=True, accept_differences=True)
    assert outcome.swapped is not None
    assert not outcome.swapped.returnable
    assert processed(live) == len(ALL)
    with projecting(target.projection, target.dsn, kafka.bootstrap):
        sender.contracts(target.projection.topics[1], last := placed("ord_last", ("pen", 1)))
        eventually(lambda: processed(live) == len(ALL) + 1, within=60)
    assert held(live) == (folded([*ALL, last], PLENTY), once([*ALL, last]))


def test_first_records_that_are_gone_are_told_with_numbers_and_need_a_yes(
    target: Target, live: Connection, sender: Sender, kafka: Kafka, cancelling: str
) -> None:
    apply_live(target, live, ALL)
    first = next(each for each in published(kafka.bootstrap, cancelling) if each.offset == 0)
    delete_records(kafka.bootstrap, cancelling, before=1, partition=first.partition)
    told = rf"the first 1 records of its topics are gone \({cancelling}/{first.partition} begins at offset 1\)"
    with pytest.raises(RebuildRefused, match=told):
        rebuilt(target, from_topics=True)
    assert schemas(live) == set()
    assert rebuilt(target, from_topics=True, accept_missing=True).swapped is not None
    assert held(live) == (folded(ALL, PLENTY), once(ALL))  # it was there twice


def test_there_is_no_way_back_to_tables_that_hold_what_the_topics_have_lost(
    target: Target, live: Connection, sender: Sender
) -> None:
    """It may be published again, and nobody would know it."""
    lost = placed("ord_lost", ("pen", 1))
    apply_live(target, live, [*ALL, lost])
    with pytest.raises(TablesDiffer, match=rf"1 events .* are not in the topics \({lost.event_id}\)"):
        rebuilt(target, from_topics=True)
    swapped = rebuilt(target, from_topics=True, accept_differences=True).swapped
    assert swapped is not None
    assert not swapped.returnable
    assert held(live) == (folded(ALL, PLENTY), once(ALL))


def test_a_record_that_cannot_be_read_stops_it_by_its_place_until_somebody_discards_it(
    target: Target, live: Connection, sender: Sender, kafka: Kafka, placing: str
) -> None:
    sender.send(placing, b"poison", b"ord_x", partition=1)
    sender.flush()
    with projecting(target.projection, target.dsn, kafka.bootstrap):
        eventually(lambda: processed(live) == len(ALL), within=60)
        eventually(lambda: count(live, "quarantined_events") == 1, within=60)
    before = everything(live)
    entry, offset = live.execute('SELECT id, "offset" FROM quarantined_events').fetchone() or (0, 0)
    with pytest.raises(RebuildStopped, match=rf"at offset {offset} of {placing}/1: it cannot be read .value: not JSON"):
        rebuilt(target, from_topics=True)
    assert everything(live) == before
    assert discard(live, target.name, entry, "nobody knows what it was", "a person")
    assert rebuilt(target, from_topics=True).swapped is not None
    assert held(live) == (folded(ALL, PLENTY), once(ALL))


def test_records_that_are_deleted_while_it_is_interrupted_are_not_passed_over(
    target: Target, live: Connection, sender: Sender, kafka: Kafka, placing: str
) -> None:
    apply_live(target, live, ALL)
    rebuilt(target, from_topics=True, swap=False)
    for _ in range(3):
        sender.send(placing, placed("ord_new", ("pen", 1)).to_bytes(), b"ord_new", partition=0)
    sender.flush()
    (end,) = live.execute("SELECT position FROM rebuild_workers WHERE worker = 2").fetchone() or (0,)
    delete_records(kafka.bootstrap, placing, before=end + 2)
    with pytest.raises(RecordsGone, match=f"{placing}/0 from offset {end} on are gone"):
        rebuilt(target, from_topics=True)


def test_what_it_was_begun_from_is_gone_on_with(
    target: Target, live: Connection, sender: Sender, kafka: Kafka, placing: str, store_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    apply_live(target, live, ALL)
    with pytest.raises(RebuildRefused, match="no event store database is given"):
        rebuilt(target)
    rebuilt(target, from_topics=True, swap=False)
    with pytest.raises(RebuildRefused, match="it was begun from its topics"):
        rebuilt(replace(target, store_dsn=store_dsn))
    monkeypatch.setattr(commands, "_target", lambda _module: target)
    assert (commands._status("it") or ())[4:6] == (60, 60)
    grow(kafka.bootstrap, placing, 4)
    with pytest.raises(RebuildRefused, match="other partitions than when the rebuild began"):
        rebuilt(target, from_topics=True)
    assert (commands._status("it") or ())[4:6] == (None, None)


def test_a_compacted_topic_is_rebuilt_from_only_with_a_yes(
    inventory_dsn: str, kafka: Kafka, unique_name: Callable[[str], str], topics: MakeTopic, cancelling: str
) -> None:
    compacted = topics("placed", config={"cleanup.policy": "compact,delete"})
    projection = CountingInventory(unique_name("inventory"), compacted, cancelling)
    target = counting_inventory(projection, inventory_dsn, kafka.bootstrap)
    Sender(kafka.bootstrap).contracts(compacted, *ORDERS)
    with connected(inventory_dsn) as live:
        fill(live, PLENTY)
        apply_live(target, live, ORDERS)
        with pytest.raises(RebuildRefused, match=f"{compacted} is compacted.*--accept-missing"):
            rebuilt(target, from_topics=True)
        assert schemas(live) == set()
        assert rebuilt(target, from_topics=True, accept_missing=True).swapped is not None


def test_kafka_that_is_away_behind_the_fence_is_tried_again(
    target: Target, live: Connection, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers go on meanwhile."""
    asked: list[float] = []
    really = TopicReader.has_changed

    def away_at_first(self: TopicReader, until: float) -> bool:
        asked.append(until)
        if len(asked) < 3:
            raise TopicsUnreadable([], "_TIMED_OUT")
        return really(self, until)

    monkeypatch.setattr(TopicReader, "has_changed", away_at_first)
    apply_live(target, live, ALL)
    with pytest.raises(TopicsUnreadable):
        rebuilt(target, from_topics=True, patience=0.0)
    assert rebuilt(target, from_topics=True, patience=30.0).swapped is not None
    assert held(live) == (folded(ALL, PLENTY), once(ALL))
    assert len(asked) == 3


def test_the_way_back_ends_with_the_records_that_came_after_the_swap(
    target: Target, live: Connection, sender: Sender, kafka: Kafka, placing: str
) -> None:
    apply_live(target, live, ALL)
    assert rebuilt(target, from_topics=True).swapped is not None
    (end,) = live.execute("SELECT position FROM rebuild_workers WHERE worker = 2").fetchone() or (0,)
    for _ in range(2):
        sender.send(placing, placed("ord_new", ("pen", 1)).to_bytes(), b"ord_new", partition=0)
    sender.flush()
    delete_records(kafka.bootstrap, placing, before=end + 1)
    with pytest.raises(RebuildRefused, match=f"gone from {placing}/0, from offset {end} on.*`rebuild confirm`"):
        roll_back(target, NEVER, 0.5)
    confirm(target)
    assert schemas(live) == set()
