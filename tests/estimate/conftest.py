"""Models of one test must not be found alive by the next one's profile."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()
