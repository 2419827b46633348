"""What can never be applied is kept byte for byte, in the transaction that does everything else."""

from collections.abc import Iterator

import pytest
from psycopg import Connection
from psycopg.errors import RaiseException

from domain.contracts import Contract
from infrastructure.record import Record
from projections.base import Quarantine
from projections.batch import Outcome, Readable, apply_batch
from projections.decoding import Category, Faulty
from projections.quarantine import Parked, park
from tests.support.inventory import apply, connected, count
from tests.support.messages import placed, readable, record
from tests.support.tally import CREATE, Tally, tally

HEADERS = (("ce_id", b"\xff\x00"), ("trace", None), ("ce_id", b""), ("ünïcode", b"x"))
COLUMNS = 'topic, partition, "offset", record_timestamp_ms, key, value, header_names, header_values'


@pytest.fixture
def inbox(inventory_dsn: str) -> Iterator[Connection]:
    with connected(inventory_dsn) as connection:
        connection.execute(CREATE)
        yield connection


def parked(value: bytes | None, key: bytes | None = b"ord_1", reason: str = "as the test wants it") -> Parked:
    return Parked(record(value, key, headers=HEADERS), Faulty(Category.CONTRACT, reason))


@pytest.mark.parametrize("value", [None, b"", b"\x00", b"\xff\xfe", bytes(range(256)), b"{" * 3_000_000])
@pytest.mark.parametrize("key", [None, b"", b"\xa2", b"\x00"])
def test_any_bytes_are_kept_as_they_came(inbox: Connection, value: bytes | None, key: bytes | None) -> None:
    item = parked(value, key)
    assert park(inbox, "tally", [item]) == [item]
    came = item.record
    assert inbox.execute(f"SELECT {COLUMNS} FROM quarantined_events").fetchone() == (
        *(came.topic, came.partition, came.offset, came.timestamp_ms, key, value),
        [name.encode() for name, _ in HEADERS],
        [content for _, content in HEADERS],
    )


def test_a_record_without_headers_and_timestamp_is_kept(inbox: Connection) -> None:
    bare = Record("orders", 0, 7, None, None, (), None)
    park(inbox, "tally", [Parked(bare, Faulty(Category.NO_VALUE, "value: there is none"))])
    assert count(inbox, "quarantined_events") == 1


def test_a_reason_that_no_text_column_takes_does_not_get_it_stuck(inbox: Connection) -> None:
    park(inbox, "tally", [parked(b"", reason="nul \0, surrogate \ud800, long " + "x" * 5_000)])
    (reason,) = inbox.execute("SELECT reason FROM quarantined_events").fetchone() or ("",)
    assert reason.startswith("nul ?, surrogate ?, long xxx")


def test_a_record_delivered_again_is_the_same_row(inbox: Connection) -> None:
    item = parked(b"bytes")
    assert [park(inbox, "tally", [item]), park(inbox, "tally", [item, item])] == [[item], []]
    assert count(inbox, "quarantined_events") == 1


def test_each_consumer_has_a_quarantine_of_its_own(inbox: Connection) -> None:
    item = parked(b"bytes")
    assert [park(inbox, name, [item]) for name in ("inventory", "billing")] == [[item], [item]]


def test_another_record_at_the_offset_of_a_topic_made_anew_is_no_repeat(inbox: Connection) -> None:
    item = parked(b"bytes")
    anew = Parked(item.record._replace(value=b"other bytes"), item.fault)
    assert [park(inbox, "tally", [item]), park(inbox, "tally", [anew])] == [[item], [anew]]


def test_poison_in_the_middle_of_a_batch_is_parked_and_its_neighbours_are_applied(inbox: Connection) -> None:
    before, after = readable(placed("ord_1")), readable(placed("ord_2"))
    poison = parked(b"\xff")
    batch: list[Readable | Parked] = [before, poison, after]
    outcome = apply_batch(batch, Tally(), inbox)
    assert outcome == Outcome(2, 0, [poison])
    assert tally(inbox) == [before.contract.event_id, after.contract.event_id]
    assert inbox.execute('SELECT "offset", value FROM quarantined_events').fetchall() == [
        (poison.record.offset, b"\xff")
    ]


def test_a_record_that_is_in_quarantine_already_is_a_duplicate_when_it_comes_again(inbox: Connection) -> None:
    known, new = parked(b"\xff"), parked(b"\xfe")
    apply_batch([known], Tally(), inbox)
    assert apply_batch([known, new], Tally(), inbox) == Outcome(0, 1, [new])


def test_what_is_parked_and_what_is_applied_are_one_transaction(inbox: Connection) -> None:
    """A fault while parking leaves no effect, and a fault in a handler nothing parked."""
    inbox.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON quarantined_events EXECUTE FUNCTION refuse()"
    )
    batch: list[Readable | Parked] = [readable(placed("ord_1")), parked(b"\xff")]
    with pytest.raises(RaiseException):
        apply_batch(batch, Tally(), inbox)
    assert (tally(inbox), count(inbox, "processed_events")) == ([], 0)
    inbox.execute("DROP TRIGGER refuse ON quarantined_events")

    def fail(contract: Contract, tx: Connection) -> None:
        raise RuntimeError("as the test wants it")

    with pytest.raises(RuntimeError):
        apply_batch(batch, Tally(then=fail), inbox)
    assert count(inbox, "quarantined_events") == 0


def refuse_order_2(contract: Contract, tx: Connection) -> Quarantine | None:
    return Quarantine("order 2 is not for us") if contract.key == "ord_2" else None


def test_an_event_that_its_handler_refuses_is_parked_and_nothing_it_wrote_is_kept(inbox: Connection) -> None:
    events = [placed("ord_1"), placed("ord_2"), placed("ord_3")]
    outcome = apply(inbox, *events, projection=Tally(then=refuse_order_2))
    assert outcome.applied == 2
    assert tally(inbox) == [events[0].event_id, events[2].event_id]
    found = inbox.execute("SELECT event_id, category, reason, value FROM quarantined_events").fetchall()
    assert found == [(events[1].event_id, "refused", "order 2 is not for us", events[1].to_bytes())]


def test_a_parked_event_is_not_claimed_and_is_a_duplicate_wherever_it_comes_again(inbox: Connection) -> None:
    event = placed("ord_2")
    apply(inbox, event, projection=Tally(then=refuse_order_2))
    assert apply(inbox, event, event, projection=Tally()) == Outcome(0, 2, [])
    assert (count(inbox, "processed_events"), count(inbox, "quarantined_events")) == (0, 1)


def test_a_refused_event_that_comes_twice_in_a_batch_is_parked_once(inbox: Connection) -> None:
    event = placed("ord_2")
    outcome = apply(inbox, event, placed("ord_1"), event, projection=Tally(then=refuse_order_2))
    assert (outcome.applied, outcome.duplicates, len(outcome.parked)) == (1, 1, 1)
    assert (count(inbox, "processed_events"), count(inbox, "quarantined_events")) == (1, 1)
