"""What a projection is: its name, the contracts it reads, and what each of them changes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import Connection

from domain.contracts import Contract


@dataclass(frozen=True)
class Quarantine:
    """A handler's answer about an event that can never be applied, whatever is tried.

    reason: one sentence that names fields and rules, never a value.
    """

    reason: str


@dataclass(frozen=True)
class NotYet:
    """A handler's answer about an event that can be applied once something else has happened, outside of its topics.

    It is waited for: no attempt is spent, and nothing of its partition goes on (fed by the store: of its shard).
    reason: one sentence that names fields and rules, never a value.
    """

    reason: str


Answer = Quarantine | NotYet


class Projection(ABC):
    """A read model, as a function of contracts and a database transaction.

    By convention `projections.<name>.projection` has one as `PROJECTION`, and `projections.<name>` has
    `MIGRATIONS`, those of its database. Guaranteed to a projection:

    - Each event is applied once, whatever is delivered twice, retried or crashes: the claim of its id and
      what `handle` writes through `tx` are committed together, or neither is. What `handle` does
      anywhere else may happen again.
    - Events of one topic and key come in the order in which they were published. While one is in quarantine,
      those of its key that come later wait behind it, by whichever topic. Between topics there is no order.
    - Several consumers may work at the same time, each in a transaction of its own (READ COMMITTED).

    A transaction holds many events: `prepare` is called once with all of them, then `handle` with each.
    When something fails, all of it is rolled back and done again, perhaps with fewer events.
    """

    consumer_name: str
    """Who processed it, in the inbox; also the Kafka consumer group. Durable: a new name starts from the beginning."""

    contracts: tuple[type[Contract], ...]

    version: int = 1
    """Of what its rows mean. Raise it with a change after which the rows must be built anew from all events."""

    rebuilt_in_parallel: bool = False
    """Whether several workers of a rebuild may each apply the events of some aggregates, side by side. What comes of
    events of different aggregates must then not depend on their order."""

    pipelined: bool = False
    """Whether the statements of a large batch are sent ahead, without waiting for the answer to each: several times
    as fast for a handler that mostly writes. Reading a result, or asking for a `rowcount`, still waits for it. What
    may fail must then be in a `with tx.transaction()` inside of `try`, for elsewhere the error of a statement comes
    later than its call, perhaps in the call with another event. An event is blamed only when handled without; but a
    rebuild, which only stops, may name a stored event of more than 32 contracts while they are sent ahead.

    Not for COPY, `stream`, server-side cursors, `pgresult`, several commands in one text, or commands of transactions
    as a text (SAVEPOINT, ROLLBACK TO, RELEASE), nor for cursors that do not come from `tx` in `handle`. Most of these
    are refused with psycopg.NotSupportedError, and the batch is done again, slower, in parts that are not sent ahead.
    """

    carried: Mapping[str, Sequence[str]] = {}
    """Columns by table that no event fills but people, such as pieces on hand: a rebuild copies them from the live
    tables, key and all. The other columns of such a table need defaults."""

    kept: Sequence[str] = ()
    """Tables of its migrations that no event fills, nor people: a rebuild leaves them where they are."""

    agreeing: Mapping[str, Sequence[str]] | None = None
    """SQL expressions by table in which rebuilt rows and live ones of the same key must agree; with None all columns of
    all tables, as far as both have them. A table that is not named is not compared row by row."""

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({contract.topic for contract in self.contracts}))

    def prepare(self, contracts: Sequence[Contract], tx: Connection) -> None:  # noqa: B027
        """Takes the locks that handling these contracts needs, always in one fixed order; by default none.

        Consumers that lock rows as their events come, each in another order, wait for each other in a
        circle. PostgreSQL ends that after a second by failing one of them.
        """

    @abstractmethod
    def handle(self, contract: Contract, tx: Connection) -> Answer | None:
        """Applies one event through `tx`, without commit or rollback.

        Returns None when the event is applied, and also when there is nothing to do, as for one that comes
        too late to matter; a Quarantine when it can never be applied, and what was written before that
        answer is not kept; a NotYet when it must wait, and nothing is kept either. An event that comes before
        another one it needs is best written down until then: waiting would hold back the partition by which the
        other one may come.

        Raising is for what nobody foresaw (faults.py): an error that passes by itself is waited out, what
        the database never takes is quarantined, any other error after some attempts.
        """


class BatchProjection(Projection):
    """A projection that applies the events of a transaction together, in a few statements instead of some for each.

    Everything promised to a Projection holds. What it must keep itself: the outcome is the same as if the
    events had been applied one by one, in their order.
    """

    @abstractmethod
    def handle_batch(self, contracts: Sequence[Contract], tx: Connection) -> Mapping[str, Answer]:
        """Applies the events through `tx`, without commit or rollback; no event id occurs twice among them.

        Returns, by event id, those that cannot be applied now or ever; then nothing that was written is kept,
        and it is called again with the others. Raising is for the whole batch what it is for one event in
        `handle`; when it is not waited out, it is called again with fewer events until the culprit stands alone.
        """

    def handle(self, contract: Contract, tx: Connection) -> Answer | None:
        return self.handle_batch((contract,), tx).get(contract.event_id)
