"""Which publisher a shard of a relay has: the one that the settings' `relay_delivery` asks for."""

from uuid import UUID

from infrastructure.lease import Shard
from infrastructure.outbox import Outbox
from infrastructure.publisher import KafkaPublisher, Publisher
from infrastructure.settings import Settings
from infrastructure.transactional_publisher import TransactionalPublisher


def publisher_for(settings: Settings, namespace: UUID, outbox: Outbox, shard: Shard) -> Publisher:
    """namespace: of the store."""
    if settings.relay_delivery == "at-least-once":
        return KafkaPublisher(settings)
    topics = [contract.topic for contract in outbox.contracts]
    return TransactionalPublisher(settings, transactional_name(namespace, shard), topics)


def transactional_name(namespace: UUID, shard: Shard) -> str:
    """Transactional id of a shard, and the group that keeps its marks: of this store, this relay and this shard."""
    return f"counterfoil-{namespace}-{shard.relay}-{shard.number}"
