"""Where to split a batch that failed, so that the event at fault soon stands alone."""

from dataclasses import dataclass

import psycopg

from projections.order_keeping import Batch, Readable
from projections.pipelining import MOST_UNDER_WAY


@dataclass(frozen=True)
class Failure:
    """error: of a batch that was rolled back. last: the event whose handler was called last, None when all of them were
    handled together, or none was, or it came up after all of them. ahead: whether statements may have been sent ahead.
    """

    error: Exception
    last: Readable | None = None
    ahead: bool = False


def split(batch: Batch, failure: Failure) -> list[Batch]:
    """Parts of the batch, in its order, each smaller than it; whatever the failure tells, no event is left out.

    Where it is known about which event it came up, that one is a part by itself: what went well before it is applied
    together, and so is what follows. (With a poison message in 500, twice as fast as halving.) What is not possible
    while statements are sent ahead is done in parts so small that none are.
    """
    if failure.ahead and isinstance(failure.error, psycopg.NotSupportedError) and len(batch) > MOST_UNDER_WAY:
        return [batch[begin : begin + MOST_UNDER_WAY] for begin in range(0, len(batch), MOST_UNDER_WAY)]
    places = [place for place, each in enumerate(batch) if each is failure.last]
    if places:
        end = places[0] + 1
        begin = max(0, end - (MOST_UNDER_WAY if _may_be_late(failure) else 1))
        parts = [part for part in (batch[:begin], batch[begin:end], batch[end:]) if part]
        if len(parts) > 1:
            return parts
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]]


def _may_be_late(failure: Failure) -> bool:
    """Whether it may be about the statement of an event some places before. What a handler itself raises is not: the
    error of an earlier statement would have come first."""
    return failure.ahead and isinstance(failure.error, psycopg.Error) and failure.error.pgresult is not None
