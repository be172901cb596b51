"""Settings of torch's that kernels look at while they run: what was recorded before a change runs before it (SPEC L7).

Torch's Python changes each of them through a function of ``torch._C``, whoever asks for it: a function, a context
manager, an attribute of ``torch.backends``. So a stand-in for each such function sees every change.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .._ext import hooks as _hooks
from .._ext import lazy as _core
from ..engine.execute import values
from ..engine.record import predict

__all__ = ["TABLE", "Setting", "note", "patches"]


@dataclass(frozen=True)
class Setting:
    """One function of ``torch._C`` that changes a setting."""

    setter: str
    #: What it is set to, for the arguments that the setter is called with. None: torch's own question warns, or raises
    #: where the older and the newer names of a setting were mixed; every call counts as a change then.
    current: Callable[..., Any] | None = None
    #: What the setter makes of its arguments, where that is not the only one of them as it is.
    wanted: Callable[..., Any] | None = None
    #: Only CUDA's kernels look at it.
    cuda: bool = False
    #: Sizes, layouts and dtypes of results, and what is refused, depend on it; ``current`` takes no argument then.
    shapes: bool = False

    def changes(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Would this call change anything?"""
        if self.current is None:
            return True
        try:
            if self.wanted is not None:
                return bool(self.current(*args, **kwargs) != self.wanted(*args, **kwargs))
        except (TypeError, AttributeError, RuntimeError):
            return True  # torch refuses the arguments, in its own words
        return (self.current(),) != args or bool(kwargs)


def _plain(setter: str, *, cuda: bool = False, shapes: bool = False) -> Setting:
    getter = getattr(torch._C, setter.replace("set_", "get_", 1), None)
    return Setting(setter, getter, cuda=cuda, shapes=shapes)


def _default_dtype(*_args: Any) -> torch.dtype:
    return torch.get_default_dtype()


def _deterministic(*_args: Any, **_kwargs: Any) -> tuple[bool, bool]:
    return torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()


def _flushes_denormal(*_args: Any) -> bool:
    # Torch does not tell. Python's own multiplication is done by the same unit of the same thread.
    return _smallest_normal * 0.5 == 0.0


_smallest_normal = sys.float_info.min

#: Every such function of torch 2.13. Not here: what torch looks at when an operation is called, before it is recorded
#: (grad mode, autocast, the choice of attention, anomaly mode, ``torch.backends.mha``, ``opt_einsum``).
TABLE = (
    Setting("_set_default_dtype", _default_dtype, lambda d: d, shapes=True),
    Setting("_set_default_tensor_type", _default_dtype, lambda t: t.dtype, shapes=True),
    _plain("set_num_threads"),
    Setting("set_flush_denormal", _flushes_denormal, lambda mode: mode),
    Setting(
        "_set_deterministic_algorithms", _deterministic, lambda mode, warn_only=False: (mode, warn_only), shapes=True
    ),
    _plain("_set_deterministic_fill_uninitialized_memory"),
    Setting("_set_check_sparse_tensor_invariants", torch._C._check_sparse_tensor_invariants, shapes=True),
    Setting(
        "_set_fp32_precision_setter",
        lambda backend, op, _precision: torch._C._get_fp32_precision_getter(backend, op),
        lambda _backend, _op, precision: precision,
    ),
    Setting("_set_float32_matmul_precision"),
    _plain("_set_mkldnn_enabled", shapes=True),
    _plain("_set_mkldnn_deterministic"),
    Setting("_set_onednn_allow_tf32"),
    _plain("_set_nnpack_enabled", shapes=True),
    _plain("_set_qengine", shapes=True),
    _plain("_set_cpu_allow_fp16_reduced_precision_reduction"),
    _plain("_set_math_sdp_allow_fp16_bf16_reduction"),
    *(
        Setting(f"_set_sdp_use_{kind}", cuda=True)
        for kind in ("flash", "math", "mem_efficient", "cudnn", "overrideable", "fa3")
    ),
    Setting("_set_sdp_priority_order", cuda=True),
    *(_plain(f"_set_cudnn_{name}", cuda=True) for name in ("enabled", "benchmark", "deterministic")),
    *(Setting(f"_set_cudnn_{name}", cuda=True) for name in ("allow_tf32", "depthwise_kernel")),
    *(
        Setting(f"_set_cublas_allow_{name}", cuda=True)
        for name in (
            "tf32",
            "fp16_accumulation",
            "fp16_reduced_precision_reduction",
            "bf16_reduced_precision_reduction",
        )
    ),
    *(Setting(f"_set_{name}_preferred_backend", cuda=True) for name in ("blas", "linalg", "rocm_fa")),
    Setting("_set_sm_carveout_experimental", cuda=True),
    Setting("_set_miopen_immediate", cuda=True),
    *(
        Setting(f"_cuda_{name}", cuda=True)
        for name in (
            "set_cudnn_benchmark_limit",
            "setCublasWorkspaceSize",
            "setCublasLtWorkspaceSize",
            "tunableop_enable",
            "tunableop_tuning_enable",
            "tunableop_read_file",
        )
    ),
)


def patches() -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, stand-in) of each of these functions, wherever torch keeps it."""
    stand_ins = {
        id(original): _stand_in(setting, original)
        for setting in TABLE
        if (original := getattr(torch._C, setting.setter, None)) is not None
    }
    # torch.set_num_threads and its like, and the attributes of torch.backends.mkldnn and its like.
    places = [(owner, name) for owner in (torch._C, torch) for name in vars(owner)]
    modules = [type(m) for name, m in sys.modules.items() if name.startswith("torch.backends")]
    places += [(found, "setter") for module in modules for found in vars(module).values() if "setter" in _dict(found)]
    for owner, name in places:
        if (stand_in := stand_ins.get(id(_dict(owner)[name]))) is not None:
            yield owner, name, stand_in


def _dict(found: Any) -> dict[str, Any]:
    return getattr(found, "__dict__", {})


def _stand_in(setting: Setting, original: Callable[..., Any]) -> _hooks.SettingHook:
    def before(args: tuple, kwargs: dict[str, Any]) -> None:
        if _seen_by_pending(setting) and setting.changes(args, kwargs):
            values.settle(setting.setter.removeprefix("_"))

    hook = _hooks.SettingHook(original, values.lock, before, note if setting.shapes else _nothing)
    functools.update_wrapper(hook, original)
    return hook


def _nothing() -> None:
    """What is to be done after a change that predictions do not depend on."""


def _seen_by_pending(setting: Setting) -> bool:
    """Would what is pending run under this setting?"""
    if not values.tape.n_pending:
        return False
    if _forked and setting.setter == "set_num_threads":
        # The workers of a DataLoader start with this. Torch's threads did not come along with the fork: what runs
        # before there is only one to work would wait for them for good.
        return False
    return not setting.cuda or values.executor().device.type == "cuda"


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


# ---- what predictions depend on --------------------------------------------------------------------------------------
_MOST_WORLDS = 1024
_worlds: dict[tuple[Any, ...], int] = {}
_world = 0


def note() -> None:
    """Predictions hold for the settings that they were made under: use those for the present ones from now on."""
    global _world
    state = tuple(s.current() for s in TABLE if s.shapes and s.current is not None)
    if state not in _worlds and len(_worlds) >= _MOST_WORLDS:
        _core.forget_calls()
        _worlds.clear()
    world = _worlds.setdefault(state, len(_worlds))
    if world != _world:
        _world = world
        _core.set_world(world)
        predict.forget()
