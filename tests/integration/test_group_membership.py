"""Other ways to be a member of a group: under a name that outlives the process, and by the newer protocol."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from time import monotonic

import pytest
from psycopg import Connection

from domain.orders.public_contracts import OrderPlaced
from infrastructure.record import Record
from infrastructure.subscriber import Subscriber
from projections.runner import Runner
from tests.support.group import committed
from tests.support.inventory import connected
from tests.support.kafka import Kafka, MakeTopic
from tests.support.messages import Sender, placed
from tests.support.projecting import running, settings
from tests.support.subscribing import Group, receive, values
from tests.support.tally import CREATE, Tally, tally
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka
MakeGroup = Callable[..., Group]


@pytest.fixture
def group(kafka: Kafka, topics: MakeTopic, unique_name: Callable[[str], str]) -> Iterator[MakeGroup]:
    with ExitStack() as stack:
        yield lambda **settings: Group(
            kafka.bootstrap, unique_name("group"), topics("subscriber", partitions=2), stack, **settings
        )


@pytest.fixture
def database(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


def by_name(orders: Group, name: str) -> Subscriber:
    return orders.member(group_instance_id=name)


def share(first: Subscriber, second: Subscriber, orders: Group) -> tuple[list[Record], list[Record]]:
    """What both have got once each of them has got something; all of it is finished."""
    got: tuple[list[Record], list[Record]] = [], []

    def both_served() -> bool:
        for partition in (0, 1):
            orders.send(b"x", partition=partition)
        for member, records in zip((first, second), got, strict=True):
            new = member.poll(100, 0.1)
            member.finish(new)
            records.extend(new)
        return all(got)

    eventually(both_served, within=40)
    return got


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_named_member_that_comes_back_finds_its_partition_and_nobody_else_was_given_it(
    group: MakeGroup, protocol: str
) -> None:
    orders = group(group_protocol=protocol, session_timeout=45.0)
    staying, leaving = by_name(orders, "staying"), by_name(orders, "leaving")
    _, of_leaving = share(staying, leaving, orders)
    its_partition = of_leaving[-1].partition
    leaving.close()
    orders.send(b"meanwhile", partition=its_partition)
    until = monotonic() + 5.0
    while monotonic() < until:
        assert its_partition not in {record.partition for record in staying.poll(100, 0.1)}
    back = by_name(orders, "leaving")
    found = receive(back, 1, within=30)
    assert found[0].partition == its_partition
    assert b"meanwhile" in values(found + back.poll(100, 1.0))


def test_by_the_newer_protocol_what_was_finished_is_committed_when_a_partition_is_taken_away(group: MakeGroup) -> None:
    orders = group(group_protocol="consumer")
    for partition in (0, 1):
        orders.send(b"1", b"2", partition=partition)
    member = orders.member()
    records = receive(member, 4, within=40)
    member.finish([record for record in records if record.value == b"1"])
    other = orders.member()
    taken: list[Record] = []

    def taken_over() -> bool:
        member.poll(10, 0.1)
        taken.extend(other.poll(10, 0.1))
        return bool(taken)

    eventually(taken_over, within=40)
    assert values(taken) == [b"2"]
    assert orders.committed(taken[0].partition) == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_that_come_and_go_apply_each_event_once_and_in_order(
    kafka: Kafka,
    topics: MakeTopic,
    inventory_dsn: str,
    database: Connection,
    unique_name: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
    protocol: str,
) -> None:
    """They leave once each of them has applied something; what they gave up and what they left is taken over."""
    caplog.set_level("INFO")  # a failure then shows which partitions came and went, and when
    topic, name = topics("orders", partitions=4), unique_name("tally")
    here = settings(kafka.bootstrap, consume_batch_size=20).model_copy(update={"group_protocol": protocol})
    sender, events, at_work = Sender(kafka.bootstrap), list[OrderPlaced](), set[int]()

    def send(many: int) -> None:
        new = [placed(f"ord_{number % 20}") for number in range(many)]
        sender.contracts(topic, *new)
        events.extend(new)

    def runner() -> Runner:
        return Runner(Tally(name, (topic,), lambda *_: at_work.add(get_ident())), inventory_dsn, here)

    def all_have_work(members: int) -> bool:
        send(40)
        return len(at_work) == members

    send(400)
    with running([runner()], within=60):
        eventually(lambda: len(tally(database, name)) >= 100, within=40)
        with running([runner(), runner()], within=60):
            eventually(partial(all_have_work, 3), within=60, every=0.1)
        eventually(partial(_all_committed, kafka.bootstrap, name, topic, len(events)), within=60)
    applied = tally(database, name)
    assert len(applied) == len(events)
    of_key: dict[str, list[str]] = {}
    for event in events:
        of_key.setdefault(event.order_id, []).append(event.event_id)
    order_of = {event.event_id: event.order_id for event in events}
    applied_of_key: dict[str, list[str]] = {}
    for event_id in applied:
        applied_of_key.setdefault(order_of[event_id], []).append(event_id)
    assert applied_of_key == of_key


def _all_committed(bootstrap: str, group: str, topic: str, many: int) -> bool:
    return sum(committed(bootstrap, group, topic, partition) or 0 for partition in range(4)) == many
