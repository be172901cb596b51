"""Settings of torch's that kernels look at while they run, and those of another process made the same (SPEC L7, R1)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

__all__ = ["TABLE", "Mirrored", "Setting", "changed", "mirrored", "put_back", "set_num_threads", "take_over"]


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

#: Torch's own function, for measurements, which put back what was before: what is pending need not run for them.
set_num_threads = torch._C.set_num_threads

#: Every such function of torch 2.12 to 2.15; each release has most of them. Not here: what torch looks at when an
#: operation is called, before it is recorded (grad mode, autocast, the choice of attention, anomaly mode,
#: ``torch.backends.mha``, ``opt_einsum``).
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
        for kind in ("flash", "math", "mem_efficient", "cudnn", "overrideable", "fa3", "fa4")
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
    *(
        _plain(f"_set_{name}", cuda=True)
        for name in ("cublaslt_prefer_grouped_gemm", "native_aot_enabled", "native_aot_unconditional_masked")
    ),
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


# ---- of another process ----------------------------------------------------------------------------------------------
class Mirrored(NamedTuple):
    """A setting that an executor elsewhere is told."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]


_UNKNOWN = object()
_LEGACY = "_set_float32_matmul_precision"
#: Say what the precisions below say. Torch refuses to answer where those were set: it has no older word for some.
_OLDER = ("_set_onednn_allow_tf32", "_set_cudnn_allow_tf32", "_set_cublas_allow_tf32")
_PRECISIONS = (
    ("generic", "all"), *((backend, op) for backend in ("mkldnn", "cuda") for op in ("all", "matmul", "conv", "rnn")),
)  # fmt: skip


def _legacy() -> str | None:
    try:
        return str(torch._C._get_float32_matmul_precision())
    except RuntimeError:  # the newer settings say something that the older one has no word for
        return None


def _plainly(setting: Setting) -> Mirrored | None:
    """Of a setting whose question has the setter's name and its answer the setter's argument."""
    kind = setting.setter.removeprefix("_set_sdp_use_")
    name = setting.setter.replace("set_", "get_", 1) if kind == setting.setter else f"_get_{kind}_sdp_enabled"
    get = getattr(torch._C, name, None)
    if get is None or name == setting.setter or not isinstance(get(), (bool, int, str, list)):
        return None
    return _of(setting.setter, get)


def _of(setter: str, get: Callable[[], Any]) -> Mirrored:
    """Of a setter that takes what the question gives. It is looked up when it is called: the program's are patched."""
    return Mirrored(setter, get, lambda value: getattr(torch._C, setter)(value))


def mirrored(cuda: bool) -> list[Mirrored]:
    """The settings that matter to kernels of the CPU, or to CUDA's too. In this order they can be set.

    Two cannot be asked for in general: what sets several others, which are here, and where files are read from.
    """
    found = [
        _of("_set_default_dtype", torch.get_default_dtype),
        _of("set_flush_denormal", _flushes_denormal),
        Mirrored(
            "_set_deterministic_algorithms",
            _deterministic,
            lambda value: torch._C._set_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        _of("_set_check_sparse_tensor_invariants", torch._C._check_sparse_tensor_invariants),
        _of("_set_warnAlways", torch._C._get_warnAlways),
    ]
    known = {each.name for each in found} | {_LEGACY, *_OLDER}
    of_sdp = [s for s in TABLE if s.setter.startswith("_set_sdp_")]  # the CPU has a flash kernel, too
    for setting in (s for s in TABLE if s.setter not in known and (cuda or not s.cuda or s in of_sdp)):
        if (each := _plainly(setting)) is not None:
            found.append(each)
    if cuda:
        found.append(Mirrored(_LEGACY, _legacy, _set_legacy))
    for backend, op in _PRECISIONS:
        if cuda or backend != "cuda":
            found.append(_precision(backend, op))
    return found


def _set_legacy(value: str | None) -> None:
    if value is not None:
        torch._C._set_float32_matmul_precision(value)


def _precision(backend: str, op: str) -> Mirrored:
    return Mirrored(
        f"fp32_precision {backend} {op}",
        lambda: torch._C._get_fp32_precision_getter(backend, op),
        lambda value: torch._C._set_fp32_precision_setter(backend, op, value),
    )


def changed(settings: Iterable[Mirrored], known: dict[str, Any]) -> list[tuple[str, Any]]:
    """(name, value) of those that are not as ``known``."""
    found = [(name, value) for name, get, _set in settings if (value := get()) != known.get(name, _UNKNOWN)]
    if any(name == _LEGACY for name, _value in found):  # which sets others besides
        found += [(name, get()) for name, get, _set in settings if name.startswith("fp32_precision")]
    return found


def take_over(settings: Iterable[Mirrored], given: Iterable[tuple[str, Any]]) -> None:
    """Set what ``changed`` found elsewhere. ValueError for what is none of the settings, or no value of one."""
    table = {each.name: each for each in settings}
    wanted: list[tuple[Mirrored, Any]] = []
    same = True  # then nothing is set: who asks may be this very process
    for name, value in given:
        if name not in table:
            raise ValueError(f"expected the name of a setting, got {name!r}")
        now = table[name].get()
        if type(value) is not type(now) and None not in (value, now):
            raise ValueError(f"[{name}] expected a {type(now).__name__}, got {value!r}")
        same = same and value == now
        wanted.append((table[name], value))
    for setting, value in () if same else wanted:
        if value != setting.get() or setting.name == _LEGACY:
            setting.set(value)


@contextmanager
def put_back() -> Iterator[None]:
    """After the block the settings are what they were before it."""
    table = mirrored(cuda=True)
    before = [(each.name, each.get()) for each in table]
    try:
        yield
    finally:
        take_over(table, before)
