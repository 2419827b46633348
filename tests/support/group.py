"""A consumer group seen from outside."""

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

_SECONDS = 20.0
NO_COORDINATOR_YET = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> int | None:
    """The group's committed offset, None when it has none, or when the broker is still finding its coordinator."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        [position] = consumer.committed([TopicPartition(topic, partition)], timeout=_SECONDS)
    except KafkaException as error:
        if error.args[0].code() not in NO_COORDINATOR_YET:
            raise
        return None
    finally:
        consumer.close()
    return position.offset if position.offset >= 0 else None


def commit(bootstrap: str, group: str, topic: str, offset: int, partition: int = 0) -> None:
    """As a member of the group would; it must have none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    finally:
        consumer.close()


def forget(bootstrap: str, group: str) -> None:
    """Deletes the group with its offsets; it must have no members."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_consumer_groups([group], request_timeout=_SECONDS)[group].result(_SECONDS)


def delete_records(bootstrap: str, topic: str, before: int, partition: int = 0) -> None:
    """As retention would: the oldest record is then the one at `before`."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    place = TopicPartition(topic, partition, before)
    admin.delete_records([place], request_timeout=_SECONDS)[place].result(_SECONDS)
