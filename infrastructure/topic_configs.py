"""What a cluster tells of its topics' configuration."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigEntry, ConfigResource

Config = Mapping[str, ConfigEntry]


def topic_configs(admin: AdminClient, topics: Sequence[str], timeout: float) -> dict[str, Future[Config]]:
    """Asked for at once. An answer may be KafkaException, and not every cluster tells all of it."""
    resources = [ConfigResource("topic", topic) for topic in topics]
    if not resources:
        return {}
    return {each.name: told for each, told in admin.describe_configs(resources, request_timeout=timeout).items()}
