"""Set-up of the graph tests: the models they share, and no phase that an earlier test left."""

import sys
from pathlib import Path

import pytest

from mindtorch._ext import context

sys.path.append(str(Path(__file__).parent))  # modules the tests share; importlib mode leaves the path alone


@pytest.fixture(autouse=True)
def phase_other() -> None:
    """After a model's call in grad mode a loss may follow: another test's, run in another order, has none."""
    context.enter_stage(context.PHASES.index("other"))
