"""Money arrives as a decimal text and is kept as a whole number of minor units."""

from decimal import Decimal, InvalidOperation

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


def to_minor_units(amount: str, currency: str) -> int:
    """The amount as a whole number of minor units: "13.45" EUR is 1345, "1000" JPY is 1000.

    amount: decimal digits, at most one point, no sign, no exponent, no thousands separator.

    Raises ValueError when the text is not such a number, the currency is unknown, or the amount has
    more decimals than the currency; nothing is ever rounded.
    """
    if currency not in MINOR_UNITS:
        raise ValueError(f"{currency!r} is not an ISO 4217 currency code")
    decimals = MINOR_UNITS[currency]
    if not amount.isascii() or not amount.replace(".", "", 1).isdigit():
        raise ValueError(f"{amount!r} is not a decimal amount")
    try:
        minor = Decimal(amount).scaleb(decimals)
    except InvalidOperation:
        raise ValueError(f"{amount!r} is not a decimal amount") from None
    if minor != minor.to_integral_value():
        raise ValueError(f"{amount!r} has more than the {decimals} decimals of {currency}")
    return int(minor)
