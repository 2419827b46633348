"""The workers that fill the other tables: one in a thread of this process, or several in processes of their own."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event as SharedEvent
from threading import Event, Thread

import psycopg

from domain.loading import load_business
from infrastructure import logs
from infrastructure.backoff import Backoff
from infrastructure.garbage import collect_rarely
from infrastructure.postgres import cause_of, is_transient
from infrastructure.settings import Settings
from infrastructure.supervisor import beat
from projections.rebuilding.errors import RebuildStopped, Superseded, WorkerFailed
from projections.rebuilding.fill import Filler
from projections.rebuilding.opening import opened
from projections.rebuilding.source import Place
from projections.rebuilding.target import Target
from projections.rebuilding.topic_reader import TopicsUnreadable

logger = logging.getLogger(__name__)

MOST_SUPERSEDED = 5
"""A worker of a process that was killed may still end its last transaction; then the place is read again."""

_TURN = 0.5
"""Seconds between two looks at how far the workers are."""

_GRACE = 10.0
"""Seconds for workers to end after they were told to."""


def fill(target: Target, places: Sequence[Place], stop: Event, tell: Callable[[], None]) -> None:
    """Until each worker has come to the end of what is stored, or was told to stop. tell: called now and then.

    Raises RebuildStopped, Superseded, WorkerFailed, psycopg.Error; by then no worker works any more.
    """
    if len(places) > 1:
        _in_processes(target, places, stop, tell)
        return
    ended = Event()
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work, target, places[0], stop)
        working.add_done_callback(lambda _: ended.set())
        try:
            while not ended.wait(_TURN):
                tell()
        except BaseException:
            stop.set()  # or leaving would wait until all that is stored is read
            raise
        working.result()


def work(target: Target, place: Place, stop: Event | SharedEvent) -> None:
    """One worker, until it has come to the end or is told to stop. Waits for a database or a Kafka that is away."""
    backoff, superseded = Backoff(base=0.2, cap=5.0), 0
    while not stop.is_set():
        try:
            with target.connect_other() as other, opened(target, other, place.live, place.partitions) as source:
                filler = Filler(target, place, source, other)
                while not stop.is_set() and not filler.step().ended:
                    beat(f"rebuild {target.name}")
                    backoff.reset()
            return
        except Superseded:
            superseded += 1
            if superseded == MOST_SUPERSEDED:
                raise
        except psycopg.Error as error:
            if not is_transient(error):
                raise
            logger.warning("the rebuild waits", extra={"consumer": target.name, "error": cause_of(error)})
        except TopicsUnreadable as error:
            logger.warning("the rebuild waits", extra={"consumer": target.name, "error": error.error})
        stop.wait(backoff.next_delay())


def _in_processes(target: Target, places: Sequence[Place], stop: Event, tell: Callable[[], None]) -> None:
    context = multiprocessing.get_context("spawn")  # a forked child would share our connections
    told_to_stop = context.Event()
    workers: list[BaseProcess] = []
    pipes: list[Pipe] = []
    with ExitStack() as cleanup:
        cleanup.callback(_end, workers, told_to_stop)
        for place in places:
            ours, theirs = context.Pipe(duplex=False)
            named = (target.module, target.store_dsn, target.dsn)  # through a pipe, so that no DSN is an argument
            worker = context.Process(target=_work_in_process, args=(named, place, told_to_stop, theirs), daemon=True)
            worker.start()
            theirs.close()
            workers.append(worker)
            pipes.append(ours)
        while pipes and not stop.is_set():
            for pipe in wait(pipes, timeout=_TURN):
                pipes.remove(pipe)  # type: ignore[arg-type]
                _raise_what_it_says(target, pipe)  # type: ignore[arg-type]
            tell()


def _end(workers: Sequence[BaseProcess], told_to_stop: SharedEvent) -> None:
    told_to_stop.set()
    for worker in workers:
        worker.join(_GRACE)
        if worker.is_alive():
            worker.kill()
            worker.join(_GRACE)


def _work_in_process(named: tuple[str, str, str], place: Place, stop: SharedEvent, pipe: Pipe) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to us too; the parent tells us to stop
    Thread(target=_end_with_the_parent, daemon=True).start()
    settings = Settings.load()
    logs.configure(settings.log_format, settings.log_level)
    load_business()
    collect_rarely()
    try:
        work(Target.of(*named), place, stop)
        pipe.send(None)
    except RebuildStopped as error:
        pipe.send((error.position, error.event_id, error.problem))
    except Exception as error:
        pipe.send(cause_of(error))
        raise


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _raise_what_it_says(target: Target, pipe: Pipe) -> None:
    try:
        said = pipe.recv()
    except EOFError:
        said = "it was killed"
    if isinstance(said, tuple):
        raise RebuildStopped(target.name, *said)
    if said is not None:
        raise WorkerFailed(target.name, said)
