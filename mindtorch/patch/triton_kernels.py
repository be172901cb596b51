"""Kernels of the program's own that it launches with Triton: torch does not hear of them.

A profile has each launch as the operator ``triton::NAME`` of the tensors that it is given; so has an estimate, in which
nothing is compiled and launched: what those tensors hold is unknown afterwards, and a tuner's kernels are all as good.
Kernels that torch.compile makes are launched in another way, and are none of these. Recorded tensors are refused.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..base.errors import UnsupportedOperationError
from ..base.patching import Patch, Patches, existing
from ..engine.execute import tensors, values

__all__ = ["counted", "imagined", "refused"]

#: Bytes of shared memory that a block can have, by compute capability: CUDA C++ Programming Guide, "Compute
#: Capabilities" (opt-in, less the kilobyte that CUDA keeps).
_SHARED = {(7, 0): 98304, (7, 5): 65536, (8, 0): 166912, (8, 6): 101376, (8, 9): 101376, (9, 0): 232448}


class _Waiting(threading.local):
    """The launches that wait for their operator, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []


_waiting = _Waiting()


def _tensors_of(args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Those that a kernel is given, also behind descriptors of blocks (``TensorDescriptor``)."""
    leaves = tree_leaves((args, kwargs))
    given = (leaf if isinstance(leaf, torch.Tensor) else getattr(leaf, "base", None) for leaf in leaves)
    return [t for t in given if isinstance(t, torch.Tensor)]


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library("triton", "FRAGMENT")


def _tell(kernel: Any, given: list[torch.Tensor]) -> None:
    """Call the kernel's operator, of which torch tells those that watch."""
    _operator(re.sub(r"\W", "_", kernel.__name__, flags=re.ASCII))(given)


@functools.cache
def _operator(name: str) -> Callable[[list[torch.Tensor]], None]:
    """``triton::NAME``. What only reads would cost nothing; torch counts no versions for it, as for Triton's own."""
    _library().define(f"{name}(Tensor(a!)[] tensors) -> ()")
    _library().impl(name, _launch, "CompositeExplicitAutograd")
    return getattr(torch.ops.triton, name)  # type: ignore[no-any-return]


def _launch(tensors: list[torch.Tensor]) -> None:
    if _waiting.calls:
        _waiting.calls.pop()()


def _run_of(jit: Any) -> Any:
    """What launches a kernel; None where this release of Triton has another way: then nothing is known of launches."""
    return getattr(getattr(jit, "JITFunction", None), "run", None)


def counted(jit: Any) -> Iterator[Patch]:
    """Have each launch counted. jit: Triton's module of that name."""
    if (run := _run_of(jit)) is None:
        return

    @functools.wraps(run)
    def launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        given = [] if warmup else _tensors_of(args, kwargs)
        if not given:
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        done: list[Any] = []
        calls, call = _waiting.calls, lambda: done.append(run(self, *args, grid=grid, warmup=warmup, **kwargs))
        calls.append(call)
        try:
            _tell(self, [t.data for t in given])  # whose versions are apart
        finally:
            if call in calls:
                calls.remove(call)
        if not done:  # a mode of the program's took the operator for itself
            call()
        return done[0]

    yield jit.JITFunction, "run", launch


@contextmanager
def imagined(lose: Callable[[torch.Tensor], None], current: Callable[[], int]) -> Iterator[None]:
    """Within the block nothing is compiled or launched. lose: the tensor's values are unknown from now on; current: the
    index of the current device."""
    patches = Patches()

    def launching(jit: Any) -> Iterator[Patch]:
        def launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            given = [] if warmup else _tensors_of(args, kwargs)
            if given:
                with torch.no_grad():
                    _tell(self, given)
            for tensor in given:
                lose(tensor)

        if _run_of(jit):
            yield jit.JITFunction, "run", launch

    def tuning(autotuner: Any) -> Iterator[Patch]:
        alike = {"_bench": lambda self, *args, config, **meta: [0.0, 0.0, 0.0]}
        return existing(getattr(autotuner, "Autotuner", None), alike)

    def driving(module: Any) -> Iterator[Patch]:
        config = getattr(module, "driver", None)
        name = "active" if "active" in getattr(config, "__dict__", ()) else "_active"
        return existing(config, {name: _driver(current)})

    patches.put_when_loaded("triton.runtime.jit", launching)
    patches.put_when_loaded("triton.runtime.autotuner", tuning)
    patches.put_when_loaded("triton.runtime.driver", driving)
    try:
        yield
    finally:
        patches.undo()


def _driver(current: Callable[[], int]) -> Any:
    """What programs ask Triton's driver about the device."""

    def of(device: Any) -> dict[str, int]:
        found = torch.cuda.get_device_properties(device)
        shared = _SHARED.get((found.major, found.minor), max(_SHARED.values()))
        return {"max_shared_mem": shared, "max_num_regs": found.regs_per_multiprocessor, "warpSize": found.warp_size,
                "multiprocessor_count": found.multi_processor_count}  # fmt: skip

    def target() -> Any:
        found = torch.cuda.get_device_properties(None)
        return SimpleNamespace(backend="cuda", arch=10 * found.major + found.minor, warp_size=found.warp_size)

    return SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=of),
        get_active_torch_device=lambda: torch.device("cuda", current()),
        get_benchmarker=lambda: lambda *args, **kwargs: [0.0, 0.0, 0.0],
        get_current_device=current,
        get_current_stream=lambda device: 0,
        get_current_target=target,
        get_device_capability=torch.cuda.get_device_capability,
        get_device_interface=lambda: torch.cuda,
        set_current_device=torch.cuda.set_device,
    )


def refused(jit: Any) -> Iterator[Patch]:
    """Recorded tensors have no memory that a kernel could take. jit: Triton's module of that name."""
    if (run := _run_of(jit)) is None:
        return

    @functools.wraps(run)
    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(t, tensors.LazyTensor) for t in _tensors_of(args, kwargs)):
            device = values.executor().device
            if device.type != "cuda":
                raise UnsupportedOperationError(
                    f"[Triton's kernel {self.__name__}] expected tensors in the memory of a GPU of this process, got "
                    f"recorded ones, which are computed on {device}"
                )
        return run(self, *args, **kwargs)

    yield jit.JITFunction, "run", launch
