"""N2, L9: a failure on an NPU is told with the op and the program's line, also where it shows long after the call."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.base.errors import NPUError, NPUOutOfMemoryError

START = """
    import os, torch, mindtorch
    from acl_library import Library
    library = Library(os.environ["GENIE_ACL_LIBRARY"])
    table, right, wrong = torch.ones(3, 2).npu(), torch.tensor([1]).npu(), torch.tensor([7]).npu()
    x = torch.zeros(2).npu()
    mindtorch.npu.synchronize()
    look = torch.nn.functional.embedding
"""


def line_of(words: str) -> str:
    """file:line of the one line in this file that has ``words #``."""
    text = Path(__file__).read_text(encoding="utf-8")
    lines = [n for n, each in enumerate(text.splitlines(), 1) if f"{words}  #" in each]
    assert len(lines) == 1
    return f"{__file__}:{lines[0]}"


def told(library: Any, use: Any) -> NPUError:
    with pytest.raises(NPUError) as caught:
        use()
    library.clear()
    return caught.value


@pytest.mark.parametrize("function", ["aclnnAdd", "aclnnAddGetWorkspaceSize", "aclCreateTensor"])
def test_N2_a_call_that_fails_at_once_is_told_with_op_and_line(npu: ModuleType, library: Any, function: str) -> None:
    x = torch.ones(2, 3).npu()
    library.fail(function, 1, 361001)
    error = told(library, lambda: x + x)  # adds
    assert (error.function, error.operation) == (function, "aten::add")
    assert error.line == line_of("error = told(library, lambda: x + x)") and not error.in_flight
    assert str(error).endswith(f"; in aten::add ({error.line})")
    assert (x + x).tolist() == [[2] * 3] * 2


def test_N2_a_failure_in_backward_names_its_op_and_the_line_that_runs_it(npu: ModuleType, library: Any) -> None:
    x = torch.ones(2, 3).npu().requires_grad_()
    y = (x.sigmoid() * 2).sum()
    library.fail("aclnnSigmoidBackward", 1, 361001)
    error = told(library, lambda: y.backward())  # goes back
    assert error.operation == "aten::sigmoid_backward"
    assert error.line == line_of("error = told(library, lambda: y.backward())")


def test_N2_copies_creation_and_what_is_staged_are_told_with_op_and_line(npu: ModuleType, library: Any) -> None:
    x, big = torch.eye(3).npu(), torch.ones(1 << 20)
    uses = {
        "Tensor.to": ("aclrtMemcpy", lambda: big.to("npu")),
        "torch.full": ("aclrtMemcpyAsync", lambda: torch.full((3,), 2.0, device="npu")),
        "aten::linalg_inv_ex": ("aclrtMemcpy", lambda: torch.linalg.inv(x)),
    }
    for operation, (function, use) in uses.items():
        library.fail(function, 1, 107000)
        error = told(library, use)
        assert (error.function, error.operation) == (function, operation)
        assert error.line is not None and error.line.startswith(__file__) and not error.in_flight


def test_N2_memory_that_is_not_there_is_told_with_op_and_line(npu: ModuleType, library: Any) -> None:
    one = torch.ones(1, device="npu").expand(1 << 33)
    for name, use in (("aten::mul", lambda: one * 2), ("torch.zeros", lambda: torch.zeros(1 << 33, device="npu"))):
        error = told(library, use)
        assert isinstance(error, NPUOutOfMemoryError) and error.operation == name and "Tried to allocate" in str(error)
        assert error.line is not None and error.line.startswith(__file__)


def test_N2_a_late_failure_is_told_with_what_was_under_way_and_where_it_was_called(in_npu_program: Any) -> None:
    """Not with what was found to be over without an error, nor with the op that happened to be waited in."""
    said = in_npu_program(
        START
        + """
    x.mul_(3)
    x.tolist()
    found = look(wrong, table); number = 9
    x.add_(1)
    for _ in range(3):
        x.sub_(1)
    try:
        print(x.tolist())
    except RuntimeError as error:
        print(error)
        print(error.function, error.operation, *(op for op, line in error.in_flight))
        print(*(line.rpartition(":")[2] for op, line in error.in_flight), error.more_before)
    mindtorch.npu.synchronize()
    x.add_(1)
    library.fail("aclrtSynchronizeStream", 1, 507899)
    try:
        x.tolist()
    except RuntimeError as error:
        print(*(op for op, line in error.in_flight))
    """
    ).splitlines()
    text, names, lines, after = said
    assert text.startswith("[aclrtSynchronizeStream] error 507015 (ACL_ERROR_RT_AICORE_EXCEPTION): ")
    assert "; caused by a call in flight on npu:0: aten::embedding (" in text and ", 3 times aten::sub_ (" in text
    assert names.split()[2:] == ["aten::embedding", "aten::add_", "aten::sub_", "aten::sub_", "aten::sub_"]
    first, *rest, more = lines.split()
    assert [int(each) - int(first) for each in rest] == [1, 3, 3, 3] and more == "False"
    assert after == "aten::add_", "what failed before is over since"


@pytest.mark.sample(2)
@pytest.mark.parametrize("wait", ["mindtorch.npu.synchronize()", "stream.synchronize()", "x.cpu()", "x[0].item()"])
def test_N3_every_wait_tells_of_late_failures(in_npu_program: Any, wait: str) -> None:
    said = in_npu_program(
        START
        + f"""
    stream = mindtorch.npu.current_stream()
    found = look(wrong, table)
    try:
        {wait}
    except RuntimeError as error:
        print(error.code, *(op for op, line in error.in_flight))
        mindtorch.npu.synchronize()
    """,
        GENIE_TEST_NPU_STAYS_BROKEN="0",
    )
    assert said == "507015 aten::embedding\n"


def test_N3_an_event_that_cannot_be_waited_for_tells_of_what_was_before_it(npu: ModuleType, library: Any) -> None:
    x = torch.zeros(2).npu()
    npu.synchronize()
    x.add_(1)
    event = npu.Event()
    event.record()
    library.fail("aclrtSynchronizeEvent", 1, 507015)
    error = told(library, event.synchronize)
    assert (error.function, error.code, error.device) == ("aclrtSynchronizeEvent", 507015, "npu:0")
    assert [op for op, _ in error.in_flight] == ["aten::add_"] and not error.more_before
    event.synchronize()
    assert x.tolist() == [1, 1]


def test_N3_a_device_that_stays_broken_names_what_broke_it_each_time(in_npu_program: Any) -> None:
    said = in_npu_program(
        START
        + """
    found = look(wrong, table)
    for use in (mindtorch.npu.synchronize, lambda: x + 1, x.tolist, lambda: torch.ones(2).npu()):
        try:
            use()
        except RuntimeError as error:
            print(error.in_flight[0][0], error.operation)
    """,
        GENIE_TEST_NPU_STAYS_BROKEN="1",
    )
    assert [line.split()[0] for line in said.splitlines()] == ["aten::embedding"] * 4
    assert said.splitlines()[1].split()[1] == "aten::add"


def test_N3_each_call_is_waited_for_where_launches_block(in_npu_program: Any) -> None:
    """So the error is at the very call, and names it alone."""
    said = in_npu_program(
        START
        + """
    try:
        found = look(wrong, table)
        print("went on")
    except RuntimeError as error:
        print(error.operation, *(op for op, line in error.in_flight))
    """,
        ASCEND_LAUNCH_BLOCKING="1",
    )
    assert said == "aten::embedding aten::embedding\n"


def test_N2_of_many_calls_the_last_thousand_are_told_and_that_there_were_more(npu: ModuleType, library: Any) -> None:
    x = torch.zeros(2).npu()
    npu.synchronize()
    for _ in range(1100):
        x.add_(1)
    library.fail("aclrtSynchronizeDevice", 1, 507899)
    error = told(library, npu.synchronize)
    assert len(error.in_flight) == 1024 and error.more_before
    assert "in flight on npu:0: calls before, 1024 times aten::add_ (" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.in_flight == error.in_flight and type(again) is NPUError
    npu.synchronize()
    library.fail("aclrtSynchronizeDevice", 1, 507899)
    assert told(library, npu.synchronize).in_flight == ()


def test_N2_the_first_and_the_last_of_many_ops_are_in_the_text() -> None:
    error = NPUError("aclrtSynchronizeStream", 507015, "ACL_ERROR_RT_AICORE_EXCEPTION", "")
    error.device, error.in_flight = "npu:1", tuple((f"aten::op{i}", "a.py:3") for i in range(30))
    text = str(error)
    assert "npu:1: aten::op0 (a.py:3), aten::op1" in text and text.endswith("aten::op29 (a.py:3)")
    assert "22 more (all: in_flight of this error)" in text and "op4 " not in text


def test_N3_devices_tell_of_their_own_calls_alone(npu: ModuleType, library: Any, devices: Any) -> None:
    devices(2)
    here, there = torch.zeros(2).npu(0), torch.zeros(2).npu(1)
    for index in range(2):
        npu.synchronize(index)
    here.add_(1)
    there.mul_(2)
    library.fail("aclrtSynchronizeDevice", 1, 507899)
    error = told(library, lambda: npu.synchronize(1))
    assert error.device == "npu:1" and [op for op, _ in error.in_flight] == ["aten::mul_"]
    assert mindtorch.npu.synchronize(0) is None
