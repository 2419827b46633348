"""Whoever waits for a rebuild's worker is not kept when he has to end."""

from threading import Event
from typing import Any, cast

import pytest

from projections.rebuilding import workers
from projections.rebuilding.source import Place


def test_a_worker_is_told_to_stop_when_nobody_can_be_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told_to_stop: list[bool] = []

    def work(_target: object, _place: Place, stop: Event) -> None:
        told_to_stop.append(stop.wait(30))

    def tell() -> None:
        raise ConnectionError

    monkeypatch.setattr(workers, "work", work)
    with pytest.raises(ConnectionError):
        workers.fill(cast("Any", None), [Place("public", 1)], Event(), tell)
    assert told_to_stop == [True]
