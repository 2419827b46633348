"""From stored events to the contracts that a projection handles: the same ones, with the same ids, as on Kafka."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from domain.contracts import Contract
from infrastructure.event_reader import RecordedEvent
from infrastructure.outbox import Outbox
from infrastructure.outgoing import MessageMapper, Unmappable
from infrastructure.shards import shard_of
from projections.base import Projection


@dataclass(frozen=True)
class Mapped:
    """events: those that were mapped or are another shard's, in order. contracts: what they tell the projection.

    unmappable: the event that comes next, if it cannot be mapped.
    """

    events: Sequence[RecordedEvent]
    contracts: Sequence[Contract]
    unmappable: Unmappable | None = None


class ContractMapper:
    """For one shard of a projection. Pure: the same events always make equal contracts."""

    def __init__(
        self, projection: Projection, outboxes: Sequence[Outbox], namespace: UUID, shard: int = 0, shards: int = 1
    ) -> None:
        """namespace: of the store, as `EventReader.namespace` tells."""
        self._handled = projection.contracts
        self._mappers = [MessageMapper(outbox, namespace) for outbox in outboxes]
        self._shard, self._shards = shard, shards

    def map(self, events: Sequence[RecordedEvent]) -> Mapped:
        """All of them, or those before the first that cannot be mapped. Another shard's event stops nobody here."""
        contracts: list[Contract] = []
        for index, event in enumerate(events):
            if self._shards > 1 and shard_of(event.originator_id, self._shards) != self._shard:
                continue
            try:
                for mapper in self._mappers:
                    contracts += [each for each in mapper.contracts(event) if isinstance(each, self._handled)]
            except Unmappable as unmappable:
                return Mapped(events[:index], contracts, unmappable)
        return Mapped(events, contracts)
