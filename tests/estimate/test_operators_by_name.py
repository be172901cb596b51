"""C4: operators that name a device, called as ``torch.ops.aten`` has them: exported graphs and compilers' code do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from tests.test_lazy_operators_by_name import LOOK, call, operators

GPUS = Accelerator("Test GPU", 10**9, count=2)


def seen(t: torch.Tensor) -> tuple[Any, ...]:
    return t.dtype, tuple(t.shape), t.stride(), t.requires_grad


@pytest.mark.parametrize("overload", list(operators(False)), ids=str)
def test_C4_factories_by_name_make_the_estimates_tensors(overload: Any) -> None:
    expected = call(overload, "cpu")
    with estimating(GPUS):
        got = call(overload, "cuda:1")
        assert got.device == torch.device("cuda:1") and seen(got) == seen(expected)


@pytest.mark.parametrize("overload", [o for o in operators(True) if o._schema.name[6:] not in LOOK], ids=str)
def test_C4_what_is_made_beside_a_tensor_is_where_the_call_says(overload: Any) -> None:
    expected = call(overload, "cpu", self=torch.ones(2, 3))
    with estimating(GPUS):
        for here in ("cpu", "cuda:0", "cuda:1"):
            for there in ("cpu", "cuda:0", "cuda:1"):
                got = call(overload, there, self=torch.ones(2, 3, device=here))
                assert got.device == torch.device(there) and seen(got) == seen(expected)


def test_C4_known_values_stay_known_where_operators_make_them() -> None:
    with estimating(GPUS):
        made = torch.ops.aten.arange.start(2, 5, device=torch.device("cuda"))
        assert torch.ops.aten._to_copy.default(made, device="cpu", dtype=torch.int32).tolist() == [2, 3, 4]


@pytest.mark.parametrize("method", ["to", "cpu", "cuda", "get_device"])
def test_C4_methods_called_as_torchs_own_answer_as_the_tensors(method: str) -> None:
    given = ("cpu",) if method == "to" else ()
    with estimating(GPUS):
        x = torch.ones(3, device="cuda:1")
        bound, unbound = getattr(x, method)(*given), getattr(torch.Tensor, method)(x, *given)
        assert (bound == unbound) if method == "get_device" else (bound.device == unbound.device)
        assert torch.get_device(x) == x.get_device() == 1 and torch.get_device(torch.ones(3)) == -1


def test_C4_views_have_one_storage_and_copies_have_others() -> None:
    with estimating(GPUS):
        x = torch.ones(2, 3, device="cuda")
        assert x.untyped_storage() == x[1].untyped_storage() != x.clone().untyped_storage()
        assert len({x.untyped_storage(), x.t().untyped_storage(), x.clone().untyped_storage()}) == 2


def test_C4_creation_by_name_ends_with_the_estimate() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    before = has("aten::empty.memory_format", "CUDA")
    with estimating(GPUS):
        assert has("aten::empty.memory_format", "CUDA")
    assert has("aten::empty.memory_format", "CUDA") == before


def test_C4_an_npu_is_estimated_where_the_recording_device_has_torchs_slot(forked: Any, tmp_path: Any) -> None:
    """Both take the kernels of the one slot that torch has for others' devices, which has one name in a process."""
    (tmp_path / "program.py").write_text(
        "import torch, mindtorch\n"
        "from mindtorch.profile.estimate.accelerator import Accelerator\n"
        "from mindtorch.profile.estimate.estimating import estimating\n"
        "there = torch.device('remote_accelerator:0')\n"
        "print(torch.ops.aten.zeros.default([2], device=there).tolist())\n"
        "with estimating(Accelerator('NPU', 10**9, count=2, kind='npu')):\n"
        "    print(torch.zeros(2, device='npu:1').device)\n"
        "print(torch.ops.aten.zeros.default([2], device=there).tolist())\n"
    )
    done = forked(str(tmp_path / "program.py"))
    assert done.stdout.split("\n") == ["[0.0, 0.0]", "npu:1", "[0.0, 0.0]", ""], done.stderr
