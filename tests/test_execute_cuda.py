"""What a recording that runs on CUDA needs there (SPEC R1), checked without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torchgen
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torchgen.gen import parse_native_yaml
from torchgen.model import DispatchKey

import mindtorch
from mindtorch.engine.execute import cuda, local
from mindtorch.engine.record import gradients, trial

LAZY = "remote_accelerator:0"


@cache
def without_cuda_kernel() -> set[str]:
    """Operators none of whose overloads runs on CUDA tensors, by torch's own table of kernels."""
    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    kernels = parsed.backend_indices[DispatchKey.CUDA]
    runs: dict[str, bool] = {}
    for f in parsed.native_functions:
        name = f"aten::{f.func.name.name}"
        here = kernels.has_kernel(f) or f.has_composite_kernel or f.structured_delegate is not None
        runs[name] = runs.get(name, False) or bool(here)
    return {name for name, found in runs.items() if not found}


def attend(mask: bool) -> None:
    q, k, v = (torch.randn(2, 3, 16, 8, device=LAZY, requires_grad=True) for _ in range(3))
    bias = torch.zeros(16, 16, device=LAZY) if mask else None
    F.scaled_dot_product_attention(q, k, v, bias, is_causal=not mask).sum().backward()
    for t in (q, k, v):
        assert t.grad is not None
        t.grad.cpu()


def encoder(dropout: float, train: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(LAZY).train(train)
    with torch.set_grad_enabled(train):
        out = model(torch.randn(2, 8, 16, device=LAZY)).sum()
    if train:
        out.backward()
        torch.optim.AdamW(model.parameters()).step()
    out.item()
    mindtorch.flush("test")


def images() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Upsample(scale_factor=2),
        nn.ConvTranspose2d(8, 4, 3), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    model = model.to(LAZY, memory_format=torch.channels_last)  # type: ignore[call-overload]
    classes = torch.zeros(2, dtype=torch.long, device=LAZY)
    F.cross_entropy(model(torch.randn(2, 3, 12, 12, device=LAZY)), classes).backward()
    torch.optim.SGD(model.parameters(), 0.1, momentum=0.9).step()
    mindtorch.flush("test")


def recurrent(kind: type[nn.RNNBase], train: bool) -> None:
    model = kind(4, 8, 2, batch_first=True, dropout=0.1).to(LAZY).train(train)  # type: ignore[call-arg, arg-type]
    with torch.set_grad_enabled(train):
        out = model(torch.randn(2, 5, 4, device=LAZY))[0].sum()
    if train:
        out.backward()
    out.item()
    mindtorch.flush("test")


PROGRAMS: dict[str, Callable[[], None]] = {
    "attention": lambda: attend(False), "masked attention": lambda: attend(True),
    "encoder": lambda: encoder(0.0, True), "encoder, dropout": lambda: encoder(0.1, True),
    "encoder, inference": lambda: encoder(0.1, False), "images": images,
    **{f"{kind.__name__}, {train}": lambda kind=kind, train=train: recurrent(kind, train)  # type: ignore[misc]
       for kind in (nn.LSTM, nn.GRU, nn.RNN) for train in (True, False)},
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_R1_every_op_of_a_recording_has_a_kernel_on_cuda_or_a_stand_in(name: str) -> None:
    """To C++ a lazy tensor is on the CPU: what torch picks for it then may be an operator of the CPU's alone."""
    mindtorch.flush("test")
    ran: list[str] = []

    def note(name: str, *_: int) -> None:
        ran.append(name)

    local.add_op_observer(note)
    try:
        PROGRAMS[name]()
    finally:
        local.remove_op_observer(note)
    assert ran
    assert set(ran) & without_cuda_kernel() <= {f"aten::{name}" for name in cuda.STAND_INS}


def test_R1_the_stand_ins_are_operators_that_cuda_lacks() -> None:
    cuda.register()
    for name in cuda.STAND_INS:
        assert f"aten::{name}" in without_cuda_kernel()
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("inference", [False, True])
def test_R1_attentions_stand_ins_are_attention(dtype: torch.dtype, masked: bool, inference: bool) -> None:
    """On CPU tensors they must give what they stand for; called as a kernel is, below autograd."""
    with torch.inference_mode(inference):
        q, k, v, grad = (torch.randn(2, 3, 16, 8, dtype=dtype) for _ in range(4))
        mask = torch.randn(16, 16, dtype=dtype) if masked else None
    args, options = (q, k, v, 0.0, not masked), {"attn_mask": mask, "scale": 0.3}
    expected = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args, **options)
    gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, *expected, 0.0, not masked, **options
    )
    with torch.inference_mode(inference), torch._C._AutoDispatchBelowAutograd():
        out, logsumexp = cuda.attention(*args, **options)  # type: ignore[arg-type]
        found = cuda.attention_backward(grad, q, k, v, out, logsumexp, 0.0, not masked, **options)  # type: ignore[arg-type]
        assert torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
    assert torch.equal(out, expected[0])
    assert all(torch.equal(a, b) for a, b in zip(found, gradients, strict=True))
    assert not any(t.requires_grad for t in (out, *found))
    assert (logsumexp.shape, logsumexp.stride(), logsumexp.dtype) == (
        expected[1].shape,
        expected[1].stride(),
        expected[1].dtype,
    )


@pytest.mark.parametrize(
    ("name", "out", "device", "own"),
    [
        ("native_layer_norm", 1, "cuda", True), ("native_layer_norm", 0, "cuda", False),
        ("native_layer_norm", 1, "cpu", False), ("log_sigmoid_forward", 1, "cuda", True),
        ("_embedding_bag", 3, "cuda", True), ("max", 1, "cuda", False),
    ],
)  # fmt: skip
def test_R1_what_only_its_own_backward_is_handed_is_as_cuda_makes_it(name, out, device, own) -> None:
    with FakeTensorMode():
        assert cuda.its_own(f"aten::{name}", out, torch.empty(4, 1, device=device)) is own


def test_R1_the_notes_are_operators_of_several_results() -> None:
    for name in cuda.NOTES:
        schemas = torch._C._jit_get_schemas_for_operator(name)
        assert schemas and all(len(schema.returns) > 1 for schema in schemas)


def test_R1_a_formula_that_torch_picks_by_kind_runs_on_the_gpu_as_it_is_recorded() -> None:
    """A node that torch believes on the CPU refuses values that are on a GPU."""
    x = torch.tensor([2.0, 3.0, 5.0], device=LAZY, requires_grad=True)
    asked: list[str] = []

    def executor() -> SimpleNamespace:
        asked.append("executor")
        return SimpleNamespace(device=torch.device("cuda"))

    out = gradients.on_values(lambda: torch.prod(x), SimpleNamespace(executor=executor), "prod")  # it reads nothing
    out.backward()
    assert x.grad is not None and x.grad.tolist() == [15.0, 10.0, 6.0] and asked == ["executor"]


@pytest.mark.parametrize("name", ["linalg_ldl_solve", "linalg_lu_solve", "lu_solve", "lu_unpack", "gather"])
def test_L9_a_trial_has_no_pivot_below_one(name: str) -> None:
    """LAPACK writes before the matrix where one is 0; other indices may have to be 0."""
    seen: list[int] = []

    def kernel(pivots: torch.Tensor) -> torch.Tensor:
        seen.extend(pivots.tolist())
        return pivots

    call = SimpleNamespace(name=f"aten::{name}", call=kernel, random=False)
    pivots = torch.ones(2, dtype=torch.int32, device=LAZY)
    trial._run(call, (pivots,), {}, [(torch.int32, torch.Size([2]), (1,), 0, None, 0)])
    assert seen == ([0, 0] if name == "gather" else [1, 1])
