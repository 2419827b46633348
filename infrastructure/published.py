"""Under which ids a stored event is told to the world, for whoever wants to follow it."""

from infrastructure.event_reader import EventReader, RecordedEvent
from infrastructure.outbox import Outbox
from infrastructure.outgoing import MessageMapper
from infrastructure.postgres import Connection

BY_VERSION = """
    SELECT originator_id, originator_version, topic, state, position FROM stored_events
    WHERE originator_id = %s AND originator_version = %s
"""


def event_ids_of(connection: Connection, outbox: Outbox, aggregate_id: str, version: int) -> tuple[str, ...]:
    """Of what the aggregate's event of this version becomes, often one id; none when it is not told or not stored.

    connection: to the store. Raises Unmappable.
    """
    row = connection.execute(BY_VERSION, (aggregate_id, version), binary=True).fetchone()
    if row is None:
        return ()
    mapper = MessageMapper(outbox, EventReader(connection).namespace())
    return tuple(contract.event_id for contract in mapper.contracts(RecordedEvent(*row)))
