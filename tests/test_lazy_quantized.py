"""Quantized tensors on the device, and those in oneDNN's layout (SPEC L3, L7, L8): they know where they are, and so
does what they give."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch

LAZY = "remote_accelerator:0"
pytestmark = pytest.mark.filterwarnings("ignore")
Same = Callable[..., None]


def per_tensor(d: str) -> Any:
    return torch.quantize_per_tensor(torch.arange(4.0).to(d), 0.1, 3, torch.quint8)


def per_channel(d: str) -> Any:
    x = torch.arange(4.0, device=d).view(2, 2)
    scales, zeros = torch.tensor([0.5, 0.25], device=d), torch.zeros(2, device=d, dtype=torch.int64)
    return torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)


def one_dnn(d: str) -> Any:
    return torch.arange(16.0, device=d).view(4, 4).to_mkldnn()


KINDS = {"per tensor": per_tensor, "per channel": per_channel}
CALLS: dict[str, Callable[[Any, str], Any]] = {
    "round trip": lambda q, d: q.dequantize() + torch.ones(1, device=d),
    "what it loses": lambda q, d: torch.arange(4.0, device=d).view(q.shape) - torch.dequantize(q),
    "int_repr": lambda q, d: q.int_repr() + torch.ones(1, dtype=q.int_repr().dtype, device=d),
    "view": lambda q, d: q.view(q.shape).dequantize() + torch.ones(1, device=d),
    "index": lambda q, d: q[1:].dequantize() * torch.ones(1, device=d),
    "clone": lambda q, d: q.clone().dequantize() + torch.ones(1, device=d),
    "copy_": lambda q, d: q.clone().copy_(torch.full(q.shape, 2.0, device=d)).dequantize() + torch.ones(1, device=d),
    "deepcopy": lambda q, d: copy.deepcopy(q).dequantize() + torch.ones(1, device=d),
    "copy": lambda q, d: copy.copy(q).dequantize() + torch.ones(1, device=d),
    "to": lambda q, d: q.cpu().to(d).dequantize() + torch.ones(1, device=d),
    "to where it is": lambda q, d: q.to(d) is q,
    "cpu": lambda q, d: q.cpu().dequantize() + torch.ones(1),
    "parameter": lambda q, d: torch.nn.Parameter(q, requires_grad=False).dequantize() + torch.ones(1, device=d),
    "equal": lambda q, d: torch.equal(q, q.clone()),
    "facts": lambda q, d: (str(q.qscheme()), q.dtype, q.shape, q.stride(), q.is_quantized, q.requires_grad),
    "again": lambda q, d: torch.quantize_per_tensor(q.dequantize(), 0.2, 0, torch.quint8).dequantize(),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_L8_what_quantized_tensors_give_is_on_the_device(kind: str, name: str, same_as_eager: Same) -> None:
    same_as_eager(lambda d: CALLS[name](KINDS[kind](d), d), lazily=False)


MORE: dict[str, Callable[[str], Any]] = {
    "relu": lambda d: torch.relu(per_tensor(d)).dequantize() + torch.ones(4, device=d),
    "cat": lambda d: torch.cat([per_tensor(d), per_tensor(d)]).dequantize() + torch.ones(8, device=d),
    "quantized::add": lambda d: (
        torch.ops.quantized.add(per_tensor(d), per_tensor(d), 0.2, 0).dequantize() + torch.ones(4, device=d)
    ),
    "scale": lambda d: (per_tensor(d).q_scale(), per_tensor(d).q_zero_point()),
    "scales": lambda d: per_channel(d).q_per_channel_scales() + torch.ones(2, device=d),
    "zero points": lambda d: per_channel(d).q_per_channel_zero_points() + torch.ones(2, device=d).long(),
    "dynamic": lambda d: (
        torch.quantize_per_tensor_dynamic(torch.arange(4.0, device=d), torch.quint8, False).dequantize()
        + torch.ones(4, device=d)
    ),
    "made of integers": lambda d: (
        torch._make_per_tensor_quantized_tensor(torch.ones(4, dtype=torch.uint8, device=d), 0.5, 0).dequantize()
        + torch.ones(4, device=d)
    ),
    "pooled": lambda d: (
        torch.nn.functional.max_pool1d(per_tensor(d)[None, None], 2).dequantize() + torch.ones(1, 1, 2, device=d)
    ),
    "an item": lambda d: per_tensor(d)[1].item(),
    "empty": lambda d: (
        torch._empty_affine_quantized([2], scale=0.5, zero_point=0, dtype=torch.quint8, device=d)
        .fill_(1.0)
        .dequantize()
        + torch.ones(2, device=d)
    ),
    "a loop that trains with rounded weights": lambda d: rounded(d),
    "oneDNN": lambda d: one_dnn(d).to_dense() + torch.ones(4, 4, device=d),
    "oneDNN's sum": lambda d: (one_dnn(d) + one_dnn(d)).to_dense() * torch.ones(4, 4, device=d),
}


def rounded(d: str) -> Any:
    w = torch.linspace(-1, 1, 6).to(d).requires_grad_()
    for _ in range(3):
        near = torch.quantize_per_tensor(w.detach(), 0.05, 0, torch.qint8).dequantize()
        (w + (near - w).detach()).square().sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad = None
    return w


@pytest.mark.parametrize("name", MORE)
def test_L8_other_quantized_calls(name: str, same_as_eager: Same) -> None:
    same_as_eager(MORE[name], lazily=False)


@pytest.mark.parametrize("make", [per_tensor, per_channel, one_dnn])
def test_L3_they_say_where_they_are(make: Callable[[str], Any]) -> None:
    t = make("remote_accelerator:1")
    assert str(t.device) == "remote_accelerator:1" and t.get_device() == 1 and not t.is_cpu
    assert isinstance(t, torch.Tensor) and not isinstance(t, mindtorch.LazyTensor)
    back = t.cpu()
    assert str(back.device) == "cpu" and type(back) is torch.Tensor and str(t.to("cpu").device) == "cpu"
    assert str(t.clone().device) == "remote_accelerator:1"
    dense = t.dequantize() if t.is_quantized else t.to_dense()
    assert isinstance(dense, mindtorch.LazyTensor) and str(dense.device) == "remote_accelerator:1"
    with pytest.raises(RuntimeError, match=r"two devices, remote_accelerator:1 and remote_accelerator:0"):
        dense + torch.ones(2, device=LAZY)


def test_L7_saved_quantized_tensors_load_as_plain_ones() -> None:
    file = io.BytesIO()
    torch.save(per_tensor(LAZY), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is torch.Tensor and torch.equal(loaded, per_tensor("cpu"))
