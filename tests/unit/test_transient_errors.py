"""Which database errors pass by themselves."""

import psycopg
import pytest
from psycopg.errors import lookup

from infrastructure.postgres import StoreUnavailable, is_transient

TRANSIENT = "08006 08P01 25006 25P03 40001 40003 40P01 53100 53300 55P03 57014 57P01 57P02 57P03 57P05".split()
PERMANENT = "22001 22021 23502 23505 23514 42P01 42501 0A000 XX000".split()


@pytest.mark.parametrize("sqlstate", TRANSIENT)
def test_a_fault_of_the_server_or_the_moment_is_transient(sqlstate: str) -> None:
    assert is_transient(lookup(sqlstate)())


@pytest.mark.parametrize("sqlstate", PERMANENT)
def test_a_fault_of_the_statement_or_its_data_is_permanent(sqlstate: str) -> None:
    assert not is_transient(lookup(sqlstate)())


def test_a_lost_connection_has_no_sqlstate_and_is_transient() -> None:
    assert is_transient(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert is_transient(psycopg.DatabaseError("SSL SYSCALL error"))
    assert is_transient(StoreUnavailable("OperationalError"))


def test_what_psycopg_itself_refuses_has_no_sqlstate_and_is_permanent() -> None:
    assert not is_transient(psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"))
    assert not is_transient(psycopg.ProgrammingError("the query has 2 placeholders but 3 parameters were passed"))


def test_other_errors_are_permanent() -> None:
    assert not is_transient(ValueError("no"))
