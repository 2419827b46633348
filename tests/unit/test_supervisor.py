"""Loops that fail start again, are counted, and leave no beat behind when they have ended."""

from threading import Event

import pytest

from infrastructure import metrics
from infrastructure.supervisor import beat, keep_running


def loops_with_a_beat() -> set[str]:
    return {sample.labels["loop"] for metric in metrics.LOOP_BEAT.collect() for sample in metric.samples}


def test_a_loop_that_fails_starts_again_and_once_it_has_ended_its_beat_does_not_grow_old(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop, runs = Event(), 0

    def run(stop: Event) -> None:
        nonlocal runs
        runs += 1
        beat("a loop")
        assert "a loop" in loops_with_a_beat()
        if runs == 1:
            raise ValueError("s3cret")
        stop.set()

    keep_running("a loop", run, stop)

    assert runs == 2
    assert metrics.LOOP_RESTARTS.labels("a loop", "ValueError")._value.get() == 1
    assert "a loop" not in loops_with_a_beat()
    assert "s3cret" not in caplog.text
