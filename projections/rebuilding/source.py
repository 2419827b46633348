"""From stored events to the contracts that a projection reads: the same ones, with the same ids, as by Kafka."""

from collections.abc import Sequence
from typing import NamedTuple

from domain.contracts import Contract
from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.outbox import load_outbox
from infrastructure.postgres import Connection
from projections.rebuilding.errors import RebuildStopped
from projections.rebuilding.target import Target
from projections.stored_contracts import ContractMapper

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
        self._name = target.name
        self.reader = EventReader(store)
        outboxes = [load_outbox(name) for name in target.outboxes]
        self._mapper = ContractMapper(target.projection, outboxes, self.reader.namespace())

    def told(self, events: Sequence[RecordedEvent]) -> tuple[list[Told], RebuildStopped | None]:
        """All of them, or those before the first that cannot be mapped, and why that cannot."""
        told: list[Told] = []
        for event in events:
            mapped = self._mapper.map((event,))
            if mapped.unmappable:
                return told, RebuildStopped(self._name, event.position, None, mapped.unmappable.problem)
            told.append(Told(event, mapped.contracts))
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
