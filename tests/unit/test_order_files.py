"""Importing orders: one bad line never stops the rest, and every refusal says its line and its reason."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.order_files import (
    Columns,
    CsvLayout,
    Entry,
    HeaderError,
    MissingColumns,
    Refusal,
    check_time_format,
    read_csv,
    read_json_lines,
)
from domain.orders.commands import CancelOrder, PlaceOrder

RETAIL = CsvLayout(
    columns=Columns("InvoiceNo", "CustomerID", "StockCode", "Quantity", "UnitPrice", time="InvoiceDate"),
    currency="GBP",
    time_format="%m/%d/%y %H:%M",
    cancel_prefix="C",
)
HEADER = "InvoiceNo,StockCode,Quantity,InvoiceDate,UnitPrice,CustomerID"


def lines(*texts: str | bytes) -> list[bytes]:
    return [(text if isinstance(text, bytes) else text.encode()) + b"\n" for text in texts]


def retail(*rows: str | bytes) -> list[Entry | Refusal]:
    return list(read_csv(lines(HEADER, *rows), RETAIL))


def placed(entry: Entry | Refusal) -> PlaceOrder:
    assert isinstance(entry, Entry)
    assert isinstance(entry.command, PlaceOrder)
    return entry.command


def test_the_rows_of_an_order_become_one_command_wherever_they_stand() -> None:
    first, second = retail(
        "536365,85123A,6,12/1/10 8:26,2.55,17850",
        "536366,22633,1,12/1/10 8:28,1.85,17850",
        "536365,71053,6,12/1/10 8:27,3.39,17850",
    )
    order = placed(first)
    assert (order.order_id, order.customer_id, order.currency) == ("536365", "17850", "GBP")
    assert [(line.sku, line.quantity, line.unit_price_minor) for line in order.lines] == [
        ("85123A", 6, 255),
        ("71053", 6, 339),
    ]
    assert order.placed_at == datetime(2010, 12, 1, 8, 26, tzinfo=UTC)
    assert placed(second).order_id == "536366"


def test_a_cancelling_row_cancels_the_order_it_names_after_all_orders() -> None:
    *orders, cancellation = retail(
        "C536366,22633,-1,12/1/10 9:41,1.85,17850",
        "C536366,22634,-1,12/1/10 9:41,1.85,17850",
        "536366,22633,1,12/1/10 8:28,1.85,17850",
    )
    assert [placed(order).order_id for order in orders] == ["536366"]
    assert cancellation == Entry(2, CancelOrder(order_id="536366", reason="cancelled by C536366"))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("536365,71053,6,12/1/10 8:26,3.39,", "customer_id is missing"),
        ("536365,71053,0,12/1/10 8:26,3.39,17850", "quantity"),
        ("536365,71053,-6,12/1/10 8:26,3.39,17850", "quantity"),
        ("536365,71053,6.5,12/1/10 8:26,3.39,17850", "quantity"),
        ("536365,,6,12/1/10 8:26,3.39,17850", "sku"),
        ("536365,71053,6,12/1/10 8:26,3.395,17850", "decimals of GBP"),
        ("536365,71053,6,12/1/10 8:26,-3.39,17850", "decimal amount"),
        ("536365,71053,6,12/1/10 8:26,3.39,17851", "customer_id differs from line 2"),
    ],
)
def test_a_bad_row_is_named_and_its_order_left_out_whole(row: str, reason: str) -> None:
    left_out, refusal, other = retail(
        "536365,85123A,6,12/1/10 8:26,2.55,17850", row, "536367,22633,1,12/1/10 8:28,1.85,17850"
    )
    assert isinstance(refusal, Refusal)
    assert (refusal.line, refusal.whole) == (3, False)
    assert reason in refusal.reason
    assert left_out == Refusal(2, "order '536365' is left out because of line 3")
    assert placed(other).order_id == "536367"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (",71053,6,12/1/10 8:26,3.39,17850", "order_id is missing"),
        ("536365,71053", "2 fields where the header has 6"),
        ('536365,"71053,6,12/1/10 8:26,3.39,17850', "not a CSV row"),
        (b"536365,\xff\xfe,6,12/1/10 8:26,3.39,17850", "not a CSV row in UTF-8"),
    ],
)
def test_a_row_that_belongs_to_no_order_spoils_only_itself(row: str | bytes, reason: str) -> None:
    refusal, other = retail(row, "536367,22633,1,12/1/10 8:28,1.85,17850")
    assert isinstance(refusal, Refusal)
    assert (refusal.line, reason in refusal.reason) == (2, True)
    assert placed(other).order_id == "536367"


def test_an_order_whose_first_row_is_bad_is_refused_once_and_refusals_come_by_line() -> None:
    good = "536365,85123A,6,12/1/10 8:26,2.55,17850"
    *refusals, other = retail(
        "536365,71053,x,12/1/10 8:26,3.39,17850", good, "1,2", "536365,71053,y,,1,17850", good.replace("65", "66")
    )
    assert refusals == [
        Refusal(2, "quantity is not a whole number; order '536365' is left out"),
        Refusal(4, "2 fields where the header has 6", whole=False),
        Refusal(5, "quantity is not a whole number", whole=False),
    ]
    assert placed(other).order_id == "536366"


@pytest.mark.parametrize("column", ["time", "currency"])
def test_a_column_that_is_named_must_be_in_the_file(column: str) -> None:
    header, row = "order_id,customer_id,sku,quantity,unit_price", "o-1,c,pen,1,1.00"
    for name in (column, "Tmie"):
        with pytest.raises(MissingColumns, match=name):
            list(read_csv(lines(header, row), CsvLayout(Columns(**{column: name}), currency="EUR")))
    (order,) = read_csv(lines(header, row), CsvLayout(currency="EUR"))
    assert placed(order).placed_at is None


def test_a_column_of_our_name_is_read_without_being_named() -> None:
    header = "order_id,customer_id,sku,quantity,unit_price,currency,time"
    (order,) = read_csv(lines(header, "o-1,c,pen,1,100,JPY,2026-01-02"), CsvLayout(currency="EUR"))
    assert (placed(order).currency, placed(order).placed_at) == ("JPY", datetime(2026, 1, 2, tzinfo=UTC))


def test_a_column_that_the_header_has_twice_is_a_header_error() -> None:
    with pytest.raises(HeaderError, match="more than one column sku"):
        list(
            read_csv(
                lines("order_id,customer_id,sku,sku,quantity,unit_price", "1,2,3,4,5,6"), CsvLayout(currency="EUR")
            )
        )


@pytest.mark.parametrize("time_format", ["%Q", "%", "%d %d", "\udcff"])
def test_a_time_format_that_reads_nothing_is_known_beforehand(time_format: str) -> None:
    with pytest.raises(ValueError, match="strptime"):
        check_time_format(time_format)


@pytest.mark.parametrize("time_format", ["%m/%d/%y %H:%M", "%Y-%m-%dT%H:%M:%S%z", "%d %b %Y %I:%M %p", "%Y%m%d"])
def test_a_time_format_that_reads_times_is_let_pass(time_format: str) -> None:
    check_time_format(time_format)


def test_a_wrong_time_is_refused() -> None:
    (refusal,) = retail("536365,85123A,6,2010-12-01,2.55,17850")
    assert refusal == Refusal(2, "time is not %m/%d/%y %H:%M")


def test_a_missing_column_is_named_before_any_row_is_read() -> None:
    with pytest.raises(HeaderError, match="StockCode"):
        list(read_csv(lines("InvoiceNo,Quantity,UnitPrice,CustomerID", "1,1,1,1"), RETAIL))


@pytest.mark.parametrize("header", [b"", b"\xff\xfe", b'"open', b"x" * 200_000], ids=lambda header: repr(header[:5]))
def test_what_is_no_header_is_said_to_be_none(header: bytes) -> None:
    with pytest.raises(HeaderError):
        list(read_csv([header], RETAIL))


@pytest.mark.parametrize("empty", [[], [b""], [b"\n"], [b"\xef\xbb\xbf"], [b",,\r\n"]])
def test_an_empty_file_is_said_to_be_empty(empty: list[bytes]) -> None:
    with pytest.raises(HeaderError, match="empty"):
        list(read_csv(empty, RETAIL))


ORDER = {
    "orderId": "ord_1",
    "customerId": "cus_1",
    "currency": "EUR",
    "lines": [{"sku": "pen", "quantity": 2, "unitPriceMinor": 345}],
}


def test_each_json_line_is_an_order_and_a_bad_one_is_refused_by_its_line() -> None:
    one, two, three, four, five = read_json_lines(
        [
            b"\xef\xbb\xbf" + json.dumps(ORDER).encode() + b"\r\n",
            b"\n",
            json.dumps(ORDER | {"currency": "eur"}).encode(),
            b'{"orderId": ',
            json.dumps(ORDER | {"orderId": 7}).encode(),
            json.dumps(ORDER | {"orderId": "ord_2", "placedAt": "2026-09-29T10:30:00Z"}).encode(),
        ]
    )
    assert placed(one).lines[0].unit_price_minor == 345
    assert [each.line for each in (two, three, four)] == [3, 4, 5]
    assert all(isinstance(each, Refusal) for each in (two, three, four))
    assert "currency" in two.reason  # type: ignore[union-attr]
    assert "orderId" in four.reason  # type: ignore[union-attr]
    assert placed(five).placed_at == datetime(2026, 9, 29, 10, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (json.dumps(ORDER)[:-1] + ', "customerId": "cus_2"}', "1 field names occur twice in one object"),
        (json.dumps(ORDER).replace('"sku"', '"quantity": 1, "sku"'), "1 field names occur twice in one object"),
        (
            json.dumps(ORDER).replace("345", "-1"),
            "lines.0.unitPriceMinor: Input should be greater than or equal to 0",
        ),
        (json.dumps(ORDER | {"currency": "eur"}), "currency: not an ISO 4217 currency code"),
        (json.dumps(ORDER | {"order_no": 1}), "order_no: Extra inputs are not permitted"),
    ],
)
def test_a_json_line_is_refused_in_the_words_of_the_file(line: str, reason: str) -> None:
    assert list(read_json_lines(lines(line))) == [Refusal(1, reason)]


# --- Whatever stands in a line -------------------------------------------------------------------------

TIME_BEYOND_UTC = pytest.mark.parametrize("time", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])


@TIME_BEYOND_UTC
def test_a_json_line_with_a_time_that_utc_does_not_have_spoils_only_itself(time: str) -> None:
    refusal, other = read_json_lines(lines(json.dumps(ORDER | {"placedAt": time}), json.dumps(ORDER)))
    assert isinstance(refusal, Refusal)
    assert (refusal.line, "placed_at" in refusal.reason or "placedAt" in refusal.reason) == (1, True)
    assert placed(other).order_id == "ord_1"


@TIME_BEYOND_UTC
def test_a_csv_row_with_a_time_that_utc_does_not_have_spoils_only_its_order(time: str) -> None:
    header = "order_id,customer_id,sku,quantity,unit_price,time"
    rows = read_csv(lines(header, f"o-1,c,pen,1,1.00,{time}", "o-2,c,pen,1,1.00,"), CsvLayout(currency="EUR"))
    refusal, other = rows
    assert isinstance(refusal, Refusal)
    assert (refusal.line, "placed_at" in refusal.reason) == (2, True)
    assert placed(other).order_id == "o-2"


FIELDS = st.sampled_from([b"", b"X1", b"85123A", b"6", b"-1", b"9" * 5_000, b"12/1/10 8:26", b"1.", b".", b"1.85"])
ANY_LINE = st.one_of(
    st.binary(max_size=60),
    st.lists(FIELDS | st.binary(max_size=8), min_size=6, max_size=6).map(b",".join),
    st.sampled_from([b"[" * 10_000, b'{"orderId":"\\ud800"}', b"1e999", b"x" * 140_000, b'"']),
)
ONE_LINE = ANY_LINE.map(lambda line: line.replace(b"\n", b"")).filter(lambda line: b"ord_1" not in line)


@given(ONE_LINE, ONE_LINE)
def test_no_bytes_in_a_csv_row_raise_and_the_rows_around_them_are_read(one: bytes, two: bytes) -> None:
    good = "ord_1,85123A,6,12/1/10 8:26,2.55,17850"
    orders = [each.command for each in retail(one, good, two, good) if isinstance(each, Entry)]
    assert [len(each.lines) for each in orders if isinstance(each, PlaceOrder) and each.order_id == "ord_1"] == [2]


@given(ONE_LINE)
def test_no_bytes_in_a_csv_header_raise_anything_but_a_header_error(header: bytes) -> None:
    with pytest.raises(HeaderError):
        list(read_csv([header, b"1,2,3,4,5,6"], RETAIL))


@given(ONE_LINE, ONE_LINE)
def test_no_bytes_in_a_json_line_raise_and_the_lines_around_them_are_read(one: bytes, two: bytes) -> None:
    good = json.dumps(ORDER)
    assert {2, 4} <= {each.line for each in read_json_lines(lines(one, good, two, good)) if isinstance(each, Entry)}
