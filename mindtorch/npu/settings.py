"""Settings of torch_npu's that programs make (``torch.npu.set_compile_mode``, ``torch.npu.config`` …).

They choose between ways to compute the same. There is one way here: kernels that CANN has compiled, on tensors in the
plain format (ND), in full precision. So they are remembered, and answered, and change nothing: but for
``ACL_PRECISION_MODE`` on chips that have no products of float32 (`cube`).
"""

from __future__ import annotations

import warnings
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import torch

from ..base.errors import UnsupportedOperationError
from . import cube
from .api import is_bf16_supported

__all__ = [
    "CubeMathType", "aclnn", "are_compatible_impl_enabled", "config", "conv", "get_amp_supported_dtype",
    "get_autocast_dtype", "get_mm_bmm_format_nd", "get_sync_debug_mode", "is_autocast_enabled",
    "is_current_stream_capturing", "is_jit_compile_false", "matmul", "mstx", "set_aoe", "set_autocast_dtype",
    "set_autocast_enabled", "set_compile_mode", "set_mm_bmm_format_nd", "set_option",
    "set_sync_debug_mode", "use_compatible_impl",
]  # fmt: skip


class CubeMathType(IntEnum):
    """How matrix products of float32 may be computed; here in float32 where the chip can."""

    KEEP_DTYPE = 0
    ALLOW_FP32_DOWN_PRECISION = 1
    USE_FP16 = 2
    USE_HF32 = 3
    FORCE_GRP_ACC_FOR_FP32 = 4
    USE_FP32_ADD = 4


config = SimpleNamespace(allow_internal_format=False)
matmul = SimpleNamespace(allow_hf32=False, cube_math_type=CubeMathType.KEEP_DTYPE)
conv = SimpleNamespace(allow_hf32=True)


class _Aclnn:
    """The setting of ``conv`` by its older name; and the version of the operators, which CANN does not tell."""

    @property
    def allow_hf32(self) -> bool:
        return conv.allow_hf32

    @allow_hf32.setter
    def allow_hf32(self, allow: bool) -> None:
        conv.allow_hf32 = allow

    @staticmethod
    def version() -> None:
        warnings.warn("[torch.npu.aclnn.version] the version of CANN's operators is unknown", stacklevel=2)


aclnn = _Aclnn()
_options: dict[str, str] = {"jitCompile": "disable", "MM_BMM_ND_ENABLE": "enable"}
#: The values that CANN knows, of options whose values have names.
_VALUES = {
    "ACL_AICORE_NUM": tuple(map(str, range(1, 33))),
    "ACL_OP_COMPILER_CACHE_MODE": ("disable", "enable", "force"),
    "ACL_OP_DEBUG_LEVEL": tuple("01234"),
    "ACL_OP_SELECT_IMPL_MODE": ("high_performance", "high_precision"),
    "ACL_PRECISION_MODE": ("allow_fp32_to_fp16", "must_keep_origin_dtype"),
}
_compatible = False


def set_option(option: dict[str, Any]) -> None:
    """Remember options of CANN's compiler (``ACL_PRECISION_MODE`` …)."""
    if not isinstance(option, dict):
        raise TypeError(f"[set_option] expected a dict of options, got {type(option).__name__}")
    given = {name: str(value) for name, value in option.items()}
    for name, value in given.items():
        if value not in _VALUES.get(name, (value,)):
            raise ValueError(f"[set_option] {name}: expected one of {', '.join(_VALUES[name])}, got {value!r}")
    _options.update(given)
    cube.must_keep(_options.get("ACL_PRECISION_MODE") == "must_keep_origin_dtype")


def set_compile_mode(jit_compile: bool = False) -> None:
    """jit_compile: whether operators would be compiled for each new shape; here they are CANN's compiled ones."""
    set_option({"jitCompile": "enable" if jit_compile else "disable"})


def is_jit_compile_false() -> bool:
    return _options["jitCompile"] == "disable"


def set_aoe(dump_path: str) -> None:
    """Tuning of operators that are compiled: none are."""
    set_option({"autotune": "enable", "autotunegraphdumppath": dump_path})


def set_mm_bmm_format_nd(is_nd: bool = True) -> None:
    set_option({"MM_BMM_ND_ENABLE": "enable" if is_nd else "disable"})


def get_mm_bmm_format_nd() -> bool:
    return _options["MM_BMM_ND_ENABLE"] == "enable"


def use_compatible_impl(is_enable: bool) -> None:
    global _compatible
    _compatible = bool(is_enable)


def are_compatible_impl_enabled() -> bool:
    return _compatible


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Only 0 (``"default"``): nothing here can tell which calls wait. RuntimeError for what torch_npu does not know."""
    if debug_mode not in (0, 1, 2, "default", "warn", "error"):
        known = "`default`, `warn`, `error`" if isinstance(debug_mode, str) else "0,1,2"
        raise RuntimeError(f"invalid value of debug_mode, expected one of {known}, got {debug_mode!r}")
    if debug_mode not in (0, "default"):
        raise UnsupportedOperationError(
            f"[torch.npu.set_sync_debug_mode] expected 0 ('default'), got {debug_mode!r}: waiting is not reported"
        )


def get_sync_debug_mode() -> int:
    return 0


def is_current_stream_capturing() -> bool:
    """False: graphs cannot be captured."""
    return False


# ---- autocast --------------------------------------------------------------------------------------------------------
def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, *([torch.bfloat16] if is_bf16_supported() else []), torch.float32]


def is_autocast_enabled() -> bool:
    return torch.is_autocast_enabled("npu")


def set_autocast_enabled(enable: bool) -> None:
    torch.set_autocast_enabled("npu", enable)


def get_autocast_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype("npu", dtype)


class mstx:
    """Marks for CANN's profiler, which is not attached: as without it, they are gone at once."""

    @staticmethod
    def mark(message: str, stream: Any = None, domain: str = "default") -> None: ...

    @staticmethod
    def range_start(message: str, stream: Any = None, domain: str = "default") -> int:
        return 0

    @staticmethod
    def range_end(range_id: int, domain: str = "default") -> None: ...

    @staticmethod
    def mstx_range(message: str, stream: Any = None, domain: str = "default") -> Any:
        return lambda function: function
