"""DistributedDataParallel for an estimated rank: what torch's reducer, which is C++, takes and communicates (SPEC C4).

Gradients are gathered in buckets, each of which is reduced as soon as it is full, while the backward pass goes on; at
its end the program waits for them, and they are copied back. The first backward pass shows in which order gradients
come; after it the buckets are made anew in that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..._ext.guards import NoGrad
from ...base.patching import Patch, existing
from ..measure import peak
from . import exchanged

__all__ = ["Bucket", "Reducer", "assign", "patches"]


def patches() -> Iterator[Patch]:
    names = {
        "Reducer": Reducer,
        "Logger": Logger,
        "_broadcast_coalesced": broadcast_coalesced,
        "_compute_bucket_assignment_by_size": assign,
        "_register_comm_hook": _register_hook,
        "_register_builtin_comm_hook": _register_builtin_hook,
        "_verify_params_across_processes": _verify,
    }
    yield from existing(dist, names)
    for module in (torch.nn.parallel.distributed, dist.utils):
        yield from existing(module, {"_verify_param_shape_across_processes": _verify})


def _verify(*args: Any, **kwargs: Any) -> None:
    """Other ranks have the parameters that this one has."""


def assign(tensors: Sequence[torch.Tensor], limits: Sequence[int], sparse: Sequence[bool] = (),
           indices: Sequence[int] = (), logger: Any = None) -> tuple[list[list[int]], list[int]]:  # fmt: skip
    """(indices of the tensors of each bucket, its limit): as torch's, one dtype and device in each."""
    open_ones: dict[Any, list[int]] = {}
    sizes: dict[Any, int] = {}
    at: dict[Any, int] = {}
    found: list[tuple[list[int], int]] = []
    for i, t in enumerate(tensors):
        which = indices[i] if indices else i
        if sparse and sparse[which]:
            found.append(([which], 0))
            continue
        key = (t.dtype, t.device)
        open_ones.setdefault(key, []).append(which)
        sizes[key] = sizes.get(key, 0) + t.numel() * t.element_size()
        limit = limits[min(at.setdefault(key, 0), len(limits) - 1)]
        if sizes[key] >= limit:
            found.append((open_ones.pop(key), limit))
            sizes[key] = 0
            at[key] += 1
    found += [(rest, limits[min(at[key], len(limits) - 1)]) for key, rest in open_ones.items()]
    if not indices:
        found.sort(key=lambda bucket: min(bucket[0]))
    return [bucket for bucket, _ in found], [limit for _, limit in found]


def broadcast_coalesced(group: Any, tensors: Sequence[torch.Tensor], buffer_size: int, src: int = 0) -> None:
    """As torch's: through flat copies of so many bytes, two at a time."""
    flying: deque[tuple[torch.Tensor, list[torch.Tensor], Any]] = deque()
    with NoGrad():
        for bucket in assign(tensors, [buffer_size])[0]:
            if len(flying) == 2:
                _land(*flying.popleft())
            parts = [tensors[i] for i in bucket]
            flat = torch.cat([t.reshape(-1) for t in parts])
            flying.append((flat, parts, dist.broadcast(flat, group=group, group_src=src, async_op=True)))
            del flat
        while flying:
            _land(*flying.popleft())


def _land(flat: torch.Tensor, parts: list[torch.Tensor], work: Any) -> None:
    work.wait()
    for part, received in zip(parts, flat.split([t.numel() for t in parts]), strict=True):
        part.copy_(received.view(part.shape))


class Logger:
    """Stands for what keeps statistics of a reducer."""

    def __init__(self, reducer: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: {}


class Bucket:
    """Gradients that are reduced together; as communication hooks know it, `torch.distributed.GradBucket`."""

    def __init__(self, parameters: list[Any], which: list[int], index: int, last: bool) -> None:
        self.which, self._parameters = which, parameters
        self._index, self._last = index, last
        sizes = [p.numel() for p in parameters]
        first = parameters[0]
        self._buffer = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        peak.say([self._buffer], peak.EXCHANGED)
        flat = self._buffer.split(sizes)
        self.views = [part.view(p.shape) for part, p in zip(flat, parameters, strict=True)]
        self.missing = set(which)
        self.work: Any = None

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        return list(self.views)

    def parameters(self) -> list[torch.Tensor]:
        return list(self._parameters)


class Reducer:
    """Stands for torch's: the same buckets at the same time."""

    def __init__(self, params: Sequence[torch.Tensor], bucket_indices: list[list[int]], limits: Sequence[int],
                 group: Any, sparse: Sequence[bool] = (), bucket_bytes_cap: int = 25 << 20,
                 find_unused_parameters: bool = False, gradient_as_bucket_view: bool = False, names: Any = None,
                 first_bucket_bytes_cap: int = 1 << 20, *more: Any, **options: Any) -> None:  # fmt: skip
        self._params, self._group = list(params), group
        self._limits = [first_bucket_bytes_cap, bucket_bytes_cap]
        if len(more) > 2 and more[2]:
            self._limits = list(more[2])
        self._find_unused, self._as_views = find_unused_parameters, gradient_as_bucket_view
        self._hook: Callable[[Bucket], Any] | None = None
        self._order: list[int] = []
        self._rebuilt = self._expecting = self._queued = self._static = False
        self._buckets: list[Bucket] = []
        self._fill(bucket_indices)
        self._handles = [
            p.register_post_accumulate_grad_hook(lambda p, i=i: self._ready(i))  # type: ignore[misc]
            for i, p in enumerate(self._params)
        ]

    def _fill(self, bucket_indices: list[list[int]]) -> None:
        self._buckets.clear()  # first: their memory is the new ones'
        with NoGrad():
            for n, which in enumerate(bucket_indices):
                parameters = [self._params[i] for i in which]
                self._buckets.append(Bucket(parameters, which, n, n + 1 == len(bucket_indices)))
        self._bucket_of = {i: (bucket, k) for bucket in self._buckets for k, i in enumerate(bucket.which)}

    # ---- what the module calls
    def prepare_for_backward(self, outputs: Any) -> None:
        self._expecting, self._queued = True, False
        for bucket in self._buckets:
            bucket.missing, bucket.work = set(bucket.which), None

    def _rebuild_buckets(self) -> bool:
        if self._rebuilt or not self._order or (self._find_unused and not self._static):
            return False
        self._rebuilt = True
        order = [*self._order, *(i for i in range(len(self._params)) if i not in set(self._order))]
        self._fill(assign([self._params[i] for i in order], self._limits, (), order)[0])
        return True

    def _set_static_graph(self) -> None:
        self._static = True

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _delay_all_reduce(self) -> None:
        self._finish()

    def _autograd_hook(self, index: int) -> None:
        self._ready(index)

    def _ddp_graph_static(self) -> bool:
        return self._static

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    # ---- while the backward pass runs
    def _ready(self, index: int) -> None:
        if not self._expecting:
            return
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        if not self._rebuilt:
            self._order.append(index)
        bucket, k = self._bucket_of[index]
        if index not in bucket.missing:
            return
        parameter = self._params[index]
        with NoGrad():
            if parameter.grad is not None and parameter.grad is not bucket.views[k]:
                torch.mul(parameter.grad, 1 / self._group.size(), out=bucket.views[k])
                if self._as_views:
                    parameter.grad = bucket.views[k]
            bucket.missing.discard(index)
            if not bucket.missing:
                self._reduce(bucket)

    def _reduce(self, bucket: Bucket) -> None:
        if self._hook is not None:
            bucket.work = self._hook(bucket)
        else:
            bucket.work = dist.all_reduce(bucket.buffer(), group=self._group, async_op=True)

    def _finish(self) -> None:
        if not self._expecting:
            return
        self._expecting = False
        with NoGrad():
            for bucket in self._buckets:
                if bucket.work is None:  # parameters without a gradient
                    self._reduce(bucket)
            for bucket in self._buckets:
                if bucket.work is not None:
                    bucket.work.wait()
                if not self._as_views:
                    for i, view in zip(bucket.which, bucket.views, strict=True):
                        gradient = self._params[i].grad
                        if gradient is not None and not gradient.is_sparse:  # such a one is exchanged as of all rows
                            gradient.copy_(view)
                bucket.work = None


def _register_hook(reducer: Reducer, state: Any, hook: Callable[[Any, Bucket], Any]) -> None:
    reducer._hook = lambda bucket: hook(state, bucket)


def _register_builtin_hook(reducer: Reducer, kind: Any) -> None:
    """All-reduce, also in half precision."""
    if "FP16" in str(kind):
        reducer._hook = _in_half_precision


def _in_half_precision(bucket: Bucket) -> Any:
    buffer = bucket.buffer()
    half = buffer.half()
    work = dist.all_reduce(half, async_op=True)
    return exchanged.Later(work, lambda: buffer.copy_(half))
