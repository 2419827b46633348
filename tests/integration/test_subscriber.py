"""What the subscriber brings, and which offsets it commits."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event
from time import monotonic, sleep

import pytest
from confluent_kafka import Producer, TopicPartition
from prometheus_client import REGISTRY

from infrastructure.record import Record
from infrastructure.settings import Settings
from infrastructure.subscriber import Subscriber, SubscriberFailed
from tests.support.group import commit, delete_records
from tests.support.kafka import Kafka, MakeTopic, create_topic, delete_topic
from tests.support.messages import Sender
from tests.support.raw_kafka import send_with_header_name
from tests.support.subscribing import Group, receive, values
from tests.support.wait import eventually

pytestmark = pytest.mark.kafka
NOT_STOPPED = Event()
SHORT = {"session_timeout_ms": 6_000, "max_poll_interval_ms": 6_000}
"""A member that does not poll for 6 s is taken for dead. The broker allows no less."""


MakeGroup = Callable[..., Group]


@pytest.fixture
def group(kafka: Kafka, topics: MakeTopic, unique_name: Callable[[str], str]) -> Iterator[MakeGroup]:
    with ExitStack() as stack:
        yield lambda partitions=1: Group(
            kafka.bootstrap, unique_name("group"), topics("subscriber", partitions=partitions), stack
        )


def test_a_record_arrives_as_it_was_sent(group: MakeGroup) -> None:
    orders = group()
    headers = (("b", b"\xff\x00"), ("a", None), ("b", b""))
    orders.sender.send(orders.topic, b"\x00value", b"\xa2", headers=headers)
    orders.sender.send(orders.topic, None, None)
    orders.sender.send(orders.topic, b"", b"")
    orders.sender.flush()
    full, none, empty = receive(orders.member(), 3)
    assert full[:6] == (orders.topic, 0, 0, b"\xa2", b"\x00value", headers)
    assert full.timestamp_ms is not None
    assert (none.key, none.value, empty.key, empty.value) == (None, None, b"", b"")


def test_headers_that_the_client_cannot_read_do_not_cost_the_record(group: MakeGroup) -> None:
    """Also not after many good ones, when the interpreter has found shortcuts for what it does often."""
    orders = group()
    for number in range(200):
        orders.sender.send(orders.topic, b"%d" % number, headers=(("name", b"x"),))
    orders.sender.flush()
    send_with_header_name(orders.bootstrap, orders.topic, b"bad", b"\xff\xfe")
    send_with_header_name(orders.bootstrap, orders.topic, b"good", b"name")
    *_, bad, good = receive(orders.member(), 202)
    assert (bad.value, len(bad.headers)) == (b"bad", 0)
    assert (good.value, good.headers) == (b"good", (("name", b"x"),))


def test_a_group_without_offsets_begins_with_the_first_record(group: MakeGroup) -> None:
    orders = group()
    orders.send(b"1", b"2")
    assert values(receive(orders.member(), 2)) == [b"1", b"2"]


def test_a_record_does_not_wait_for_a_batch_to_fill(group: MakeGroup) -> None:
    orders = group()
    orders.send(b"warm up")
    member = orders.member()
    receive(member, 1)
    orders.send(b"1")
    started = monotonic()
    assert values(member.poll(500, 10.0)) == [b"1"]
    assert monotonic() - started < 2.0


def test_what_was_not_finished_is_delivered_again(group: MakeGroup) -> None:
    orders = group()
    orders.send(b"1", b"2", b"3")
    with orders.member() as first:
        records = receive(first, 3)
        first.finish(records[:1])
    assert orders.committed() == 1
    assert values(receive(orders.member(), 2)) == [b"2", b"3"]


def test_the_committed_offset_never_passes_an_unfinished_record(group: MakeGroup) -> None:
    orders = group()
    orders.send(b"1", b"2", b"3")
    member = orders.member()
    one, two, three = receive(member, 3)
    member.finish([one, three])
    assert member.commit()
    assert orders.committed() == 1
    member.finish([two])
    assert member.commit()
    assert orders.committed() == 3


def test_after_a_rewind_all_that_is_unfinished_comes_again_in_order(group: MakeGroup) -> None:
    orders = group()
    orders.send(b"1", b"2", b"3", b"4")
    member = orders.member()
    records = receive(member, 3)
    member.finish([records[1]])
    member.rewind()
    assert values(receive(member, 3)) == [b"1", b"3", b"4"]


def test_a_paused_member_gets_no_records_and_keeps_its_partitions(group: MakeGroup) -> None:
    """It idles for longer than a member may be silent, while another one waits to take over."""
    orders = group()
    orders.send(b"1")
    member = orders.member(**SHORT)
    [first] = receive(member, 1)
    other = orders.member(**SHORT)
    until = monotonic() + 9.0
    while monotonic() < until:
        orders.send(b"later")
        member.idle(NOT_STOPPED, 0.5)
        assert other.poll(1, 0.1) == []
    member.finish([first])
    assert member.commit()
    assert set(values(receive(member, 5))) == {b"later"}


def test_idling_is_over_at_once_when_told_to_stop(group: MakeGroup) -> None:
    member, stop = group().member(), Event()
    stop.set()
    started = monotonic()
    member.idle(stop, 60.0)
    assert monotonic() - started < 2.0


@pytest.mark.parametrize("stands_still_by", ["holding its partitions", "idling"])
def test_a_partition_that_was_taken_away_while_it_stood_still_brings_records_when_it_comes_back(
    group: MakeGroup, stands_still_by: str
) -> None:
    orders = group(partitions=2)
    for partition in (0, 1):
        orders.send(b"1", partition=partition)
    member = orders.member()
    receive(member, 2)
    if stands_still_by != "idling":
        member.hold([(orders.topic, 0), (orders.topic, 1)], 600.0)
    other = orders.member()
    taken: list[Record] = []

    def is_taken_away() -> bool:
        member.idle(NOT_STOPPED, 0.1) if stands_still_by == "idling" else member.poll(10, 0.1)
        taken.extend(other.poll(10, 0.1))
        return bool(taken)

    eventually(is_taken_away, within=30)
    place = taken[0].partition
    other.close()
    orders.send(b"2", partition=place)

    def came_back() -> bool:
        return any((each.partition, each.value) == (place, b"2") for each in member.poll(10, 0.1))

    eventually(came_back, within=30)


def test_what_was_finished_is_committed_when_a_partition_is_taken_away(group: MakeGroup) -> None:
    orders = group(partitions=2)
    for partition in (0, 1):
        orders.send(b"1", b"2", partition=partition)
    member = orders.member()
    records = receive(member, 4)
    member.finish([record for record in records if record.value == b"1"])
    other = orders.member()
    taken: list[Record] = []

    def both_served() -> bool:
        member.poll(10, 0.1)
        taken.extend(other.poll(10, 0.1))
        return bool(taken)

    eventually(both_served, within=20)
    assert values(taken) == [b"2"]
    assert orders.committed(taken[0].partition) == 1
    assert orders.committed(1 - taken[0].partition) is None


def test_nothing_is_committed_for_a_partition_that_was_lost(group: MakeGroup) -> None:
    """A member is silent for too long. Others come further; then it takes part again, with one partition of two."""
    orders = group(partitions=2)
    orders.send(b"1", partition=0)
    orders.send(b"1", partition=1)
    silent = orders.member(**SHORT)
    old = receive(silent, 2)
    successor = orders.member(**SHORT)
    orders.send(b"2", b"3", partition=0)
    orders.send(b"2", b"3", partition=1)
    successor.finish(receive(successor, 6))
    assert successor.commit()
    silent.finish(old)
    assert not silent.commit()
    back: list[Record] = []

    def takes_part_again() -> bool:
        successor.poll(10, 0.1)
        orders.send(b"later", partition=0)
        orders.send(b"later", partition=1)
        back.extend(silent.poll(10, 0.1))
        return bool(back)

    eventually(takes_part_again, within=20)
    silent.finish(old)
    silent.commit()
    assert orders.committed(1 - back[0].partition) == 3


def test_a_member_that_was_taken_for_dead_takes_part_again(group: MakeGroup) -> None:
    orders = group()
    orders.send(b"1")
    member = orders.member(**SHORT)
    receive(member, 1)
    sleep(7.5)
    assert values(receive(member, 1)) == [b"1"]


def test_who_leaves_is_replaced_at_once(group: MakeGroup) -> None:
    orders = group()
    orders.send(b"1")
    leaving = orders.member(session_timeout_ms=45_000)
    receive(leaving, 1)
    leaving.close()
    assert values(receive(orders.member(), 1, within=10.0)) == [b"1"]


def test_a_missing_topic_is_waited_for(
    kafka: Kafka, unique_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = unique_name("missing"), unique_name("group")
    with Subscriber(Settings(kafka_bootstrap_servers=kafka.bootstrap), group, [topic]) as subscriber:
        eventually(lambda: subscriber.poll(1, 0.1) == [] and "trouble with Kafka" in caplog.text)
        create_topic(kafka.bootstrap, topic)
        sender = Sender(kafka.bootstrap)
        sender.send(topic, b"1")
        sender.flush()
        assert values(receive(subscriber, 1)) == [b"1"]
    delete_topic(kafka.bootstrap, topic)


def test_a_client_that_has_given_up_says_so(group: MakeGroup) -> None:
    """Two members with one static name: the first is fenced off for good."""
    orders = group()
    orders.send(b"1")
    fenced = orders.member(group_instance_id="one")
    receive(fenced, 1)
    newer = orders.member(group_instance_id="one")

    def gave_up() -> bool:
        newer.poll(1, 0.1)
        try:
            fenced.poll(1, 0.1)
        except SubscriberFailed:
            return True
        return False

    eventually(gave_up, within=20)


def test_records_deleted_before_they_were_read_are_reported(group: MakeGroup, caplog: pytest.LogCaptureFixture) -> None:
    orders = group()
    orders.send(*[b"%d" % n for n in range(10)])
    with orders.member() as member:
        member.finish(receive(member, 3)[:3])
    delete_records(orders.bootstrap, orders.topic, before=7)
    assert values(receive(orders.member(), 3)) == [b"7", b"8", b"9"]
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    told = vars(record)
    assert (told["partition"], told["first_missing"], told["last_missing"]) == (0, 3, 6)


def test_no_record_is_reported_missing_where_none_is(group: MakeGroup, caplog: pytest.LogCaptureFixture) -> None:
    orders = group()
    orders.send(b"1", b"2", b"3")
    with orders.member() as member:
        member.finish(receive(member, 3)[:1])
    receive(orders.member(), 2)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_where_a_topic_was_made_anew_its_records_are_delivered_though_they_lie_before_the_start(
    group: MakeGroup,
) -> None:
    orders = group()
    orders.send(b"0", b"1", b"2")
    commit(orders.bootstrap, orders.name, orders.topic, 100)
    with orders.member() as member:
        records = receive(member, 3)
        member.finish(records)
    assert values(records) == [b"0", b"1", b"2"]
    assert orders.committed() == 3


@pytest.mark.parametrize("before", ["at once", "after idling"])
def test_records_that_the_client_skips_are_delivered_before_those_after_them(group: MakeGroup, before: str) -> None:
    orders = group()
    orders.send(b"0", b"1", b"2", b"3", b"4", b"5")
    member = orders.member()
    got = values(receive(member, 2))
    if before != "at once":
        member.idle(NOT_STOPPED, 0.2)
    member._consumer.seek(TopicPartition(orders.topic, 0, 5))
    orders.send(b"6")
    assert got + values(receive(member, 5)) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
    assert out_of_line(orders, "found") == 1


def test_where_transactions_leave_gaps_only_the_first_is_read_once_more(group: MakeGroup) -> None:
    orders = group()
    producer = Producer(
        {"bootstrap.servers": orders.bootstrap, "log_level": 0, "transactional.id": f"{orders.name}-producer"}
    )
    producer.init_transactions(30)
    for number in range(20):
        producer.begin_transaction()
        producer.produce(orders.topic, b"%d" % number, partition=0)
        producer.commit_transaction(30)
    member = orders.member()
    assert values(receive(member, 20)) == [b"%d" % number for number in range(20)]
    proved, believed = out_of_line(orders, "after_proved_gap"), out_of_line(orders, "after_gap")
    assert (out_of_line(orders, "too_early"), proved + believed) == (proved, 19)
    assert proved <= 2  # the second only where the broker did not tell in time whether records were deleted


def out_of_line(orders: Group, came: str) -> float:
    labels = {"group": orders.name, "came": came}
    return REGISTRY.get_sample_value("counterfoil_subscriber_out_of_line_total", labels) or 0.0
