"""A server whose sessions can only read from now on, as those of one that is no longer the primary."""

import psycopg

from tests.support.wait import eventually


def becomes_read_only(server: str, read_only: bool) -> None:
    """server: DSN of a superuser. Afterwards it holds for every session, also those that are open.

    A new session shows the setting only after the server has told all the others; each of those takes it
    over before its next command.
    """
    wanted = "on" if read_only else "off"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(f"ALTER SYSTEM SET default_transaction_read_only = {wanted}")
        admin.execute("SELECT pg_reload_conf()")
    eventually(lambda: _of_a_new_session(server) == wanted)


def _of_a_new_session(server: str) -> str:
    with psycopg.connect(server) as session:
        (shown,) = session.execute("SHOW default_transaction_read_only").fetchone() or ("",)
    return str(shown)
