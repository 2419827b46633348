"""The offset to commit, from any order of finishing."""

import random

from hypothesis import given
from hypothesis import strategies as st

from infrastructure.progress import Progress
from infrastructure.record import Record


def record(offset: int) -> Record:
    return Record("orders", 0, offset, None, None, (), None)


def progress_with(*offsets: int) -> Progress:
    progress = Progress()
    for offset in offsets:
        progress.add(record(offset))
    return progress


def test_nothing_is_due_before_anything_came() -> None:
    assert Progress().due is None


def test_the_first_unfinished_record_holds_the_offset() -> None:
    progress = progress_with(5, 6, 7)
    progress.finish(6)
    progress.finish(7)
    assert progress.due == 5
    assert progress.unfinished == [record(5)]
    progress.finish(5)
    assert progress.due == 8


def test_offsets_that_are_missing_in_the_topic_hold_nothing() -> None:
    progress = progress_with(5, 9)
    progress.finish(5)
    assert progress.due == 9
    progress.finish(9)
    assert progress.due == 10


def test_what_is_committed_is_not_due_again() -> None:
    progress = progress_with(5)
    progress.finish(5)
    progress.committed(6)
    assert progress.due is None
    progress.add(record(6))
    assert progress.due is None
    progress.finish(6)
    assert progress.due == 7


@given(st.sets(st.integers(0, 50), min_size=1), st.randoms())
def test_the_offset_never_passes_an_unfinished_record(offsets: set[int], chance: random.Random) -> None:
    progress = progress_with(*sorted(offsets))
    left = set(offsets)
    for offset in sorted(offsets, key=lambda _: chance.random()):
        progress.finish(offset)
        left.discard(offset)
        assert progress.due == (min(left) if left else max(offsets) + 1)
