"""What an accelerator refuses and torch's meta functions let through: raised in torch's words at the program's line.

By dtype once per distinct call (`check`), by the values of known indices at each call (`install`). Words are those of
torch's CUDA kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from ..._ext import intercept as _intercept
from ..._ext import intern as _intern
from ..._ext import lazy as _core
from ...base import torch_facts
from ...devices import mode
from ...devices.lazy_device import on_cuda
from ...engine.record.intercept import describe
from . import dtypes, half_transforms, kernel_limits

__all__ = ["check", "check_generator", "install", "runs_here"]

_IN_C = {
    torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16", torch.float32: "float", torch.float64: "double",
    torch.int64: "long int", torch.int32: "int", torch.int16: "short int", torch.int8: "signed char",
    torch.uint8: "unsigned char", torch.bool: "bool",
}  # fmt: skip
_HALVES = frozenset({torch.float16, torch.bfloat16})
_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})
_EIGHTS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})


def check(info: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise what torch would say where an accelerator takes no such call of the op."""
    name = info.name
    rule = _RULES.get(name) or (_RULES.get(name[:-1]) if name.endswith("_") else None)
    if rule is not None:
        rule(name, args)
    if (by_option := _BY_OPTION.get(name)) is not None:
        by_option(args, kwargs)
    dtypes.check(info, args, kwargs)


def runs_here(func: Any) -> bool:
    """Has the op a kernel on the CPU? Those of an accelerator's own have none."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(func.name(), key) for key in ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"))


def check_generator(generator: Any, kind: str) -> None:
    """Raise torch's error of a generator that is not on the type of device that is drawn on."""
    if kind != "meta" and generator.device.type != kind:
        raise RuntimeError(f"Expected a '{kind}' device type for generator but found '{generator.device.type}'")


def _scalar(dtype: torch.dtype) -> str:
    return dtypes.SCALARS.get(dtype, str(dtype).removeprefix("torch."))


def _in_c(dtype: torch.dtype) -> str:
    return _IN_C.get(dtype, f"c10::{_scalar(dtype)}")


def _no_kernel(kernel: str, dtype: torch.dtype) -> NoReturn:
    raise NotImplementedError(f"\"{kernel}\" not implemented for '{_scalar(dtype)}'")


# ---- by dtype --------------------------------------------------------------------------------------------------------
def _addmm(name: str, args: tuple) -> None:
    first, a, b = args[:3]
    if a.dtype is not b.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {_scalar(a.dtype)} and {_scalar(b.dtype)}")
    if first.dtype is not b.dtype:
        raise RuntimeError(
            f"self and mat2 must have the same dtype, but got {_scalar(first.dtype)} and {_scalar(b.dtype)}"
        )
    _fits(a, b, "addmm")
    _product("addmm_cuda", a)


def _mm(name: str, args: tuple) -> None:
    a, b = args[:2]
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"expected mat1 and mat2 to have the same dtype, but got: {_in_c(a.dtype)} != {_in_c(b.dtype)}"
        )
    _fits(a, b, "mm")
    _product("addmm_cuda", a)


def _fits(a: Any, b: Any, op: str = "") -> None:
    if a.dim() == b.dim() == 2 and a.shape[1] != b.shape[0]:
        of = f"{op}: " if op and torch_facts.products_say_which() else ""
        shapes = f"{a.shape[0]}x{a.shape[1]} and {b.shape[0]}x{b.shape[1]}"
        raise RuntimeError(f"{of}mat1 and mat2 shapes cannot be multiplied ({shapes})")


def _scaled_mm(name: str, args: tuple) -> None:
    a, b = args[:2]
    if on_cuda(a) and a.dim() == b.dim() == 2:
        _fits(a, b)
        for t, words, at in ((a, "mat1 must be row_major", 1), (b, "mat2 must be col_major", 0)):
            if t.stride(at) != 1:
                raise RuntimeError(f"{words}, got stride {tuple(t.stride())}")
        kernel_limits.scaled(a, b)


def _bmm(name: str, args: tuple) -> None:
    a, b = args[-2:] if name == "aten::bmm" else args[1:3]
    if a.dtype is not b.dtype:
        raise RuntimeError(f"expected scalar type {_scalar(a.dtype)} but found {_scalar(b.dtype)}")
    _product("baddbmm_cuda", a)


def _mv(name: str, args: tuple) -> None:
    _product("addmv_impl_cuda", args[1] if name == "aten::addmv" else args[0])


def _product(kernel: str, t: Any) -> None:
    if (t.dtype in _WHOLE or t.dtype in _EIGHTS) and on_cuda(t):
        _no_kernel(kernel, t.dtype)


def _not_of(kernel: str, refused: frozenset[torch.dtype]) -> Callable[[str, tuple], None]:
    def rule(name: str, args: tuple) -> None:
        t = args[0]
        if isinstance(t, torch.Tensor) and t.dtype in refused and on_cuda(t):
            _no_kernel(kernel, t.dtype)

    return rule


def _layer_norm(name: str, args: tuple) -> None:
    x, weight = args[0], args[2]
    if weight is not None and weight.dtype is not x.dtype and on_cuda(x):
        raise RuntimeError(f"expected scalar type {_scalar(x.dtype)} but found {_scalar(weight.dtype)}")


def _same_dtype_grid(name: str, args: tuple) -> None:
    if args[0].dtype is not args[1].dtype:
        raise RuntimeError(
            f"grid_sampler(): expected input and grid to have same dtype, but input has {_in_c(args[0].dtype)} and "
            f"grid has {_in_c(args[1].dtype)}"
        )


def _targets(kernel: str) -> Callable[[str, tuple], None]:
    def rule(name: str, args: tuple) -> None:
        scores, target = args[:2]
        if not on_cuda(scores):
            return
        if target.dtype not in (torch.int64, torch.uint8):
            _no_kernel(kernel, target.dtype)
        if scores.dtype in _WHOLE:
            _no_kernel(kernel, scores.dtype)

    return rule


def _lstsq(args: tuple, kwargs: dict[str, Any]) -> None:
    if on_cuda(args[0]) and kwargs.get("driver") not in (None, "gels"):
        raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")


def _no_cuda(name: str, args: tuple) -> None:
    if isinstance(args[0], torch.Tensor) and on_cuda(args[0]):
        raise NotImplementedError(f"Could not run '{name}' with arguments from the 'CUDA' backend.")


_LINALG = {
    "_linalg_svd": "svd_cuda_gesvdj", "linalg_qr": "qr_cuda", "linalg_cholesky_ex": "cholesky_cusolver",
    "_linalg_eigh": "linalg_eigh_cuda", "linalg_eig": "linalg_eig_cuda", "_linalg_eigvals": "linalg_eig_cuda",
    "linalg_lu": "lu_factor_cusolver", "linalg_lu_factor_ex": "lu_factor_cusolver", "linalg_lstsq": "linalg_lstsq_cuda",
    "_linalg_solve_ex": "lu_factor_cusolver", "_linalg_det": "lu_factor_cusolver", "geqrf": "geqrf_cuda",
    "cholesky": "cholesky_cusolver", "cholesky_inverse": "cholesky_inverse_cuda",
    "triangular_solve": "triangular_solve_cuda", "linalg_solve_triangular": "triangular_solve_cuda",
    "linalg_ldl_factor_ex": "ldl_factor_cusolver", "linalg_householder_product": "orgqr_cuda",
}  # fmt: skip
_FLOATS_ONLY = {
    "gelu": "GeluCUDAKernelImpl", "_softmax": "host_softmax", "_log_softmax": "host_softmax", "silu": "silu_cuda",
    "softplus": "softplus_cuda", "elu": "elu_cuda", "mish": "mish_cuda", "hardswish": "hardswish_cuda",
    "log_sigmoid_forward": "log_sigmoid_forward_cuda", "native_layer_norm": "LayerNormKernelImpl",
    "native_group_norm": "GroupNormKernelImpl", "_fused_rms_norm": "LayerNormKernelImpl",
}  # fmt: skip


def _rules() -> Iterator[tuple[str, Callable[[str, tuple], None]]]:
    for name, kernel in _LINALG.items():
        yield name, _not_of(kernel, _HALVES | _WHOLE | _EIGHTS)
    for name, kernel in _FLOATS_ONLY.items():
        yield name, _not_of(kernel, _WHOLE | _EIGHTS)
    for name in ("upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d"):
        yield name, _not_of(f"{name}_out_frame", _WHOLE)
    for name in ("add", "sub", "mul", "div", "rsub"):
        yield name, _not_of(f"{name}_cuda", _EIGHTS)
    for name in ("histogram", "histogramdd", "_histogramdd_bin_edges"):
        yield name, _no_cuda
    yield "addmm", _addmm
    yield "mm", _mm
    yield "bmm", _bmm
    yield "baddbmm", _bmm
    yield "_scaled_mm", _scaled_mm
    yield "mv", _mv
    yield "addmv", _mv
    yield "dot", _not_of("dot", frozenset({torch.bool}) | _EIGHTS)
    yield "grid_sampler_2d", _same_dtype_grid
    yield "grid_sampler_3d", _same_dtype_grid
    yield "nll_loss_forward", _targets("nll_loss_forward_reduce_cuda_kernel_2d_index")
    yield "nll_loss2d_forward", _targets("nll_loss2d_forward_out_frame")


def _both(*rules: Callable[[str, tuple], None]) -> Callable[[str, tuple], None]:
    def rule(name: str, args: tuple) -> None:
        for each in rules:
            each(name, args)

    return rule


#: Of what is told by keyword.
_BY_OPTION: dict[str, Callable[[tuple, dict[str, Any]], None]] = {"aten::linalg_lstsq": _lstsq}
_RULES = {f"aten::{name}": rule for name, rule in _rules()}
for _name, _rule in kernel_limits.RULES.items():
    _known_rule = _RULES.get(f"aten::{_name}")
    _RULES[f"aten::{_name}"] = _rule if _known_rule is None else _both(_known_rule, _rule)
_RULES["aten::native_layer_norm"] = _both(_RULES["aten::native_layer_norm"], _layer_norm)


# ---- by values -------------------------------------------------------------------------------------------------------
_installed = False


def install() -> None:
    """Have known indices looked at before calls that use them; the values may differ where the call is the same."""
    global _installed
    if _installed:
        return
    _installed = True
    aten = torch.ops.aten
    looked = {
        aten.embedding.default: _embedding, aten.nll_loss_forward.default: _target,
        aten.nll_loss2d_forward.default: _target, aten._embedding_bag.default: _embedding,
        aten._embedding_bag_forward_only.default: _embedding, aten.index.Tensor: _index, aten.index_put.default: _index,
        aten.index_put_.default: _index, aten._index_put_impl_.default: _index, aten.index_select.default: _along,
        aten.gather.default: _along, aten.scatter.src: _along, aten.scatter.value: _along, aten.scatter_.src: _along,
        aten.scatter_.value: _along, aten.scatter_add.default: _along, aten.scatter_add_.default: _along,
        aten.index_add.default: _along, aten.index_add_.default: _along, aten.index_copy_.default: _along,
        aten.index_fill_.int_Scalar: _along,
    }  # fmt: skip
    _register(torch.Tensor.grad.__set__, "grad", _set_gradient)  # type: ignore[attr-defined]
    for name, func in half_transforms.functions():
        _register(func, f"fft_{name}", functools.partial(half_transforms.transform, name, func))
    for func, look in looked.items():
        info = describe(func, True)
        info.at_dispatch = _looking(look, info.at_dispatch)
        _intercept.register(func, info)


def _register(func: Any, name: str, handler: Callable[[tuple, dict[str, Any]], Any]) -> None:
    def handled(args: tuple, kwargs: dict[str, Any]) -> Any:
        return NotImplemented if mode.now.estimate is None else handler(args, kwargs)

    _intercept.register(func, _intern.OpInfo(func, f"aten::{name}", _intern.HANDLER, handler=handled))


def _set_gradient(args: tuple, kwargs: dict[str, Any]) -> Any:
    target, source = args
    if isinstance(source, torch.Tensor) and source.device != target.device:
        raise RuntimeError("assigned grad has data located on a different device")
    return NotImplemented


def _looking(look: Callable[[tuple], None], then: Any) -> Callable[[tuple, dict], Any]:
    def at_dispatch(args: tuple, kwargs: dict[str, Any]) -> Any:
        if mode.now.estimate is not None:
            look(args)
        return NotImplemented if then is None else then(args, kwargs)

    return at_dispatch


def _known(t: Any) -> torch.Tensor | None:
    handle = _core.get_handle(t)
    value: torch.Tensor | None = None if handle is None else _core.kept(handle)
    return value if value is not None and value.numel() and value.dtype in (torch.int64, torch.int32) else None


def _out_of(value: torch.Tensor, length: int, negative: bool) -> int | None:
    """An index that is beyond ``length``; None if there is none."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        low, high = (int(x) for x in value.aminmax())
    if high >= length:
        return high
    return low if low < (-length if negative else 0) else None


def _embedding(args: tuple) -> None:
    value = _known(args[1])
    if value is not None and _out_of(value, args[0].shape[0], False) is not None:
        raise IndexError("index out of range in self")


def _target(args: tuple) -> None:
    scores, value = args[0], _known(args[1])
    if value is None:
        return
    ignored = args[4] if len(args) > 4 else -100
    with torch._C.DisableTorchFunction():
        value = value[value != ignored]
    if value.numel():
        found = _out_of(value, scores.shape[1 if scores.dim() > 1 else 0], False)
        if found is not None:
            raise IndexError(f"Target {found} is out of bounds.")


def _index(args: tuple) -> None:
    axis = 0
    for t in args[1]:
        value = None if t is None else _known(t)
        if value is not None and axis < args[0].dim():
            found = _out_of(value, args[0].shape[axis], True)
            if found is not None:
                raise IndexError(f"index {found} is out of bounds for dimension {axis} with size {args[0].shape[axis]}")
        axis += t.dim() if t is not None and t.dtype in (torch.bool, torch.uint8) else 1


def _along(args: tuple) -> None:
    target, axis, t = args[:3]
    value = _known(t)
    if value is None or not target.dim():
        return
    found = _out_of(value, target.shape[axis], False)
    if found is not None:
        axis = axis % target.dim()
        raise IndexError(f"index {found} is out of bounds for dimension {axis} with size {target.shape[axis]}")
