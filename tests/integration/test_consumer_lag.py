"""How far a group is behind, and when that is a fault."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from time import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from counterfoil.embedded import EmbeddedBroker
from infrastructure.consumer_lag import GroupLag, first_records, group_lag
from infrastructure.redeliverable import redeliverable
from infrastructure.settings import Settings
from tests.support.group import NO_COORDINATOR_YET, delete_records
from tests.support.kafka import Kafka, MakeTopic, create_topic
from tests.support.messages import Sender
from tests.support.subscribing import Group, receive
from tests.support.wait import eventually


@pytest.fixture
def orders(kafka: Kafka, topics: MakeTopic, unique_name: Callable[[str], str]) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(kafka.bootstrap, unique_name("group"), topics("orders", partitions=2), stack)


def lag_of(group: Group, *more_topics: str) -> GroupLag:
    """A new broker takes its time, also until it is the group's coordinator."""
    settings = Settings(kafka_bootstrap_servers=group.bootstrap)

    def asked() -> GroupLag | None:
        try:
            return group_lag(settings, group.name, [group.topic, *more_topics], timeout=20.0)
        except KafkaException as error:
            if error.args[0].code() not in NO_COORDINATOR_YET:
                raise
            return None

    lag = eventually(asked, within=30)
    assert lag
    return lag


def send_aged(group: Group, seconds: float, partition: int) -> None:
    """A record that was published so many seconds ago."""
    producer = Producer({"bootstrap.servers": group.bootstrap})
    producer.produce(group.topic, b"aged", partition=partition, timestamp=round((time() - seconds) * 1000))
    assert producer.flush(20.0) == 0


def commit(group: Group, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.name})
    consumer.commit(offsets=[TopicPartition(group.topic, 0, offset)], asynchronous=False)
    consumer.close()


@pytest.mark.kafka
def test_records_without_anybody_to_take_them_are_a_fault_once_a_restart_would_be_over(orders: Group) -> None:
    orders.send(b"1", b"2")
    assert (lag_of(orders).lag, lag_of(orders).members, lag_of(orders).fault) == (2, 0, None)
    send_aged(orders, 20, partition=1)
    assert "nobody takes them" in (lag_of(orders).fault or "")


@pytest.mark.kafka
def test_an_idle_group_without_members_is_healthy(orders: Group) -> None:
    orders.send(b"1")
    with orders.member() as member:
        member.finish(receive(member, 1))
    assert lag_of(orders) == GroupLag(lag=0, missing_topics=(), waiting_seconds=None, members=None)
    assert lag_of(orders).fault is None


@pytest.mark.kafka
def test_the_oldest_record_that_waits_in_any_partition_is_a_fault_after_a_minute_whoever_is_there(
    orders: Group,
) -> None:
    send_aged(orders, 300, partition=1)
    member = orders.member()
    member.finish(receive(member, 1))
    assert member.commit()
    orders.send(b"new", partition=0)
    assert (lag_of(orders).lag, lag_of(orders).members, lag_of(orders).fault) == (1, 1, None)
    send_aged(orders, 120, partition=1)
    waiting = lag_of(orders)
    assert 120 <= (waiting.waiting_seconds or 0) < 150
    assert (waiting.fault or "").startswith("a record has waited for 12")


@pytest.mark.kafka
def test_a_group_whose_offset_is_out_of_range_waits_for_what_is_there(orders: Group) -> None:
    """As after a topic that was deleted and made anew: the client will begin at the start."""
    orders.send(b"1", b"2", b"3")
    commit(orders, 99)
    assert lag_of(orders).lag == 3
    delete_records(orders.bootstrap, orders.topic, before=2)
    commit(orders, 1)
    assert lag_of(orders).lag == 1


@pytest.mark.kafka
def test_a_missing_topic_is_a_fault_and_not_a_lag_of_nothing(orders: Group, unique_name: Callable[[str], str]) -> None:
    missing = unique_name("missing")
    orders.send(b"1")
    lag = lag_of(orders, missing)
    assert (lag.lag, lag.missing_topics) == (1, (missing,))
    assert missing in (lag.fault or "")


@pytest.mark.kafka
def test_a_partition_that_does_not_answer_in_time_is_not_taken_for_empty(orders: Group) -> None:
    orders.send(b"1")
    consumer = Consumer({"bootstrap.servers": orders.bootstrap, "group.id": orders.name})
    with closing(consumer), pytest.raises(KafkaException):
        first_records(consumer, [TopicPartition(orders.topic, 0, 0)], timeout=0.0)


@pytest.mark.kafka
def test_a_partition_that_answers_with_an_error_is_not_taken_for_empty(orders: Group) -> None:
    orders.send(b"1")
    refusing = {"auto.offset.reset": "error"}  # an offset beyond the end is one for it
    consumer = Consumer({"bootstrap.servers": orders.bootstrap, "group.id": orders.name} | refusing)
    with closing(consumer), pytest.raises(KafkaException, match="_AUTO_OFFSET_RESET"):
        first_records(consumer, [TopicPartition(orders.topic, 0, 99)], timeout=20.0)


def test_where_the_cluster_does_not_tell_how_long_a_topic_keeps_records_that_counts_as_for_ever() -> None:
    with EmbeddedBroker() as broker:  # it tells of no such setting
        create_topic(broker.bootstrap, "orders")
        found = redeliverable(Settings(kafka_bootstrap_servers=broker.bootstrap), "nobody", ["orders"])
        assert (found.kept_ms, found.oldest, found.unread) == ({"orders": None}, [], [])


def test_the_embedded_broker_answers_too() -> None:
    with EmbeddedBroker() as broker:
        create_topic(broker.bootstrap, "orders", partitions=2)
        sender = Sender(broker.bootstrap)
        sender.send("orders", b"1")
        sender.flush()
        lag = group_lag(Settings(kafka_bootstrap_servers=broker.bootstrap), "nobody", ["orders"])
        assert (lag.lag, lag.members) == (1, 0)
        assert lag.waiting_seconds is not None
