"""N3: where torch_npu's names mean something else than torch.cuda's, or are its own: what they give here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


def test_N3_an_overflow_skips_every_step_that_follows_it_until_the_update(npu: ModuleType) -> None:
    """As torch_npu's scaler does, where torch's own steps the optimizers whose gradients are finite."""
    params = [torch.nn.Parameter(torch.ones(2, device="npu")) for _ in range(3)]
    optimizers = [torch.optim.SGD([each], lr=1.0) for each in params]
    scaler = npu.amp.GradScaler(init_scale=8.0, growth_interval=100)
    for overflow, left in ((False, [0, 0, 0]), (True, [-1, 0, 0]), (False, [-2, -1, -1])):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(sum(each.sum() for each in params)).backward()
        if overflow:
            params[1].grad.fill_(float("inf"))
        for optimizer in optimizers:  # the first is over before the infinity is seen
            scaler.step(optimizer)
        scaler.update()
        assert [each.tolist() for each in params] == [[each] * 2 for each in left]
    assert scaler.get_scale() == 4.0


def test_N3_streams_and_events_are_printed_as_torch_npus(in_npu_program: Callable[..., str]) -> None:
    assert in_npu_program("""
        import torch, mindtorch.npu.compat, torch_npu
        from torch_npu._C import _npu_getCurrentRawStreamNoWait
        stream, event = torch_npu.npu.Stream(1), torch_npu.npu.Event()
        print(repr(stream).replace(hex(stream.npu_stream), "it"), event)
        stream.record_event(event)
        print(repr(event).replace(hex(event.npu_event), "it"))
        with torch_npu.npu.stream(stream):
            print(_npu_getCurrentRawStreamNoWait(1) == stream.npu_stream)
    """).splitlines() == [
        "<torch_npu.npu.Stream device=npu:1 npu_stream=it> <torch_npu.npu.Event uninitialized>",
        "<torch_npu.npu.Event it>", "True",
    ]  # fmt: skip


def test_N3_what_the_library_does_not_tell_is_none(npu: ModuleType) -> None:
    assert npu.get_device_properties(0).uuid is None
    with pytest.warns(UserWarning, match="the version of CANN's operators is unknown"):
        assert npu.aclnn.version() is None
    npu.aclnn.allow_hf32 = False
    assert npu.conv.allow_hf32 is False
    npu.conv.allow_hf32 = True
    assert npu.aclnn.allow_hf32 is True
    event = npu.Event(enable_timing=True)
    event.record()
    with pytest.raises(RuntimeError, match=r"^\[Event.recorded_time\] .* elapsed_time"):
        event.recorded_time()


INIT = """
    import ctypes, os, torch, mindtorch
    try:
        print(torch.npu.device_count(), torch.zeros(2, device="npu").tolist())
    except RuntimeError as error:
        print(error)
    library = ctypes.CDLL(os.environ["GENIE_ACL_LIBRARY"])
    library.genie_test_init_path.restype = ctypes.c_char_p
    print(library.genie_test_init_path().decode(), torch.npu.is_available())
"""


def test_N3_the_library_is_given_the_configuration_that_is_named(
    in_npu_program: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "acl.json"
    named = f"""
    import os
    os.environ["TORCH_ACL_INIT_CONFIG_PATH"] = {str(path)!r}"""
    assert in_npu_program(INIT).splitlines() == ["2 [0.0, 0.0]", " True"]
    path.write_text('{"dump": {"dump_scene": "lite_exception"}}')
    assert in_npu_program(named + INIT).splitlines() == ["2 [0.0, 0.0]", f"{path} True"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("content", "why"), [("", "Failed to parse user acl json"), ("{", "Failed to parse"), (None, "is invalid: No such")]
)
def test_N3_a_configuration_that_is_none_makes_npus_unavailable(
    in_python: Callable[..., Any], acl_path: Path, tmp_path: Path, content: str | None, why: str
) -> None:
    path = tmp_path / "acl.json"
    if content is not None:
        path.write_text(content)
    told = in_python(
        "import mindtorch.npu as npu; print(npu.why_unavailable(), npu.is_available())",
        GENIE_ACL_LIBRARY=str(acl_path), TORCH_ACL_INIT_CONFIG_PATH=str(path),
    ).stdout  # fmt: skip
    assert "TORCH_ACL_INIT_CONFIG_PATH" in told and why in told and told.endswith(" False\n")
