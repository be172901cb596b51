"""N3: tensors without data that say they are on an NPU, in the program's own FakeTensorMode."""

from __future__ import annotations

from typing import Any

FAKES = """
    import torch, mindtorch, mindtorch.npu.compat
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    held = mindtorch.npu.memory_allocated()
    with FakeTensorMode():
        moved = torch.rand(3, 3).npu()
        made = torch.zeros(3, 3, device="npu:1", dtype=torch.float16)
        model = torch.nn.Linear(3, 4, device="npu")
        loss = model(moved).sum()
        loss.backward()
        for each in (moved, made, torch.ones_like(moved), moved @ moved + 1, moved.to("npu:1", torch.float16), loss,
                     torch.tensor([1.0, 2], device="npu", requires_grad=True), moved.cpu(), model.weight.grad,
                     torch.arange(3, device="npu"), made.half(), moved.npu(1)):
            assert isinstance(each, FakeTensor) or type(each) is torch.nn.Parameter, type(each)
            print(each.device, str(each.dtype).removeprefix("torch."), *each.shape, end="; ")
        try:
            moved + moved.npu(1)
        except RuntimeError as error:
            print("npu:0" in str(error) and "npu:1" in str(error))
    assert mindtorch.npu.memory_allocated() == held
    print(torch.zeros(2, device="npu").tolist(), mindtorch.stats()["npu_staged"].get("aten::mm"))
"""


def test_N3_fake_tensors_are_on_the_npu_that_is_named_and_take_no_memory(in_npu_program: Any) -> None:
    said = in_npu_program(FAKES).splitlines()
    told, refused, after = said[0].split("; ")[:-1], said[0].split("; ")[-1], said[1]
    assert told == [
        "npu:0 float32 3 3", "npu:1 float16 3 3", "npu:0 float32 3 3", "npu:0 float32 3 3", "npu:1 float16 3 3",
        "npu:0 float32", "npu:0 float32 2", "cpu float32 3 3", "npu:0 float32 4 3", "npu:0 int64 3",
        "npu:1 float16 3 3", "npu:1 float32 3 3",
    ]  # fmt: skip
    assert refused == "True" and after == "[0.0, 0.0] None"
