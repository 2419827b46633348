"""Value types that commands, events and contracts share. Each refuses what JSON, PostgreSQL or Kafka would bend."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, StringConstraints
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, TzInfo, core_schema

from domain.money import MINOR_UNITS

LARGEST_INTEGER = 2**53 - 1
"""The largest whole number that every JSON reader keeps exact (RFC 8259, section 6)."""


_READ_AS_UTC = TzInfo(0)
"""The zone of a time that pydantic has read as UTC: one object for all of them."""


def _in_utc(time: datetime) -> datetime:
    if time.tzinfo is _READ_AS_UTC:  # converting all the same would take some 5 % of what a message takes to make
        return time
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time must lie in the years 1 to 9999 of UTC") from None


_RFC3339 = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$"


class _Moment:
    """A datetime, or RFC 3339 text: a number, or a text of digits, would be taken for a Unix time.

    Texts are looked at without a call into Python, which would take as long as all the rest of reading a time.
    """

    def __get_pydantic_core_schema__(self, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(pattern=_RFC3339, strict=True)
        # By class, so that a caller's `strict=False` does not let in what would be taken for a Unix time.
        time, given_text = map(core_schema.is_instance_schema, (datetime, str))
        text_or_time = core_schema.union_schema(
            [time, core_schema.chain_schema([given_text, text])], mode="left_to_right"
        )
        written = core_schema.custom_error_schema(
            core_schema.json_or_python_schema(text, text_or_time),
            "value_error",
            custom_error_context={"error": "a time must be RFC 3339 text with a zone"},
        )
        read = core_schema.datetime_schema(tz_constraint="aware", strict=False)
        return core_schema.chain_schema([written, core_schema.no_info_after_validator_function(_in_utc, read)])

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(core_schema.datetime_schema())


class _OneOf:
    """A text that is one of these, looked up without a call into Python. refusal: said instead of listing them."""

    def __init__(self, texts: Iterable[str], refusal: str) -> None:
        self._texts = list(texts)
        self._refusal = refusal

    def __get_pydantic_core_schema__(self, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        one_of = core_schema.literal_schema(self._texts)
        return core_schema.custom_error_schema(one_of, "not_one_of", custom_error_message=self._refusal)


Identifier = Annotated[
    str,
    StringConstraints(min_length=1, max_length=128, pattern=r"^[^\p{Cc}\s]([^\p{Cc}]*[^\p{Cc}\s])?$"),
]
"""1 to 128 characters, no control character (NUL included), no white space at either end."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\p{Cc}]+$")]
"""1 to 500 characters, no control character."""

Currency = Annotated[str, _OneOf(MINOR_UNITS, "not an ISO 4217 currency code")]
"""An ISO 4217 code in upper case whose number of decimals is known."""

MinorUnits = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
"""Money as a whole number of the currency's minor unit: 1345 is 13.45 EUR, and 1345 JPY."""

Quantity = Annotated[int, Field(ge=1, le=1_000_000_000)]

UtcTime = Annotated[datetime, _Moment()]
"""A moment with a zone, kept in UTC, written as RFC 3339."""
