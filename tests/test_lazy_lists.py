"""S6: calls on lists of tensors are recorded in time that is linear in their length, also the first time.

What is counted are the instructions of Python's interpreter in this project's files: a time would tell of the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch

LAZY = "remote_accelerator:0"


def instructions(call: Callable[[], object]) -> int:
    """Of Python's interpreter, in files of the package."""
    n = 0

    def step(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal n
        n += event == "opcode"
        return step

    def enter(frame: FrameType, _event: str, _arg: object) -> Any:
        if "/mindtorch/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    tracing = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(tracing)
    return n


def tensors(n: int) -> list[torch.Tensor]:
    return [torch.ones(3, device=LAZY) + 1 for _ in range(n)]


def stepped(n: int, **options: Any) -> Callable[[], object]:
    parameters = [torch.nn.Parameter(t) for t in tensors(n)]
    for p in parameters:
        p.grad = torch.ones(3, device=LAZY)
    return torch.optim.AdamW(parameters, **options).step


CALLS: dict[str, Callable[[int], Callable[[], object]]] = {
    "cat": lambda n: partial(torch.cat, tensors(n)),
    "stack": lambda n: partial(torch.stack, tensors(n)),
    "_foreach_mul": lambda n: partial(torch._foreach_mul, tensors(n), 2.0),
    "_foreach_add_": lambda n: partial(torch._foreach_add_, tensors(n), tensors(n)),
    "_foreach_norm": lambda n: partial(torch._foreach_norm, tensors(n)),
    "AdamW(foreach)": lambda n: stepped(n, foreach=True),
    "AdamW(fused)": lambda n: stepped(n, fused=True),
    "broadcast_tensors": lambda n: partial(torch.broadcast_tensors, *tensors(n)),
    "split": lambda n: partial(torch.ones(n, device=LAZY).split, [1] * n),
    "unbind": lambda n: torch.ones(n, device=LAZY).unbind,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("nothing_pending")
def test_S6_a_call_on_a_list_is_recorded_in_time_linear_in_its_length(name: str) -> None:
    for n in (7, 60):  # Python 3.12 and later count in what they have traced before
        instructions(CALLS[name](n))
    short, long = (instructions(CALLS[name](n)) for n in (100, 400))
    assert long <= 4.1 * short + 2000, f"{short:,} for 100 tensors, {long:,} for 400"
