"""Makes a projection's tables anew from all events, beside the live ones, and lets the two change places."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

from projections.rebuilding import state
from projections.rebuilding.compared import Compared
from projections.rebuilding.differences import Differences
from projections.rebuilding.errors import RebuildRefused, TablesDiffer
from projections.rebuilding.session import Holding, Session, Tell, holding, session
from projections.rebuilding.state import Rebuild, State
from projections.rebuilding.swap import Swapped
from projections.rebuilding.target import Target
from projections.rebuilding.topic_reader import RecordsGone

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """workers: None for as many as it was begun with, at first one. swap: False to end after the comparison.

    patience: seconds to wait for the live runner to come as far as the rebuild, and then for the swap's locks.
    from_topics: to read the projection's topics instead of the store. accept_missing: also when those do not begin
    with their first record any more, or are compacted.
    """

    workers: int | None = None
    swap: bool = True
    accept_differences: bool = False
    patience: float = 60.0
    from_topics: bool = False
    accept_missing: bool = False


@dataclass(frozen=True)
class Outcome:
    """compared: table by table. swapped: None when there was no swap.

    stopped: it was told to stop; the same command goes on from there. left_out: positions of events that somebody has
    skipped; neither the live nor the new tables have them.
    """

    compared: Sequence[Compared] = ()
    swapped: Swapped | None = None
    stopped: bool = False
    left_out: Sequence[int] = ()


_USUAL = Options()


def _silent(*_: object) -> None:
    """Nobody is told."""


def rebuild(target: Target, stop: Event, options: Options = _USUAL, tell: Tell = _silent) -> Outcome:
    """From the beginning, or from where an interrupted one has come to.

    Guarantees: the live tables change only in the swap, which readers see as one moment. Nothing is published, no
    effect is sent, no live position moves before the swap. Killed at any moment, it can be run again.
    Raises RebuildRefused, RebuildStopped, TablesDiffer, SwapBusy and the others of rebuilding.errors, psycopg.Error;
    from topics TopicsUnreadable and RecordsGone.
    """
    with session(target, options.from_topics) as work:
        found = state.read(work.connection, target.name)
        if found is None:
            _tell_of_what_is_gone(work, options.accept_missing)
            work.begin(options.workers or 1)
        else:
            _refuse_another(work, found, options)
        work.fill(stop, tell)
        if stop.is_set():
            return Outcome(stopped=True, left_out=work.source.left_out)
        work.finish()
        differences = work.compare(stop, options.patience, tell)
        if not options.swap:
            return _compared(work, differences, options)
        swapped = work.swap(differences, stop, options.patience, tell, options.accept_differences)
        return Outcome(differences.tables, swapped, stopped=swapped is None, left_out=work.source.left_out)


def roll_back(target: Target, stop: Event, patience: float = 60.0, tell: Tell = _silent) -> Swapped | None:
    """Back to the tables that were live before the swap, once they have caught up; None when it was told to stop.

    The tables that it leaves are kept in their place: rolling back again goes forward. Raises as `rebuild` does.
    """
    with session(target) as work:
        found = _swapped(work)
        if found.version != target.projection.version:
            reason = f"the former tables are of version {found.version}: run this with the code of that version"
            raise RebuildRefused(target.name, reason)
        if not found.returnable:
            reason = "at the swap the former tables did not hold the same events as the new ones"
            raise RebuildRefused(target.name, f"{reason}: rebuild with the former code instead")
        try:
            work.fill(stop, tell)
            if stop.is_set():
                return None
            # Of the rows nothing is compared; but what is refused would be lost.
            return work.swap(Differences(target, work.live), stop, patience, tell)
        except TablesDiffer as differ:
            reason = f"the former tables would not hold the same events: {'; '.join(differ.differences)}"
            raise RebuildRefused(target.name, f"{reason}: rebuild with the former code instead") from None
        except RecordsGone as gone:
            reason = (
                f"what came after the swap is gone from {gone.topic}/{gone.partition}, from offset {gone.offset} on"
            )
            advice = "there is no way back any more: `rebuild confirm` it, and rebuild with the former code instead"
            raise RebuildRefused(target.name, f"{reason}: {advice}") from None


def confirm(target: Target) -> None:
    """Drops the tables that were live before the swap. Raises RebuildRefused."""
    with holding(target) as work:
        _swapped(work)
        work.drop()


def abandon(target: Target) -> None:
    """Drops what an unfinished rebuild has made. Raises RebuildRefused."""
    with holding(target) as work:
        if work.rebuild.state is not State.FILLING:
            raise RebuildRefused(target.name, "it is swapped: confirm it or roll it back")
        work.drop()


def _refuse_another(work: Session, found: Rebuild, options: Options) -> None:
    name, version = work.target.name, work.target.projection.version
    if found.state is State.SWAPPED:
        raise RebuildRefused(name, "the former tables are still there: `rebuild confirm` or `rebuild rollback` first")
    if found.version != version:
        reason = f"it was begun by code of version {found.version}, and this is {version}: `rebuild abandon` it first"
        raise RebuildRefused(name, reason)
    workers = len(state.progress(work.connection, name).positions)
    if not work.source.partitions and options.workers not in (None, workers):
        raise RebuildRefused(name, f"it was begun with {workers} workers: go on with so many, or `rebuild abandon` it")


def _tell_of_what_is_gone(work: Session, accept: bool) -> None:
    gone = work.source.gone()
    if not gone:
        return
    if not accept:
        advice = "what is gone would be missing in the new tables. Rebuild it from the store, or add --accept-missing"
        raise RebuildRefused(work.target.name, f"{'; '.join(gone)}: {advice}")
    about = {"consumer": work.target.name, "gone": gone}
    logger.warning("the topics do not hold all records: what is gone is missing in the new tables", extra=about)


def _swapped(work: Holding) -> Rebuild:
    found = work.rebuild
    if found.state is not State.SWAPPED:
        raise RebuildRefused(work.target.name, "it is not swapped yet")
    return found


def _compared(work: Session, differences: Differences, options: Options) -> Outcome:
    told = differences.that_remain(work.connection)
    if told and not options.accept_differences:
        raise differences.error(told)
    return Outcome(differences.tables, left_out=work.source.left_out)
