"""The offset to commit, from any order of finishing; and the order in which records are taken."""

import random

from hypothesis import given
from hypothesis import strategies as st

from infrastructure.progress import MOST_CHECKS, Came, Progress
from infrastructure.record import Record


def record(offset: int) -> Record:
    return Record("orders", 0, offset, None, None, (), None)


def take(progress: Progress, *offsets: int) -> list[Record]:
    """They come, also when the gaps between them are read once more."""
    records = [record(offset) for offset in offsets]
    for each in records:
        if progress.add(each) is Came.TOO_EARLY:
            progress.is_read_again()
            assert progress.add(each) is Came.AFTER_PROVED_GAP
    return records


def test_nothing_is_due_before_anything_came() -> None:
    assert Progress().due is None


def test_the_first_unfinished_record_holds_the_offset() -> None:
    progress = Progress()
    five, six, seven = take(progress, 5, 6, 7)
    progress.finish(six)
    progress.finish(seven)
    assert progress.due == 5
    assert progress.unfinished == [five]
    progress.finish(five)
    assert progress.due == 8


def test_offsets_that_are_missing_in_the_topic_hold_nothing() -> None:
    progress = Progress()
    five, nine = take(progress, 5, 9)
    progress.finish(five)
    assert progress.due == 9
    progress.finish(nine)
    assert progress.due == 10


def test_what_is_committed_is_not_due_again() -> None:
    progress = Progress()
    [five] = take(progress, 5)
    progress.finish(five)
    progress.committed(6)
    assert progress.due is None
    [six] = take(progress, 6)
    assert progress.due is None
    progress.finish(six)
    assert progress.due == 7


@given(st.sets(st.integers(0, 50), min_size=1), st.randoms())
def test_the_offset_never_passes_an_unfinished_record(offsets: set[int], chance: random.Random) -> None:
    progress = Progress()
    records = take(progress, *sorted(offsets))
    left = set(offsets)
    for each in sorted(records, key=lambda _: chance.random()):
        progress.finish(each)
        left.discard(each.offset)
        assert progress.due == (min(left) if left else max(offsets) + 1)


def test_a_record_is_not_finished_by_another_that_was_at_its_offset() -> None:
    """As after a topic was deleted and made again."""
    progress = Progress(5)
    old = take(progress, 5, 6, 7)
    new = [record(5), record(6)]
    assert progress.add(new[0]) is Came.AGAIN
    assert progress.add(new[1]) is Came.IN_ORDER
    for each in old:
        progress.finish(each)
    assert progress.due is None  # the new one at the start is not finished
    progress.finish(new[0])
    assert progress.due == 6


def test_the_offset_does_not_pass_a_record_that_came_before_the_client_went_back() -> None:
    progress = Progress(5)
    five, six, seven = take(progress, 5, 6, 7)
    progress.finish(five)
    again = record(5)
    assert progress.add(again) is Came.AGAIN
    assert progress.due is None  # the start
    progress.finish(again)
    assert progress.due == 6
    assert progress.unfinished == [six, seven]


def test_after_a_suspicious_record_nothing_is_taken_until_the_gap_is_read_again() -> None:
    progress = Progress(3)
    assert [progress.add(record(offset)) for offset in (153, 154, 3)] == [Came.TOO_EARLY] * 3
    assert (progress.next, progress.due, progress.unfinished) == (3, None, [])
    progress.is_read_again()
    assert [progress.add(record(offset)) for offset in (3, 4)] == [Came.FOUND, Came.IN_ORDER]


def test_a_gap_that_ends_at_another_record_each_time_is_not_passed() -> None:
    progress = Progress(3)
    for offset in range(100, 100 + MOST_CHECKS):
        assert progress.add(record(offset)) is Came.TOO_EARLY
        progress.is_read_again()
    assert [progress.add(record(offset)) for offset in (99, 100)] == [Came.UNPROVED, Came.TOO_EARLY]
    assert (progress.next, progress.due, progress.unfinished) == (3, None, [])


def test_a_gap_may_be_proved_with_the_last_reading() -> None:
    progress = Progress(3)
    for offset in range(100, 100 + MOST_CHECKS):
        assert progress.add(record(offset)) is Came.TOO_EARLY
        progress.is_read_again()
    assert progress.add(record(99 + MOST_CHECKS)) is Came.AFTER_PROVED_GAP


def test_gaps_no_wider_than_one_that_is_trusted_are_believed_until_the_client_may_begin_anew() -> None:
    progress = Progress(3)
    take(progress, 3, 6)
    progress.trust_gaps(2)
    assert [progress.add(record(offset)) for offset in (8, 11, 15)] == [Came.AFTER_GAP, Came.AFTER_GAP, Came.TOO_EARLY]
    progress.is_read_again()
    assert progress.add(record(15)) is Came.AFTER_PROVED_GAP
    progress.doubt()
    assert [progress.add(record(offset)) for offset in (16, 18)] == [Came.IN_ORDER, Came.TOO_EARLY]


def test_a_gap_that_is_read_again_is_not_believed_for_being_narrower_then() -> None:
    progress = Progress(3)
    take(progress, 3)
    progress.trust_gaps(10)
    assert progress.add(record(60)) is Came.TOO_EARLY
    progress.is_read_again()
    assert progress.add(record(12)) is Came.TOO_EARLY
    progress.is_read_again()
    assert progress.add(record(12)) is Came.AFTER_PROVED_GAP


def test_a_gap_that_was_only_proved_is_no_measure_for_others() -> None:
    """As when its records were deleted."""
    progress = Progress(3)
    take(progress, 503)
    assert progress.add(record(505)) is Came.TOO_EARLY


def test_a_record_from_before_the_start_does_not_take_the_offset_back() -> None:
    progress = Progress(100)
    assert [progress.add(record(offset)) for offset in (50, 51)] == [Came.TOO_EARLY] * 2
    progress.is_read_again()
    hundred = record(100)
    assert progress.add(hundred) is Came.FOUND
    progress.finish(hundred)
    assert progress.due == 101


def test_a_record_from_before_the_start_is_believed_when_it_comes_again() -> None:
    """As when the topic was made anew: the client finds nothing at the start."""
    progress = Progress(100)
    assert progress.add(record(0)) is Came.TOO_EARLY
    progress.is_read_again()
    assert [progress.add(record(offset)) for offset in (0, 1)] == [Came.AGAIN, Came.IN_ORDER]
    assert progress.due == 0


class FaultyClient:
    """Brings the records of a log to its end. Twelve times at most it brings some earlier or later ones first, skips
    some, or goes back; before each of these faults it is in doubt, as at a pause or a rebalance. It does none of that
    right after it was sent back: what is at fault the same way each time, nobody could tell from a real gap."""

    def __init__(self, log: list[int], chance: random.Random) -> None:
        self._log, self._chance = log, chance
        self._position, self._is_honest, self._faults = 0, False, 12

    def go_back(self, offset: int) -> None:
        self._position, self._is_honest = offset, True

    def bring(self, progress: Progress) -> list[int]:
        """What one poll brings. Nothing at the end of the log."""
        fault = self._chance.randrange(6) if self._faults and not self._is_honest else 3
        self._is_honest = False
        if fault < 3:
            self._faults -= 1
            progress.doubt()
        match fault:
            case 0:
                return self._some_from(self._chance.choice(self._log))
            case 1:  # not past the end: what is left out there shows only when more is written
                self._position = min(self._log[-1], self._position + self._chance.randrange(5))
            case 2:
                self._position = max(0, self._position - self._chance.randrange(5))
        chunk = self._some_from(self._position)
        self._position = chunk[-1] + 1 if chunk else self._position
        return chunk

    def _some_from(self, offset: int) -> list[int]:
        there = [each for each in self._log if each >= offset]
        return there[: self._chance.randint(1, 6)]


@given(st.sets(st.integers(0, 60), min_size=1), st.integers(0, 60), st.integers(0, 2**32))
def test_whatever_the_client_brings_after_pauses_and_rebalances_all_records_are_taken_and_each_first_in_its_order(
    offsets: set[int], start: int, seed: int
) -> None:
    """Faults that come with no pause or rebalance are another matter: there gaps may be believed unread."""
    log = sorted(offsets | {start})
    progress, client = Progress(start), FaultyClient(log, random.Random(seed))
    taken: list[int] = []
    while chunk := client.bring(progress):
        came = [take_if_in_order(progress, offset) for offset in chunk]
        assert Came.UNPROVED not in came
        taken += [offset for offset, how in zip(chunk, came, strict=True) if how is not Came.TOO_EARLY]
        if Came.TOO_EARLY in came:
            assert progress.next is not None
            client.go_back(progress.next)
            progress.is_read_again()
    assert taken[0] == start
    assert list(dict.fromkeys(each for each in taken if each >= start)) == [each for each in log if each >= start]


def take_if_in_order(progress: Progress, offset: int) -> Came:
    """With each gap that is proved, those no wider are trusted, as by the subscriber."""
    expected = progress.next
    came = progress.add(record(offset))
    if came is Came.AFTER_PROVED_GAP and expected is not None:
        progress.trust_gaps(offset - expected)
    return came
