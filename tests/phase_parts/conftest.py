"""Set-up of the tests of parts of phases: the programs that they share."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # modules the tests share; importlib mode leaves the path alone


@pytest.fixture(autouse=True)
def only_models_of_this_test(alone: None) -> None:
    pass
