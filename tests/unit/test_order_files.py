"""Importing orders: one bad line never stops the rest, and every refusal says its line and its reason."""

import json
from datetime import UTC, datetime

import pytest

from counterfoil.order_files import Columns, CsvLayout, Entry, HeaderError, Refusal, read_csv, read_json_lines
from domain.orders.commands import CancelOrder, PlaceOrder

RETAIL = CsvLayout(
    columns=Columns("InvoiceNo", "CustomerID", "StockCode", "Quantity", "UnitPrice", "Currency", "InvoiceDate"),
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
    refusal, left_out, other = retail(
        "536365,85123A,6,12/1/10 8:26,2.55,17850", row, "536367,22633,1,12/1/10 8:28,1.85,17850"
    )
    assert isinstance(refusal, Refusal)
    assert refusal.line == 3
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


def test_a_wrong_time_is_refused() -> None:
    (refusal,) = retail("536365,85123A,6,2010-12-01,2.55,17850")
    assert refusal == Refusal(2, "time is not %m/%d/%y %H:%M")


def test_a_missing_column_is_named_before_any_row_is_read() -> None:
    with pytest.raises(HeaderError, match="StockCode"):
        list(read_csv(lines("InvoiceNo,Quantity,UnitPrice,CustomerID", "1,1,1,1"), RETAIL))


def test_an_empty_file_is_a_header_error() -> None:
    with pytest.raises(HeaderError):
        list(read_csv([], RETAIL))


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
    assert "order_id" in four.reason  # type: ignore[union-attr]
    assert placed(five).placed_at == datetime(2026, 9, 29, 10, 30, tzinfo=UTC)
