"""A broker that dies, or that stops answering without dying."""

from collections.abc import Iterator
from contextlib import ExitStack
from threading import Event
from time import monotonic

import pytest

from infrastructure.subscriber import COMMIT_SECONDS, LEAVE_SECONDS
from tests.support.apache_kafka import RealKafka
from tests.support.faulty_broker import OFFSET_COMMIT, REBALANCE_IN_PROGRESS, FaultyBroker
from tests.support.kafka import create_topic
from tests.support.outages import frozen
from tests.support.subscribing import Group, receive, values
from tests.support.wait import eventually


@pytest.fixture
def orders(own_kafka: RealKafka) -> Iterator[Group]:
    create_topic(own_kafka.bootstrap, "orders")
    with ExitStack() as stack:
        yield Group(own_kafka.bootstrap, "group", "orders", stack)


def test_no_call_waits_long_for_a_frozen_broker(own_kafka: RealKafka, orders: Group) -> None:
    orders.send(b"1", b"2")
    member = orders.member()
    [one] = receive(member, 1)
    member.finish([one])
    with frozen(own_kafka):
        started = monotonic()
        assert not member.commit()
        assert not member.commit()  # the first one is still under way
        assert monotonic() - started < COMMIT_SECONDS + 1.0
        started = monotonic()
        member.poll(1, 0.1)
        member.keep_alive()
        member.idle(Event(), 0.5)
        assert monotonic() - started < 3.0
        started = monotonic()
        member.close()
        assert monotonic() - started < LEAVE_SECONDS + 1.0
    assert values(receive(orders.member(), 1, within=30.0)) in ([b"1"], [b"2"])


def test_a_commit_that_was_refused_is_made_up_for() -> None:
    """As brokers do while a group finds its balance."""
    with FaultyBroker(["orders"]) as broker, ExitStack() as stack:
        orders = Group(broker.bootstrap, "group", "orders", stack)
        orders.send(b"1")
        member = orders.member()
        member.finish(receive(member, 1))
        broker.refuse_next([REBALANCE_IN_PROGRESS], OFFSET_COMMIT)
        assert not member.commit()
        eventually(lambda: member.poll(1, 0.1) or orders.committed() == 1)


def test_records_go_on_when_the_broker_is_killed_and_comes_back(own_kafka: RealKafka, orders: Group) -> None:
    orders.send(b"1")
    member = orders.member()
    member.finish(receive(member, 1))
    assert member.commit()
    own_kafka.kill()
    assert [member.poll(1, 0.1) for _ in range(10)] == [[]] * 10
    own_kafka.start()
    orders.send(b"2")
    assert b"2" in values(receive(member, 1, within=30.0))
