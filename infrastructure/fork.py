"""What a forked child must not share with its parent: connections, threads and locks."""

import os
from collections.abc import Callable
from weakref import WeakMethod


def in_each_forked_child(start_afresh: Callable[[], None]) -> None:
    """Calls the bound method in every child that this process forks, as long as its object lives.

    In the child no thread of the parent runs on and any lock may be held for ever; a connection is shared
    with the parent and must be neither used nor closed.
    """
    method = WeakMethod(start_afresh)

    def call() -> None:
        if alive := method():
            alive()

    os.register_at_fork(after_in_child=call)
