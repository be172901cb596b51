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
    few = every if whole else every[30::120]
    chosen = [*few, *script.operators(["masked_select", "cumprod", "ctc_loss"])]
    assert not [(op.full_name, *told) for op in chosen for told in script.alarms(op)]


def test_C4_what_no_estimate_can_tell_is_no_false_alarm(script: Any) -> None:
    """An estimate does not differentiate by a sparse matrix's values."""
    told = [told for op in script.operators(["sampled_addmm"]) for told in script.alarms(op)]
    assert told and not any(refused for refused, _words, _error in told)
    assert all("does not compute gradients of sparse tensors" in error for _refused, _words, error in told)


def test_C4_weights_that_nobody_knows_are_no_reason_to_refuse_cov(script: Any) -> None:
    """Their sum was assumed to be 0, which cov() does not take."""
    chosen = [op for op in script.operators(["cov"]) if op.full_name == "cov"]
    assert chosen and not [told for op in chosen for told in script.alarms(op)]
