"""Whatever the bytes are: a contract, nothing that concerns us, or a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.orders.public_contracts import OrderCancelled, OrderPlaced
from infrastructure.record import Record
from projections.decoding import Category, Decoded, Decoder, Faulty, Ignored
from tests.support.messages import SAMPLE, cancelled, placed, record

decoder = Decoder((OrderPlaced, OrderCancelled))


def read(value: bytes | None, key: bytes | None = b"ord_782") -> Decoded | Ignored | Faulty:
    return decoder.decode(record(value, key))


def fault(value: bytes | None, key: bytes | None = b"ord_782") -> Faulty:
    reading = read(value, key)
    assert isinstance(reading, Faulty), reading
    return reading


def changed(old: bytes, new: bytes) -> bytes:
    assert SAMPLE.count(old) == 1
    return SAMPLE.replace(old, new)


def test_the_sample_of_the_contracts_owner_is_read() -> None:
    reading = read(SAMPLE)
    assert isinstance(reading, Decoded)
    assert isinstance(reading.contract, OrderPlaced)
    assert (reading.contract.event_id, reading.contract.total_minor) == ("evt_01JQ8X8F", 12900)


@pytest.mark.parametrize("contract", [placed("ord_1", ("pen", 2)), placed("ord_1"), cancelled("ord_1")])
def test_what_we_write_we_read(contract: OrderPlaced | OrderCancelled) -> None:
    assert read(contract.to_bytes(), contract.key.encode()) == Decoded(contract)


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xfe",
        b"",
        SAMPLE[:60],
        b"\xef\xbb\xbf" + SAMPLE,
        b"[" * 300 + b"]" * 300,
        b"[" * 1_000_000,
        b"9" * 5_000_000,
        changed(b"12900", b"9" * 5_000_000),
        changed(b'"USD"', b'"USD","more":' + b"[" * 300 + b"]" * 300),
        SAMPLE + SAMPLE,
        SAMPLE.decode().encode("utf-16"),
        changed(b"12900", b"NaN"),
        changed(b"12900", b"Infinity"),
        changed(b"cus_17", b"cus_\\ud83d"),
        changed(b"cus_17", b"cus_\xed\xa0\xbd"),
        changed(b"cus_17", b"cus_\x00"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_is_not_json_is_faulty(value: bytes) -> None:
    assert fault(value).category is Category.NOT_JSON


@pytest.mark.parametrize("value", [b"[]", b"null", b'"text"', b"1", b"{}", b'{"eventType":1}', b'{"eventType":null}'])
def test_json_that_is_no_event_is_faulty(value: bytes) -> None:
    assert fault(value).category is Category.CONTRACT


def test_a_record_without_a_value_is_faulty() -> None:
    assert fault(None).category is Category.NO_VALUE


@pytest.mark.parametrize("character", [b"\\u0000", b"\\u001f", b"\\u0085"])
def test_control_characters_are_faulty(character: bytes) -> None:
    assert "customerId" in fault(changed(b"cus_17", b"cus" + character)).reason


@pytest.mark.parametrize("amount", [0, 1250, 2**53 - 1])
def test_whole_amounts_are_read_exactly(amount: int) -> None:
    reading = read(changed(b"12900", str(amount).encode()))
    assert isinstance(reading, Decoded)
    assert isinstance(reading.contract, OrderPlaced)
    assert reading.contract.total_minor == amount


@pytest.mark.parametrize(
    "amount",
    [
        "-1",
        '"1250"',
        "1250.0",
        "1250.5",
        "1e3",
        "true",
        "null",
        "9007199254740993",
        "9007199254740993.0",
        "1" + "0" * 23,
    ],
)
def test_amounts_that_are_no_exact_whole_number_are_faulty(amount: str) -> None:
    reading = fault(changed(b"12900", amount.encode()))
    assert (reading.category, "totalMinor" in reading.reason) == (Category.CONTRACT, True)


@pytest.mark.parametrize("currency", [b"XXX", b"eur", b"EURO", b""])
def test_unknown_currencies_are_faulty(currency: bytes) -> None:
    assert "currency" in fault(changed(b"USD", currency)).reason


@pytest.mark.parametrize(
    "value",
    [
        changed(b"OrderPlaced", b"OrderShipped"),
        b'{"eventType":"OrderShipped"}',
        b'{"eventType":"OrderShipped","schemaVersion":"none","orderId":17}',
    ],
)
def test_a_type_that_the_projection_does_not_handle_is_ignored_whatever_its_fields_are(value: bytes) -> None:
    assert read(value, key=None) == Ignored("OrderShipped")


@pytest.mark.parametrize("version", [b"2", b"0", b'"1"', b"1.0", b"true", b"null", b"[1]"])
def test_an_unknown_version_is_never_read_as_one_we_know(version: bytes) -> None:
    assert fault(changed(b'"schemaVersion":1', b'"schemaVersion":' + version)).category is Category.VERSION


def test_a_missing_version_is_never_guessed() -> None:
    assert fault(changed(b'"schemaVersion":1,', b"")).category is Category.VERSION


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"currency"', b'"newField":true,"currency"'), (b'"customerId":"cus_17",', b"")],
    ids=["a field more", "a field less"],
)
def test_another_version_is_told_by_its_number_and_not_by_its_fields(old: bytes, new: bytes) -> None:
    value = changed(old, new).replace(b'"schemaVersion":1', b'"schemaVersion":2')
    assert fault(value).category is Category.VERSION


def test_a_new_field_of_a_known_version_is_ignored() -> None:
    assert read(changed(b'"USD"', b'"USD","promoCode":"SUMMER"')) == read(SAMPLE)


@pytest.mark.parametrize(
    "value",
    [
        changed(b'"USD"', b'"USD","totalMinor":1'),
        changed(b'"eventType"', b'"eventType":"OrderShipped","eventType"'),
        changed(b'"USD"', b'"USD","lines":[{"sku":"pen","quantity":1,"quantity":2}]'),
        changed(b'"USD"', b'"USD","note":{"a":1,"a":1}'),
    ],
)
def test_a_field_that_occurs_twice_is_faulty(value: bytes) -> None:
    assert "twice" in fault(value).reason


@pytest.mark.parametrize("key", [None, b"", b"\xa2", b"ord_783", b"ord_782 ", b"\x00ord_782"])
def test_a_key_that_is_not_the_contracts_own_is_faulty_and_the_event_is_known(key: bytes | None) -> None:
    reading = fault(SAMPLE, key)
    assert (reading.category, reading.event_id) == (Category.KEY, "evt_01JQ8X8F")


def test_a_reason_names_fields_and_shows_no_value() -> None:
    secret = b"s3cret" * 30
    reason = fault(changed(b"cus_17", secret).replace(b"USD", b"s3c")).reason
    assert "customerId" in reason
    assert "currency" in reason
    assert "s3c" not in reason


def test_a_reason_is_short_however_much_is_wrong() -> None:
    reason = fault(changed(b'"USD"', b'"USD","lines":[' + b",".join([b"{}"] * 10_000) + b"]")).reason
    assert len(reason) < 500
    assert reason.endswith(" more")


@given(st.binary(max_size=200), st.none() | st.binary(max_size=20))
def test_no_bytes_make_it_raise(value: bytes, key: bytes | None) -> None:
    assert isinstance(read(value, key), Faulty | Ignored)


@given(st.integers(0, len(SAMPLE) - 1), st.binary(max_size=4), st.integers(0, 4))
def test_no_damage_to_a_good_message_makes_it_raise(at: int, inserted: bytes, removed: int) -> None:
    reading = read(SAMPLE[:at] + inserted + SAMPLE[at + removed :])
    assert isinstance(reading, Decoded | Faulty | Ignored)


def test_a_contract_that_fails_by_itself_does_not_stop_the_reading() -> None:
    class Broken(OrderPlaced):
        @property
        def key(self) -> str:
            raise RuntimeError("a bug")

    reading = Decoder((Broken,)).decode(Record("orders", 0, 0, b"ord_782", SAMPLE, (), None))
    assert isinstance(reading, Faulty)
    assert "RuntimeError" in reading.reason
