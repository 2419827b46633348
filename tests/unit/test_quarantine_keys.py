"""A key in quarantine as text: whatever its bytes are, what `list` shows is what `redrive` takes."""

import pytest

from counterfoil.quarantine_incoming import _parse, _text_of
from projections.entries import ParkedKey


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"ord_1", "ord_1"),
        ("Bestellung ä".encode(), "Bestellung ä"),
        (b"", "hex:"),
        (b"\xa2\x00", "hex:a200"),
        (b"two\nlines", "hex:74776f0a6c696e6573"),
        (b"hex:00", "hex:6865783a3030"),
        (b"entry:7", "hex:656e7472793a37"),
    ],
)
def test_every_key_has_a_text_that_names_it_alone(key: bytes, text: str) -> None:
    assert _text_of(key, 7) == text
    assert _parse(text) == ParkedKey(key)


def test_a_record_without_a_key_is_named_by_its_entry() -> None:
    assert _text_of(None, 7) == "entry:7"
    assert _parse("entry:7") == ParkedKey(None, 7)


@pytest.mark.parametrize("text", ["hex:zz", "entry:", "entry:x"])
def test_what_names_no_key_is_taken_as_the_key_it_spells(text: str) -> None:
    assert _parse(text) == ParkedKey(text.encode())
