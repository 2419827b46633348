"""What is read before its turn is what would have been read then."""

import pytest

from domain.orders.public_contracts import OrderPlaced
from infrastructure.record import Record
from projections import reading
from projections.decoding import Decoded, Decoder, Faulty, Ignored
from projections.reading import Reader
from tests.support.messages import placed, record


class Counting(Decoder):
    def __init__(self) -> None:
        super().__init__((OrderPlaced,))
        self.decoded: list[Record] = []

    def decode(self, record: Record) -> Decoded | Ignored | Faulty:
        self.decoded.append(record)
        return super().decode(record)


@pytest.fixture
def decoder() -> Counting:
    return Counting()


@pytest.fixture
def reader(decoder: Counting) -> Reader:
    return Reader(decoder)


def came(order_id: str = "ord_1") -> Record:
    return record(placed(order_id).to_bytes(), order_id.encode())


def test_what_was_read_ahead_is_not_read_again(decoder: Counting, reader: Reader) -> None:
    records = [came(), came(), record(b"\xff")]
    reader.read_ahead(records[:2])
    reader.read_ahead(records)
    assert decoder.decoded == records
    assert [reader.read(each) for each in records] == [Decoder((OrderPlaced,)).decode(each) for each in records]
    assert decoder.decoded == records


def test_a_record_that_comes_again_is_read_again(decoder: Counting, reader: Reader) -> None:
    again = came()
    reader.read_ahead([again])
    assert reader.read(again) == reader.read(again)
    assert decoder.decoded == [again, again]


def test_another_record_from_the_same_offset_is_read_for_itself(reader: Reader) -> None:
    """As in a topic that was made anew."""
    old, other = came("ord_1"), came("ord_2")
    new = other._replace(offset=old.offset)
    reader.read_ahead([old])
    match reader.read(new):
        case Decoded(contract):
            assert contract.key == "ord_2"
        case unexpected:
            pytest.fail(str(unexpected))


def test_what_is_no_longer_coming_is_forgotten(decoder: Counting, reader: Reader) -> None:
    gone, still = came(), came()
    reader.read_ahead([gone, still])
    reader.read_ahead([still])
    reader.read(gone)
    assert decoder.decoded == [gone, still, gone]


def test_reading_ahead_takes_no_more_than_its_time(
    decoder: Counting, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_SECONDS", -1.0)
    reader.read_ahead([came()])
    assert decoder.decoded == []
