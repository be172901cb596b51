"""Set-up of the tests of estimates."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # modules the tests share; importlib mode leaves the path alone


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Models of one test must not be found alive by the next one's profile."""
    yield
    gc.collect()
