"""Set-up of the command's tests: they run programs in this process, whose modules stay imported, models and all."""

import pytest


@pytest.fixture(autouse=True)
def only_models_of_this_test(alone: None) -> None:
    pass
