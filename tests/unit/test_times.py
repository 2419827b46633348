"""A time is read when it is RFC 3339 with a zone, wherever it comes from, and is kept in UTC."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from domain.values import UtcTime

TIME: TypeAdapter[datetime] = TypeAdapter(UtcTime)
RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


USUAL = ("2026", "-", "09", "-", "28", "T", "23", ":", "30", ":", "59", ".123456", "Z")
UNUSUAL = (
    ("0001", "9999", "0000", "12026", "26", "\u0662\u0660\u0662\u0666"),
    ("", "/", "\n"),
    ("00", "01", "02", "12", "13", "9", "\u0660\u0669"),
    ("", "/", "\n"),
    ("00", "01", "29", "30", "31", "32", "9", "\u0660\u0669"),
    ("t", " ", "_", "", "TT"),
    ("00", "24", "25", "9", ""),
    ("", ".", "::"),
    ("00", "60", "9", ""),
    ("", ".", "::"),
    ("00", "60", "61", "9", "", "\u0665\u0669"),
    ("", ".1", ".1234567", ".000", ".", ",123", ".\u0665"),
    ("z", "+02:00", "-23:59", "+00:00", "-00:00", "+24:00", "+0200", "+02", "", "\uff3a", "Z ", "Z\n", "Z\0", " Z"),
)


@st.composite
def like_times(draw: st.DrawFn) -> str:
    """A time of which up to two parts are not as usual; they may be right all the same."""
    parts = list(USUAL)
    for place in draw(st.lists(st.integers(0, len(USUAL) - 1), min_size=1, max_size=2)):
        parts[place] = draw(st.sampled_from(UNUSUAL[place]))
    return "".join(parts)


def moment_of(text: str) -> datetime | None:
    """What the text means, as the standard library reads it; None when it is no time of the years 1 to 9999."""
    if not (found := RFC3339.fullmatch(text)):
        return None
    day, hour, fraction, zone = found.groups()
    if hour.startswith("24"):  # the standard library takes it for the next midnight from 3.14 on
        return None
    try:
        time = datetime.fromisoformat(f"{day}T{hour}.{(fraction or '').ljust(6, '0')[:6]}{zone.upper()}")
        return time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def read(json: bytes) -> datetime | None:
    try:
        return TIME.validate_json(json)
    except ValidationError:
        return None


@given(like_times())
@settings(max_examples=500)
def test_a_text_is_read_when_it_is_rfc_3339_and_as_the_moment_it_means(text: str) -> None:
    assert read(to_json(text)) == moment_of(text)


@given(like_times())
@settings(max_examples=500)
def test_a_text_given_in_python_is_refused_in_the_same_words_as_one_in_json(text: str) -> None:
    def outcome(python: bool) -> object:
        try:
            return TIME.validate_python(text) if python else TIME.validate_json(to_json(text))
        except ValidationError as error:
            return [(each["type"], each["loc"], each["msg"]) for each in error.errors()]

    assert outcome(python=True) == outcome(python=False)


@given(st.datetimes(timezones=st.timezones()), st.integers(-1439, 1439))
def test_whatever_its_zone_was_it_is_kept_in_utc(time: datetime, minutes: int) -> None:
    for given_in in (time, time.replace(tzinfo=timezone(timedelta(minutes=minutes)))):
        try:
            moment = given_in.astimezone(UTC)
        except OverflowError:
            continue
        kept = TIME.validate_python(given_in)
        assert (kept, kept.tzname()) == (moment, "UTC")


@pytest.mark.parametrize("value", [1790678200, 1790678200.5, "1790678200", "2026-09-29", b"2026-09-29T10:30:00Z", None])
def test_what_is_no_time_is_refused_in_words_that_say_what_is(value: object) -> None:
    with pytest.raises(ValidationError, match="a time must be RFC 3339 text with a zone"):
        TIME.validate_python(value)


@pytest.mark.parametrize("value", [1, 1.5, "1790678200", "2026-09-29 10:30:00Z", b"2026-09-29T10:30:00Z"])
def test_what_is_no_time_is_refused_also_by_a_caller_who_is_not_strict(value: object) -> None:
    with pytest.raises(ValidationError, match="a time must be RFC 3339 text with a zone"):
        TIME.validate_python(value, strict=False)
