"""C4: what a GPU takes is not refused: a slice of torch's operator database; all of it is asv_bench/false_alarms.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def script() -> Any:
    path = Path(__file__).parents[2] / "asv_bench" / "false_alarms.py"
    spec = importlib.util.spec_from_file_location("false_alarms", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_C4_no_false_alarm_over_a_slice_of_the_operator_database(script: Any, whole: bool) -> None:
    every = script.operators()
    assert len(every) > 600
    chosen = [*every[:: 1 if whole else 120], *script.operators(["masked_select", "cumprod", "ctc_loss"])]
    assert not [(op.full_name, *told) for op in chosen for told in script.alarms(op)]


def test_C4_what_depends_on_unknown_values_is_no_false_alarm(script: Any) -> None:
    """Of weights that nobody knows the sum is assumed to be 0, which cov() does not take."""
    told = [told for op in script.operators(["cov"]) if op.full_name == "cov" for told in script.alarms(op)]
    assert told and not any(refused for refused, _words, _error in told)
