"""Money is exact or refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.money import to_minor_units


@pytest.mark.parametrize(
    ("amount", "currency", "minor"),
    [
        ("13.45", "EUR", 1345),
        ("13", "EUR", 1300),
        ("0.3", "EUR", 30),
        ("1000", "JPY", 1000),
        ("1.234", "KWD", 1234),
        ("27.50", "GBP", 2750),
        ("13.450", "EUR", 1345),
        ("0", "EUR", 0),
        ("99999999999999999999.99", "EUR", 9999999999999999999999),
        ("99999999999999999999999999999999.99", "EUR", 9999999999999999999999999999999999),
        (".5", "EUR", 50),
        (".0", "JPY", 0),
        ("5.", "EUR", 500),
    ],
)
def test_an_amount_becomes_its_exact_minor_units(amount: str, currency: str, minor: int) -> None:
    assert to_minor_units(amount, currency) == minor


@pytest.mark.parametrize(
    ("amount", "currency"),
    [
        ("13.455", "EUR"),
        ("1000.5", "JPY"),
        ("1.0000000000000000000000000000001", "EUR"),
        ("99999999999999999999999999999999.999", "EUR"),
        ("9" * 5_000, "EUR"),
        ("1.2.3", "EUR"),
        ("1\n", "EUR"),
        ("1.2345", "KWD"),
        (str(0.1 + 0.2), "EUR"),
        ("-1", "EUR"),
        ("+1", "EUR"),
        ("1e3", "EUR"),
        ("1,000", "EUR"),
        ("1_000", "EUR"),
        ("", "EUR"),
        (".", "EUR"),
        (" 1", "EUR"),
        ("NaN", "EUR"),
        ("\u0661", "EUR"),
        ("1", "XXX"),
        ("1", "eur"),
    ],
)
def test_what_would_need_rounding_or_guessing_is_refused(amount: str, currency: str) -> None:
    with pytest.raises(ValueError, match=r"currency code|decimal"):
        to_minor_units(amount, currency)


@given(st.text("0123456789", max_size=50), st.text("0123456789", max_size=50), st.sampled_from(["EUR", "JPY", "KWD"]))
def test_an_amount_is_its_exact_fraction_or_refused(whole: str, decimals: str, currency: str) -> None:
    units = {"EUR": 100, "JPY": 1, "KWD": 1000}[currency]
    exact = Fraction(int(whole + decimals), 10 ** len(decimals)) * units if whole + decimals else None
    try:
        assert to_minor_units(f"{whole}.{decimals}", currency) == exact
    except ValueError:
        assert exact is None or exact.denominator != 1
