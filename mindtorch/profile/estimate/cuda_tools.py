"""Of ``torch.cuda``, what works on programs more than on tensors: graphs, memory snapshots, marks, types (SPEC C4)."""

from __future__ import annotations

import functools
import importlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ..._ext import ledger
from ...base.patching import Patch
from ...devices import mode
from ...devices.lazy_device import meant
from ...patch import tensor_types
from . import assumptions, compiling, kernel_limits, side_streams

__all__ = ["patches"]
_functions = importlib.import_module("torch.nn.parallel._functions")
_parallel = importlib.import_module("torch.nn.parallel.data_parallel")
_lbfgs = importlib.import_module("torch.optim.lbfgs")


def patches() -> list[Patch]:
    kind = mode.now.accelerator
    marks = dict.fromkeys(("range_push", "range_pop", "range_start", "range_end", "mark"), lambda *args, **kwargs: 0)
    graphs = {"CUDAGraph": Graph, "graph": capturing, "graph_pool_handle": pool_handle}
    history: dict[str, Any] = {
        "_record_memory_history": lambda *args, **kwargs: None,
        "_snapshot": lambda *args, **kwargs: {"segments": [], "device_traces": [[]]},
        "_dump_snapshot": lambda *args, **kwargs: None,  # --memory-snapshot writes one
        "_set_allocator_settings": lambda *args, **kwargs: None,
    }
    return [
        *((torch.cuda, name, value) for name, value in graphs.items()),
        *((torch.cuda.graphs, name, value) for name, value in graphs.items()),
        *((torch.cuda.nvtx, name, value) for name, value in marks.items()),
        *((torch.cuda.memory, name, value) for name, value in history.items()),
        *tensor_types.patches(kind, named_otherwise=False),
        (torch.autograd.profiler, "emit_nvtx", _Marks),
        (torch.profiler.profiler._KinetoProfile, "__init__", _profiler_init),
        (torch.cuda.nccl, "version", lambda: (2, 27, 5)),
        (_parallel, "_get_available_device_type", lambda: meant() if torch.cuda.device_count() else None),
        (_parallel, "_get_all_device_indices", lambda: list(range(torch.cuda.device_count()))),
        (_functions, "_get_stream", lambda device: None),  # all work is in program order
        (_parallel, "_check_balance", lambda device_ids: None),
        (torch.optim.LBFGS, "step", _lbfgs_step),
        (_lbfgs, "_strong_wolfe", _as_outside(_torch_line_search)),
    ]


# ---- graphs ----------------------------------------------------------------------------------------------------------
class Graph:
    """Stands for torch.cuda.CUDAGraph: what is captured is counted as it comes; a replay counts it once more.

    The capture itself computes nothing on a GPU, so the first replay is the one that was counted. What is allocated
    during a capture is of a private pool, which is the graph's until it is reset or gone.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._calls = (0, 0)
        self._counted = False
        self._pool: tuple[int, int] | None = None
        self._device = 0

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **options: Any) -> None:
        self.reset()
        self._calls = (ledger.position(), ledger.position())
        self._device, self._pool = mode.now.current_cuda(), pool or pool_handle()
        side_streams.tell(self._device, "capture", self._pool[1])
        kernel_limits.within_capture(True)

    def capture_end(self) -> None:
        kernel_limits.within_capture(False)
        side_streams.tell(self._device, "capture", 0)
        self._calls = (self._calls[0], ledger.position())
        self._counted = False

    def replay(self) -> None:
        if self._counted:
            side_streams.tell(self._device, "replay", 1)
            with compiling.within(compiling.GRAPHED):
                ledger.repeat(*self._calls)
            side_streams.tell(self._device, "replay", 0)
        self._counted = True

    def reset(self) -> None:
        self._calls = (0, 0)
        if self._pool is not None:
            side_streams.tell(self._device, "release_graph", self._pool[1])
            self._pool = None

    def __del__(self) -> None:
        self.reset()

    def instantiate(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return self._pool or (0, 0)

    def enable_debug_mode(self) -> None: ...

    def debug_dump(self, debug_path: str) -> None: ...


_handles = itertools.count(1)


def pool_handle() -> tuple[int, int]:
    """Stands for torch.cuda.graph_pool_handle: a private pool that several graphs may share."""
    return 0, next(_handles)


class capturing:
    """Stands for torch.cuda.graph: ``with torch.cuda.graph(g):``. As there, the cache is emptied before, and the
    capture has a stream of its own."""

    def __init__(self, cuda_graph: Graph, pool: Any = None, stream: Any = None, **options: Any) -> None:
        self.cuda_graph, self._pool, self._stream = cuda_graph, pool, stream

    def __enter__(self) -> None:
        device = self._device = mode.now.current_cuda()
        side_streams.tell(device, "empty_cache", 0)
        side_streams.captures_on(self._stream, device)
        self.cuda_graph.capture_begin(self._pool)

    def __exit__(self, *error: object) -> None:
        self.cuda_graph.capture_end()
        side_streams.captures_no_more(self._device)


class _Marks:
    """Stands for torch.autograd.profiler.emit_nvtx."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None: ...

    def __enter__(self) -> _Marks:
        return self

    def __exit__(self, *error: object) -> None: ...


_torch_profiler_init = torch.profiler.profiler._KinetoProfile.__init__


def _profiler_init(self: Any, *, activities: Any = None, **options: Any) -> None:
    """Of torch.profiler: of the CPU alone, as there is no device that could be asked for its events."""
    _torch_profiler_init(self, activities=[torch.profiler.ProfilerActivity.CPU], **options)


# ---- LBFGS -----------------------------------------------------------------------------------------------------------
_torch_lbfgs_step, _torch_line_search = torch.optim.LBFGS.step, _lbfgs._strong_wolfe
_outside = threading.local()  # `numbers`: what is assumed outside of each step that runs, the innermost last


def _lbfgs_step(self: Any, closure: Any) -> Any:
    """A step with all its iterations, of which each keeps its curvature: a number that was assumed decides neither."""
    before = getattr(_outside, "numbers", ())
    _outside.numbers = (*before, assumptions.number())
    try:
        with _never_converged(self.param_groups), assumptions.instead(1.0):
            return _torch_lbfgs_step(self, _as_outside(closure))
    finally:
        _outside.numbers = before


def _as_outside(func: Any) -> Callable[..., Any]:
    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        numbers = getattr(_outside, "numbers", ())
        with assumptions.instead(numbers[-1]) if numbers else nullcontext():
            return func(*args, **kwargs)

    return called


@contextmanager
def _never_converged(groups: list[dict[str, Any]]) -> Iterator[None]:
    names = ("tolerance_grad", "tolerance_change")
    before = [{name: group[name] for name in names} for group in groups]
    for group in groups:
        group.update(dict.fromkeys(names, -1.0))
    try:
        yield
    finally:
        for group, values in zip(groups, before, strict=True):
            group.update(values)
