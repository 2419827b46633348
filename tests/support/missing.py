"""What a test needs and this machine lacks."""

import os
from typing import NoReturn

import pytest


def skip_unless_ci(reason: str) -> NoReturn:
    """Skips the test with its reason; in CI, where nothing may be skipped unseen, it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, and {reason}")
    pytest.skip(reason)
