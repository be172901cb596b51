"""Set-up of the NPU tests: a library with the AscendCL interface over host memory, built here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # modules the tests share; importlib mode leaves the path alone

import acl_library
from acl_calls import Npu


@pytest.fixture(scope="session")
def acl_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test library, compiled; what ``GENIE_ACL_LIBRARY`` may name."""
    return acl_library.build(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def acl_copy(acl_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test library again, with a state of its own: what the product has open in the other is not disturbed."""
    return Path(shutil.copy(acl_path, tmp_path_factory.mktemp("copy")))


@pytest.fixture
def acl(acl_copy: Path) -> Iterator[acl_library.Library]:
    """The copy as freshly loaded, before any ``aclInit``. The test fails for what it left or did wrong."""
    library = acl_library.Library(acl_copy)
    library.reset()
    yield library
    library.release()
    problems = library.violations() + library.leaks()
    library.reset()
    assert problems == []


@pytest.fixture
def npu(acl: acl_library.Library) -> Npu:
    """Calls of the copy, initialized, with device 0 set."""
    npu = Npu(acl)
    npu("aclInit", None)
    npu("aclrtSetDevice", 0)
    return npu
