"""Where a batch that failed is split, and how far statements are sent ahead."""

from itertools import chain
from typing import cast

import pytest
from psycopg import NotSupportedError, Pipeline
from psycopg.errors import UniqueViolation
from psycopg.pq.abc import PGresult

from projections.pipelining import MOST_UNDER_WAY, Pace
from projections.splitting import Failure, split
from tests.support.messages import placed, readable


class Late(UniqueViolation):
    """As one that the server has answered."""

    pgresult = cast(PGresult, object())


BATCH = [readable(placed(f"ord_{n}")) for n in range(100)]


@pytest.mark.parametrize("many", [2, 3, 32, 33, 100])
@pytest.mark.parametrize("ahead", [False, True])
def test_no_event_is_left_out_and_each_part_is_smaller(many: int, ahead: bool) -> None:
    batch = BATCH[:many]
    for last in (None, *batch, BATCH[-1]):
        for error in (ValueError(), Late(), NotSupportedError()):
            parts = split(batch, Failure(error, last, ahead))
            assert list(chain(*parts)) == batch
            assert all(0 < len(part) < many for part in parts)


def test_the_event_whose_handler_raised_stands_alone_at_once() -> None:
    parts = split(BATCH, Failure(ValueError(), BATCH[40], ahead=True))
    assert [len(part) for part in parts] == [40, 1, 59]


def test_an_error_that_may_be_late_is_looked_for_among_the_events_under_way() -> None:
    parts = split(BATCH, Failure(Late(), BATCH[70], ahead=True))
    assert [len(part) for part in parts] == [71 - MOST_UNDER_WAY, MOST_UNDER_WAY, 29]


def test_what_is_not_possible_ahead_is_done_in_parts_that_are_not_sent_ahead() -> None:
    parts = split(BATCH, Failure(NotSupportedError(), BATCH[0], ahead=True))
    assert list(chain(*parts)) == BATCH
    assert [len(part) for part in parts] == [MOST_UNDER_WAY] * 3 + [4]


def test_of_events_that_were_handled_together_halves_are_tried() -> None:
    assert [len(part) for part in split(BATCH, Failure(ValueError()))] == [50, 50]


class CountingPipeline(Pipeline):
    def __init__(self) -> None:
        self.synced = 0

    def sync(self) -> None:
        self.synced += 1


def waits(quick: float) -> list[int]:
    """After which events it waits."""
    pipeline = CountingPipeline()
    pace, after = Pace(pipeline, quick), list[int]()
    for number in range(1, 100):
        before = pipeline.synced
        pace.after_event()
        if pipeline.synced > before:
            after.append(number)
    return after


def test_more_is_sent_ahead_while_answers_are_quick() -> None:
    assert waits(quick=60.0) == [1, 3, 7, 15, 31, 63, 95]


def test_nothing_is_sent_ahead_while_answers_are_slow() -> None:
    assert waits(quick=0.0) == list(range(1, 100))
