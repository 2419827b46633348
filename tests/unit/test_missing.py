"""Nothing is skipped unseen where the servers must be there."""

import pytest

from tests.support.missing import skip_unless_ci


def outcome() -> type[BaseException]:
    """Caught whatever it is: a skip that came through would skip this test instead of failing it."""
    with pytest.raises(BaseException, match="no such server") as raised:
        skip_unless_ci("there is no such server")
    return type(raised.value)


def test_in_ci_what_is_missing_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert outcome() is pytest.fail.Exception


def test_elsewhere_it_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert outcome() is pytest.skip.Exception
