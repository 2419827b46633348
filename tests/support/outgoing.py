"""What one stored event becomes on its way out."""

from infrastructure.event_reader import RecordedEvent
from infrastructure.outgoing import MessageMapper, OutgoingMessage, Unmappable


def messages_of(mapper: MessageMapper, recorded: RecordedEvent) -> list[OutgoingMessage]:
    """Raises Unmappable."""
    (found,) = mapper.messages_of_all([recorded])
    if isinstance(found, Unmappable):
        raise found
    return found
