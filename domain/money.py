"""Money arrives as a decimal text and is kept as a whole number of minor units."""

import re

MINOR_UNITS: dict[str, int] = {
    **dict.fromkeys(
        "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF "
        "CHF CNY COP CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD "
        "HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA "
        "MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN "
        "QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP "
        "TRY TTD TWD TZS UAH USD UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG".split(),
        2,
    ),
    **dict.fromkeys("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF".split(), 0),
    **dict.fromkeys("BHD IQD JOD KWD LYD OMR TND".split(), 3),
}
"""Decimals of each currency in circulation, as ISO 4217 lists them (funds codes, metals and XXX left out)."""

_AMOUNT = re.compile(r"(?=\.?[0-9])(?P<whole>[0-9]{0,100})(\.(?P<fraction>[0-9]{0,100}))?")


def to_minor_units(amount: str, currency: str) -> int:
    """The amount as a whole number of minor units: "13.45" EUR is 1345, "1000" JPY is 1000.

    amount: decimal digits, at most 100 on each side of one point, no sign, no exponent, no thousands separator.

    Raises ValueError when the text is not such a number, the currency is unknown, or the amount has
    more decimals than the currency; nothing is ever rounded.
    """
    if currency not in MINOR_UNITS:
        raise ValueError(f"{currency!r} is not an ISO 4217 currency code")
    decimals = MINOR_UNITS[currency]
    parts = _AMOUNT.fullmatch(amount)
    if parts is None:
        raise ValueError(f"{amount!r} is not a decimal amount")
    whole, fraction = parts["whole"] or "0", (parts["fraction"] or "").rstrip("0")
    if len(fraction) > decimals:
        raise ValueError(f"{amount!r} has more than the {decimals} decimals of {currency}")
    return int(whole + fraction.ljust(decimals, "0"))
