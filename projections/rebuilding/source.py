"""From stored events to the contracts that a projection reads: the same ones, with the same ids, as by Kafka."""

from collections.abc import Sequence
from typing import NamedTuple

from domain.contracts import Contract
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.outbox import load_outbox
from infrastructure.outgoing import MessageMapper, Unmappable
from infrastructure.postgres import Connection
from projections.rebuilding.errors import RebuildStopped
from projections.rebuilding.target import Target

# Whatever is visible, gaps or not: what has been applied live was visible before.
READ_VISIBLE = """
    SELECT originator_id, originator_version, topic, state, position
    FROM stored_events WHERE position > %s ORDER BY position LIMIT %s
"""


class Told(NamedTuple):
    """What one stored event tells the projection; often one contract, or none."""

    event: RecordedEvent
    contracts: Sequence[Contract]


class Source:
    """The stored events of one store as a projection's contracts."""

    def __init__(self, target: Target, store: Connection) -> None:
        """store: in autocommit mode, for this alone."""
        self._store = store
        self._name, self._wanted = target.name, target.projection.contracts
        self.reader = EventReader(store)
        namespace = self.reader.namespace()
        self._mappers = [MessageMapper(load_outbox(name), namespace) for name in target.outboxes]

    def told(self, events: Sequence[RecordedEvent]) -> tuple[list[Told], RebuildStopped | None]:
        """All of them, or those before the first that cannot be mapped, and why that cannot."""
        told: list[Told] = []
        for event in events:
            try:
                told.append(Told(event, self._contracts(event)))
            except Unmappable as error:
                return told, RebuildStopped(self._name, error.position, None, error.problem)
        return told, None

    def visible(self, after: int, limit: int) -> list[Told]:
        """The next events after a position, at most `limit`, whether or not all before them are there yet.

        Raises RebuildStopped when one of them cannot be mapped.
        """
        rows = self._store.execute(READ_VISIBLE, (after, limit), binary=True)
        told, stopped = self.told([RecordedEvent(*row) for row in rows])
        if stopped:
            raise stopped
        return told

    def _contracts(self, event: RecordedEvent) -> Sequence[Contract]:
        return [
            contract
            for mapper in self._mappers
            for contract in mapper.contracts(event)
            if isinstance(contract, self._wanted)
        ]
