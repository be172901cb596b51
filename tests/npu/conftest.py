"""Set-up of the NPU tests: a library with the AscendCL interface over host memory, built here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # modules the tests share; importlib mode leaves the path alone

import acl_library


@pytest.fixture(scope="session")
def acl_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test library, compiled; what ``GENIE_ACL_LIBRARY`` may name."""
    return acl_library.build(tmp_path_factory.getbasetemp())


@pytest.fixture
def acl(acl_path: Path) -> Iterator[acl_library.Library]:
    """The test library as freshly loaded, before any ``aclInit``. The test fails for what it left or did wrong."""
    library = acl_library.Library(acl_path)
    library.reset()
    yield library
    library.release()
    problems = library.violations() + library.leaks()
    library.reset()
    assert problems == []
