"""Which failures of a handler are waited out, which are tried again, and which end in quarantine at once."""

import psycopg
import pytest
from psycopg.errors import lookup

from infrastructure.postgres import StoreUnavailable
from projections.faults import Fault, HandlerWaits, StopAsked, TooSlow, fault_of, is_no_event_at_fault

BY_SQLSTATE = {
    Fault.MOMENT: "08000 08006 25006 25P03 40001 40003 40P01 53100 53300 55P03 57014 57P01 57P02 57P03 57P05",
    Fault.INSTALLATION: "0A000 26000 28000 28P01 3D000 3F000 42501 42703 42883 42P01 58000 58030 XX001 XX002",
    Fault.EVENT: "22001 22003 22021 22P02 22P05 23502 23503 23505 23514 23P01",
    Fault.HANDLER: "25P02 42601 42804 54000 P0001 XX000",
}
CASES = [(sqlstate, fault) for fault, sqlstates in BY_SQLSTATE.items() for sqlstate in sqlstates.split()]


@pytest.mark.parametrize(("sqlstate", "fault"), CASES)
def test_an_error_of_the_database_is_told_by_its_sqlstate(sqlstate: str, fault: Fault) -> None:
    assert fault_of(lookup(sqlstate)()) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), Fault.MOMENT),
        (psycopg.OperationalError("the connection is closed"), Fault.MOMENT),
        (psycopg.DatabaseError("SSL SYSCALL error: EOF detected"), Fault.MOMENT),
        (StoreUnavailable("OperationalError"), Fault.MOMENT),
        (StopAsked(), Fault.MOMENT),
        (TooSlow(), Fault.MOMENT),
        (HandlerWaits("the price list of the day is not there yet"), Fault.MOMENT),
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), Fault.EVENT),
        (psycopg.ProgrammingError("the query has 2 placeholders but 3 parameters were passed"), Fault.HANDLER),
        (psycopg.InterfaceError("the cursor is closed"), Fault.HANDLER),
        (psycopg.NotSupportedError("cannot do that"), Fault.HANDLER),
        (ValueError("08006"), Fault.HANDLER),
        (KeyError("sku"), Fault.HANDLER),
        (ConnectionRefusedError("by whomever the handler called"), Fault.HANDLER),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_an_error_without_sqlstate_is_told_by_its_type(error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault


@pytest.mark.parametrize("fault", Fault)
def test_only_a_fault_of_the_moment_or_the_installation_is_waited_out(fault: Fault) -> None:
    sqlstate = BY_SQLSTATE[fault].split()[0]
    assert is_no_event_at_fault(lookup(sqlstate)()) == (fault in (Fault.MOMENT, Fault.INSTALLATION))
