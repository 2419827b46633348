"""Records are read before it is their turn: while PostgreSQL works on one batch, Python has nothing else to do."""

from collections.abc import Iterable
from time import monotonic

from infrastructure.record import Record
from projections.decoding import Decoded, Decoder, Faulty, Ignored

MOST_SECONDS = 0.05
"""For reading ahead. For so long, and one record more, a transaction that has its answer stays open for it."""


class Reader:
    """Decodes records, and remembers what those say that are coming, so that none is decoded twice."""

    def __init__(self, decoder: Decoder) -> None:
        self._decode = decoder.decode
        self._ahead: dict[int, tuple[Record, Decoded | Ignored | Faulty]] = {}
        """By identity: another record may come from the same offset. A record that is kept here keeps its identity."""

    def read(self, record: Record) -> Decoded | Ignored | Faulty:
        found = self._ahead.pop(id(record), None)
        return found[1] if found else self._decode(record)

    def read_ahead(self, coming: Iterable[Record]) -> None:
        """As many of them as there is time for. All others are forgotten: they may never come."""
        until = monotonic() + MOST_SECONDS
        before, self._ahead = self._ahead, {}
        for record in coming:
            if monotonic() > until:
                return
            self._ahead[id(record)] = before.get(id(record)) or (record, self._decode(record))
