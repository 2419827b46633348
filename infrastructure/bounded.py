"""Calls into a client that may wait for a server without end, waited for only so long."""

from collections.abc import Callable
from threading import Thread


def start(call: Callable[[], object], name: str) -> Thread:
    """Runs it in a thread that does not keep the process from ending."""
    thread = Thread(target=call, name=name, daemon=True)
    thread.start()
    return thread


def within(seconds: float, call: Callable[[], object], name: str) -> bool:
    """Runs it; True when it has ended in time. Otherwise it goes on in its thread, and must not be started again."""
    thread = start(call, name)
    thread.join(seconds)
    return not thread.is_alive()
