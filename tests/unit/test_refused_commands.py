"""Which texts a handler cannot send while statements are sent ahead, however they are written."""

import pytest

from projections.refused_commands import refused_command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("SAVEPOINT a", "SAVEPOINT"),
        ("rollback to a", "ROLLBACK"),
        ("Release a", "RELEASE"),
        ("BEGIN", "BEGIN"),
        ("start transaction", "START"),
        ("COMMIT;", "COMMIT"),
        ("end", "END"),
        ("ABORT", "ABORT"),
        ("COPY t FROM '/file'", "COPY"),
        (" \n\t; ;ROLLBACK", "ROLLBACK"),
        ("-- why\nROLLBACK", "ROLLBACK"),
        ("-- why\r-- and why\n ROLLBACK", "ROLLBACK"),
        ("/* why */ROLLBACK", "ROLLBACK"),
        ("/* SELECT /* why **/ */ -- so\n /**/ ROLLBACK", "ROLLBACK"),
        ("PREPARE /* it */ TRANSACTION 'a'", "PREPARE TRANSACTION"),
    ],
)
def test_a_command_that_ends_or_undoes_what_others_did_is_found(text: str, command: str) -> None:
    assert refused_command(text) == command


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "(SELECT 1)",
        "INSERT INTO t VALUES ('; ROLLBACK')",
        "-- ROLLBACK\nSELECT 1",
        "-- ROLLBACK",
        "/* ROLLBACK */ SELECT 1",
        "/* /* */ ROLLBACK",
        "rollback_all",
        "ENDING",
        "PREPARE transaction_of AS SELECT 1",
        "PREPARE a AS SELECT 1",
    ],
)
def test_any_other_is_let_through(text: str) -> None:
    assert refused_command(text) is None
