"""How many programs are made of each form."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def generated(request: pytest.FixtureRequest) -> int:
    """With 12, over 500 programs that are none of what they look like."""
    return int(request.config.getoption("--forms"))
