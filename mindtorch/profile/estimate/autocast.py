"""``torch.autocast("cuda")`` in an estimate: CUDA's lists of ops, where C++ takes the tensors to be on the CPU.

What CUDA computes in float32 (norms, softmax, sums, exponentials) the CPU leaves in the shorter dtype: activations of
another size. Those ops get kernels for autocast as long as the estimate lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..._ext import lazy as _core
from ...base.patching import Patch
from ...devices.lazy_device import on_cuda

__all__ = ["as_on_cuda", "patches"]

_KEY = "AutocastCPU"
_FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim "
    "nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits "
    "dist pdist cdist renorm logsumexp upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d "
    "upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d"
).split()  # fmt: skip
#: These compute in float32 without a copy of their input.
_BY_OPTION = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm sum "
    "sum.dim_IntList"
).split()  # fmt: skip
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot tensordot vdot".split()


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Within the block, autocast of tensors without data on ``cuda`` is CUDA's."""
    library = torch.library.Library("aten", "IMPL")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        for names, cast in ((_FLOAT32, _to_float32), (_BY_OPTION, _by_option), (_WIDEST, _to_widest)):
            for name in names:
                packet, _, overload = name.partition(".")
                op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
                if op is not None and not has(op.name(), _KEY):
                    library.impl(name, _kernel(op, cast), _KEY)
        yield
    finally:
        library._destroy()


def _kernel(op: Any, cast: Callable[[Any, tuple, dict[str, Any]], tuple[tuple, dict[str, Any]]]) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys), torch._C.DisableTorchFunctionSubclass():
            if any(_eligible(t) for t in args):
                args, kwargs = cast(op, args, kwargs)
            return op(*args, **kwargs)

    return kernel


def _eligible(t: Any) -> bool:
    without_data = _core.device_index(t) < 0
    return without_data and t.is_floating_point() and t.dtype is not torch.float64 and on_cuda(t)


def _all_to(dtype: torch.dtype, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    def cast(t: Any) -> Any:
        return t.to(dtype) if _eligible(t) and t.dtype is not dtype else t

    return tuple(map(cast, args)), {name: cast(t) for name, t in kwargs.items()}


def _to_float32(op: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    return _all_to(torch.float32, args, kwargs)


def _to_widest(op: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    wide = any(_eligible(t) and t.dtype is torch.float32 for t in args)
    return _all_to(torch.float32, args, kwargs) if wide else (args, kwargs)


def _by_option(op: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    at = next(i for i, a in enumerate(op._schema.arguments) if a.name == "dtype")
    if kwargs.get("dtype") is None and (len(args) <= at or args[at] is None) and _eligible(args[0]):
        return args[:at], {**kwargs, "dtype": torch.float32}
    return args, kwargs


# ---- what the program is told ----------------------------------------------------------------------------------------
_enabled, _dtype, _bce = torch.is_autocast_enabled, torch.get_autocast_dtype, torch._C._nn.binary_cross_entropy


def patches() -> list[Patch]:
    """(owner, attribute, replacement): autocast is the CPU's to C++, CUDA's to the program."""
    return [
        (torch, "is_autocast_enabled", lambda device_type="cuda": _enabled(_named(device_type))),
        (torch, "get_autocast_dtype", _get_dtype),
        (torch, "get_autocast_gpu_dtype", lambda: _get_dtype("cuda")),
        (torch._C._nn, "binary_cross_entropy", _binary_cross_entropy),
    ]


def _named(device_type: Any) -> Any:
    return "cpu" if device_type == "cuda" else device_type


def _get_dtype(device_type: str) -> torch.dtype:
    return _dtype("cpu" if device_type == "cuda" and _enabled("cpu") else device_type)


def _binary_cross_entropy(input: Any, *args: Any, **kwargs: Any) -> Any:
    if _enabled("cpu") and _eligible(input):
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
            "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
            "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
            "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
            "safe to autocast."
        )
    return _bce(input, *args, **kwargs)
