"""Every operator of torch's database, recorded and run on a GPU, beside eager on it (SPEC R1): ``pytest tests/gpu``.

What it gives has eager's kinds and shapes, and eager's bits but for what `OTHER_KERNELS` lists. It skips without a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import mindtorch

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

LAZY = "remote_accelerator:0"
SAMPLES = 4
#: Kernels that C++ calls by name for CPU and CUDA alike; eager has cuDNN's, or one call for several.
OTHER_KERNELS = {
    "cumprod", "grid_sampler_2d", "linalg.householder_product", "masked.cumprod", "masked.prod",
    "nn.functional.batch_norm", "nn.functional.grid_sample", "nn.functional.instance_norm",
    "nn.functional.interpolate", "nn.functional.rms_norm",
    "ormqr", "prod", "renorm",
}  # fmt: skip
#: Attention with dropout is recorded as its parts: other numbers are drawn. What is not filled has no numbers.
OTHER_NUMBERS = {
    "empty_like",
    "nn.functional.multi_head_attention_forward",
    "nn.functional.scaled_dot_product_attention",
}
#: They show what is for their backward alone, which is told as the CPU has it.
NOTES_SHOWN = {"native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"}
#: torch's own for CUDA tensors alone; devices named in strings; a mask that C++ makes on the CPU.
APART = {"combinations", "to"} | {op.name for op in op_db if op.name.startswith("jiterator")}


@pytest.fixture(autouse=True, scope="module")
def _on_the_gpu() -> Iterator[None]:
    previous = mindtorch.set_executor(mindtorch.LocalExecutor("cuda"))
    yield
    mindtorch.set_executor(previous)


def results(op: Any, sample: Any, device: str, backward: bool) -> list[Tensor]:
    """What a call gives, and the gradients of its inputs, on the CPU."""

    def there(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device(device)
        if not isinstance(x, Tensor):
            return x
        moved = x.detach().to(device)
        return moved.requires_grad_() if backward and x.requires_grad else moved

    given = pytree.tree_map(there, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(0)
    made = [t for t in pytree.tree_leaves(op(given[0], *given[1], **given[2])) if isinstance(t, Tensor)]
    if differentiable := [t for t in made if t.requires_grad]:
        torch.autograd.backward(differentiable, [torch.ones_like(t) for t in differentiable])
    grads = [t.grad for t in pytree.tree_leaves(given) if isinstance(t, Tensor) and t.grad is not None]
    kinds = [(t.dtype, t.shape) for t in (*made, *grads)]
    found = [t.detach().cpu() for t in (*made, *grads)]
    assert [(t.dtype, t.shape) for t in found] == kinds or op.name in NOTES_SHOWN
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", op_db, ids=lambda op: f"{op.name}.{op.variant_test_name}".rstrip("."))
def test_R1_an_operator_recorded_and_run_on_a_gpu_is_eagers(op: Any, dtype: torch.dtype) -> None:
    if op.name in APART or dtype not in op.dtypes or dtype not in op.dtypesIfCUDA:
        pytest.skip("not recorded, or not of this dtype")
    backward = op.supports_autograd and dtype in op.backward_dtypesIfCUDA
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), SAMPLES):
        try:
            eager = [results(op, sample, "cuda", backward) for _ in range(2)]
        except (RuntimeError, ValueError, NotImplementedError):  # with what eager refuses there is nothing to compare
            continue
        recorded = results(op, sample, LAZY, backward)
        for first, again, ours in zip(*eager, recorded, strict=True):
            assert (ours.dtype, ours.shape) == (first.dtype, first.shape)
            if op.name in OTHER_NUMBERS or not torch.equal(numbers(first), numbers(again)):
                continue  # torch itself gives other bits the next time
            tolerance = dict.fromkeys(("rtol", "atol"), 0.25 if dtype is torch.bfloat16 else 1e-5)
            if op.name not in OTHER_KERNELS:
                tolerance = {"rtol": 0.0, "atol": 0.0}
            torch.testing.assert_close(numbers(ours), numbers(first), equal_nan=True, **tolerance)


def numbers(t: Tensor) -> Tensor:
    t = t.to(torch.complex64) if t.dtype is torch.complex32 else t
    return (t.to_dense() if t.layout != torch.strided else t).nan_to_num(nan=12345.0)
