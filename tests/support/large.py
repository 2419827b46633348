"""Large messages, and topics that take smaller ones only."""

import random

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support.kafka import Kafka


def note_of(size: int) -> str:
    """A note that compresses badly: hexadecimal digits of random bytes take half their length at best."""
    return random.randbytes(size // 2).hex()


def limit_messages(kafka: Kafka, topic: str, size: int) -> None:
    """The topic takes no larger batch, in bytes, than this."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(20)
