"""Money is exact or refused."""

import pytest

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
    ],
)
def test_an_amount_becomes_its_exact_minor_units(amount: str, currency: str, minor: int) -> None:
    assert to_minor_units(amount, currency) == minor


@pytest.mark.parametrize(
    ("amount", "currency"),
    [
        ("13.455", "EUR"),
        ("1000.5", "JPY"),
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
