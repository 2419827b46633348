"""One Kafka message as it was received, whatever is in it."""

import logging
from operator import methodcaller
from typing import NamedTuple, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

logger = logging.getLogger(__name__)

_read_headers = methodcaller("headers")
"""Not `message.headers()`: on a name that is not UTF-8 the client returns a list with a null pointer in it and an
error set beside it. CPython notices that on a plain call, but not on the shortcut that it takes once the call
site is warm; there the process would crash. Through methodcaller there is no shortcut."""

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """key, value and header values: None where the message has none, which is not the same as empty.

    headers: in their order; a name may occur twice. timestamp_ms: Unix time, None when there is none.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None

    @classmethod
    def of(cls, message: Message) -> "Record":
        """message: one that holds a record, not an error."""
        kind, timestamp = message.timestamp()
        return cls(
            cast(str, message.topic()),
            cast(int, message.partition()),
            cast(int, message.offset()),
            message.key(),
            message.value(),
            _headers(message),
            None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        )


def _headers(message: Message) -> Headers:
    """The client fails on a name that is not UTF-8, and is not to be asked again: then it answers with a null
    pointer. Such headers are left out; nothing depends on them."""
    try:
        return tuple(cast(list[tuple[str, bytes | None]], _read_headers(message) or ()))
    except SystemError:
        place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
        logger.warning("headers cannot be read and are left out", extra=place)
        return ()
