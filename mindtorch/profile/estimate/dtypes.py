"""Dtypes that CUDA's kernels do not take though torch's meta functions do (SPEC C10).

Where a kernel for CPUs does not take a dtype, that for CUDA does not either, but for half precision, which CUDA takes
nearly everywhere: so the CPU's kernel is asked, with one element of each tensor, once for each combination of dtypes.
`_CUDA_ALONE_TAKES` and `_CUDA_ALONE_REFUSES` are where the two differ, by torch's own database of operators
(``dtypesIfCUDA`` beside ``dtypes``; `asv_bench/false_alarms.py` compares all of it with what is said here).
"""

from __future__ import annotations

import re
from typing import Any

import torch

from ... import ops
from ...devices.lazy_device import on_cuda
from ...engine.record.predict import filled, lazy_in, quiet

__all__ = ["SCALARS", "check", "forget", "refuse"]

SCALARS = {
    torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
    torch.complex32: "ComplexHalf",
    torch.float8_e4m3fn: "Float8_e4m3fn", torch.float8_e5m2: "Float8_e5m2",
    torch.float8_e4m3fnuz: "Float8_e4m3fnuz", torch.float8_e5m2fnuz: "Float8_e5m2fnuz",
}  # fmt: skip
_CPU = torch.device("cpu")
_HALVES = frozenset({torch.float16, torch.bfloat16})
_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})
#: What every kernel of floats takes on both, and what only indexes.
_EVERYWHERE = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex32})
#: The CPU's refusals of these are its own, but of `_NOWHERE_HALF`, and where it takes no longer ones either.
_ONLY_ON_CPUS = frozenset({"Half", "BFloat16", "ComplexHalf"})
_LONGER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_REFUSED = re.compile(r"not implemented for '(\w+)'")
_REFUSED_OTHERWISE = re.compile(r"not supported for complex|does not support complex")
#: Whose kernels copy elements whatever they are, or none are there.
_ANY_DTYPE = frozenset({"view", "creation", "embedding", "communication", "random", "optimizer"})
#: A call whose tensors have more elements is asked about with smaller ones alone.
_FEW = 4096


def _named(dtypes: frozenset[torch.dtype], names: str) -> dict[str, frozenset[torch.dtype]]:
    return dict.fromkeys((f"aten::{name}" for name in names.split()), dtypes)


#: Operators that take half precision neither on CPUs nor on CUDA.
_NOWHERE_HALF = frozenset(f"aten::{name}" for name in (
    "cdist _cdist_forward pdist _pdist_forward polar zeta special_zeta ctc_loss _ctc_loss ormqr lu_unpack quantile "
    "nanquantile cholesky_solve _cholesky_solve_helper linalg_ldl_solve linalg_lu_solve special_ndtri "
    "special_log_ndtr special_erfcx special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 "
    "special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
    "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he "
    "special_laguerre_polynomial_l special_legendre_polynomial_p special_modified_bessel_i0 "
    "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
    "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t "
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
    "special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0"
).split())  # fmt: skip
#: What CUDA takes and a CPU does not.
_CUDA_ALONE_TAKES = (
    _named(frozenset({torch.bool}), "abs trace softsign")
    | _named(_WHOLE, "histc")
    | _named(frozenset({torch.complex64, torch.complex128}), "nansum nanmean")
)
#: What a CPU takes and CUDA does not, of first operands.
_CUDA_ALONE_REFUSES = (
    _named(_WHOLE, "convolution _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
                   "max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices dot vdot")
    | _named(frozenset({torch.int64}), "avg_pool1d avg_pool2d avg_pool3d")
    | _named(frozenset({torch.uint8}), "_upsample_bilinear2d_aa _upsample_bicubic2d_aa")
    | _named(_HALVES, "igamma igammac special_gammainc special_gammaincc angle histc")
)  # fmt: skip


def check(info: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise what torch would say where CUDA's kernel of the op takes no such dtypes."""
    if info.view or info.random:
        return
    tensors = lazy_in([*args, *kwargs.values()])
    if not tensors or not _concerned(info.name, tensors) or not on_cuda(tensors[0]):
        return
    name = info.name[:-1] if info.name.endswith("_") and not info.name.endswith("__") else info.name
    if tensors[0].dtype in _CUDA_ALONE_REFUSES.get(name, ()):
        refuse(f"{name.removeprefix('aten::')}_cuda", tensors[0].dtype)
    if ops.about(name).tag in _ANY_DTYPE or name.startswith(("aten::_to_copy", "aten::_scaled_")):
        return
    key = (info.func, *map(_shown, args), *((k, _shown(a)) for k, a in kwargs.items()))
    if key not in _asked:
        _asked[key] = _words(info, name, args, kwargs, tensors)
    if (words := _asked[key]) is not None:
        raise NotImplementedError(words)


_asked: dict[Any, str | None] = {}


def forget() -> None:
    """Ask afresh from now on."""
    _asked.clear()


def refuse(kernel: str, dtype: torch.dtype) -> None:
    """Raise torch's error of a kernel that does not take the dtype."""
    raise NotImplementedError(f"\"{kernel}\" not implemented for '{SCALARS.get(dtype, str(dtype)[6:])}'")


def _concerned(name: str, tensors: list[Any]) -> bool:
    """Is there a dtype that some kernel may not take? Indices beside floats are taken wherever floats are."""
    if not all(t.dtype in _EVERYWHERE for t in tensors):
        return tensors[0].dtype not in _EVERYWHERE or any(t.dtype not in _WHOLE | _EVERYWHERE for t in tensors)
    return name in _NOWHERE_HALF or name in _CUDA_ALONE_REFUSES or ops.about(name).tag == "elementwise"


def _shown(a: Any) -> Any:
    """What of an argument decides which dtypes a kernel takes."""
    if isinstance(a, torch.Tensor):
        return a.dtype, a.dim()
    if isinstance(a, (list, tuple)):
        return tuple(map(_shown, a))
    return a if isinstance(a, (torch.dtype, str, bool)) or a is None else type(a)


def _of_dtypes(said: str) -> bool:
    return bool(_REFUSED.search(said) or _REFUSED_OTHERWISE.search(said))


def _asked_of_the_cpu(
    info: Any, args: tuple, kwargs: dict[str, Any], tensors: list[Any], instead: dict[torch.dtype, torch.dtype]
) -> str:
    """The CPU's error of the call with one element each; if that is about sizes, with the call's own where they are
    few; empty where it takes them. instead: other dtypes for some."""
    dtypes = [instead.get(t.dtype, t.dtype) for t in tensors]
    said = _said(info, args, kwargs, dtypes, [torch.Size([1] * t.dim()) for t in tensors])
    if said and not _of_dtypes(said) and sum(t.numel() for t in tensors) <= _FEW:
        said = _said(info, args, kwargs, dtypes, [t.shape for t in tensors])
    return said


def _said(info: Any, args: tuple, kwargs: dict[str, Any], dtypes: list[torch.dtype], sizes: list[torch.Size]) -> str:
    """The CPU's error of the call with zeros; empty where it takes them."""
    with quiet():
        zeros = [torch.zeros(s, dtype=d, device=_CPU) for s, d in zip(sizes, dtypes, strict=True)]
        cargs, ckwargs = filled(args, kwargs, zeros, _CPU)
        if "device" in ckwargs:
            ckwargs["device"] = _CPU
        try:
            info.call(*cargs, **ckwargs)
        except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError) as error:
            return str(error) or type(error).__name__
    return ""


def _words(info: Any, name: str, args: tuple, kwargs: dict[str, Any], tensors: list[Any]) -> str | None:
    """What the CPU's kernel says of one element, or of sizes as the call's where few, where CUDA's says the same."""
    said = _asked_of_the_cpu(info, args, kwargs, tensors, {})
    if _REFUSED_OTHERWISE.search(said):
        return None if tensors[0].dtype in _CUDA_ALONE_TAKES.get(name, ()) else said.replace("on CPU", "on CUDA")
    refused = _REFUSED.search(said)
    if refused is None:
        return None
    taken = {SCALARS[dtype] for dtype in _CUDA_ALONE_TAKES.get(name, ())}
    if refused[1] in taken:
        return None
    if refused[1] in _ONLY_ON_CPUS and name not in _NOWHERE_HALF:
        longer = _REFUSED.search(_asked_of_the_cpu(info, args, kwargs, tensors, _LONGER))
        if longer is None or longer[1] not in ("Float", "ComplexFloat"):
            return None
    return f"\"{name.removeprefix('aten::')}_cuda\" not implemented for '{refused[1]}'"
