"""Collectives of an estimated rank: what torch's process groups do is noted, and nothing is sent (SPEC C4).

A process group of torch's (its ``fake`` backend) has this rank's place in it; what would be communicated comes here,
by the methods of `ProcessGroup` or by torch's functional collectives. Each is a call in the ledger, and an `Event`:
when it began, and when the program waits for it (`communication.simulate` makes times of that).

What is known of values: others are taken to hold what this rank holds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..._ext import lazy as _core
from ..._ext import ledger
from ...base.patching import Patch, existing
from ...engine.record import predict

__all__ = ["Call", "Event", "Work", "begin", "begun", "calls", "events", "patches", "wait_for"]


class Call(NamedTuple):
    """A distinct collective. kind: ``all_reduce`` …; nbytes: as NCCL's tests count them: of the largest side of it;
    ranks: those of the group (global), async_op: whether the program goes on at once."""

    kind: str
    nbytes: int
    ranks: tuple[int, ...]


class Event(NamedTuple):
    """position: calls in the ledger until then; number: of the collective, from 0; waits: is it the wait for it?"""

    position: int
    number: int
    waits: bool


calls: list[Call] = []  # by number
distinct: set[Call] = set()  # those in `calls`
events: list[Event] = []
of_nccl_alone: set[str] = set()  # names of groups
_names: dict[Call, str] = {}  # as the ledger has them
_by_name: dict[str, Call] = {}
_pending: dict[int, int] = {}  # of functional collectives: root slot → number


def begin() -> None:
    """Nothing has been communicated so far."""
    calls.clear()
    distinct.clear()
    events.clear()
    of_nccl_alone.clear()
    _pending.clear()
    streams.clear()


def call_named(name: str) -> Call | None:
    """The collective behind a name in the ledger."""
    return _by_name.get(name)


streams: list[Any] = []  # the program's side streams that are current, innermost last


def begun(kind: str, nbytes: int, ranks: Sequence[int], async_op: bool) -> int:
    """A collective begins here: its number. If it is not asynchronous, the program waits for it at once."""
    call = Call(kind, nbytes, tuple(ranks))
    name = _names.get(call)
    if name is None:
        name = _names[call] = f"c10d::{kind} ({len(_names)})"
        _by_name[name] = call
    position, number = ledger.position(), len(calls)
    ledger.note(name)
    calls.append(call)
    distinct.add(call)
    events.append(Event(position, number, False))
    if streams:  # work of another stream: who waits for that one waits for it
        streams[-1].last = number
    elif not async_op:
        wait_for(number)
    return number


def wait_for(number: int | None) -> None:
    """The program goes no further before that collective has ended."""
    if number is None:
        return
    if streams:
        streams[-1].last = max(number, streams[-1].last if streams[-1].last is not None else -1)
        return
    events.append(Event(ledger.position(), number, True))


class Work(dist.Work):  # type: ignore[misc]
    """What a collective gives: it has ended as soon as one waits for it."""

    def __init__(self, number: int | None, result: Any = None) -> None:
        super().__init__()
        self._number, self._result = number, result
        self._waited = False

    def wait(self, timeout: Any = None) -> bool:
        if not self._waited:
            self._waited = True
            wait_for(self._number)
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> Any:
        return None

    def result(self) -> Any:
        return self._result

    def get_future(self) -> Any:
        return Later(self, lambda: self._result)


class Later:
    """Stands for a future of a collective: whoever waits for it waits for that one, and gets what `make` gives."""

    def __init__(self, work: Any, make: Callable[[], Any]) -> None:
        self._work, self._make = work, make
        self._made: list[Any] = []

    def wait(self) -> Any:
        if not self._made:
            self._work.wait()
            self._made.append(self._make())
        return self._made[0]

    value = wait

    def done(self) -> bool:
        return True

    def then(self, callback: Callable[[Any], Any]) -> Later:
        return Later(self, lambda: callback(self))

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        callback(self)


# ---- the methods of process groups -----------------------------------------------------------------------------------
def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _flat(item)] if isinstance(value, (list, tuple)) else []


def _bytes(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in _flat(value))


def ranks_of(group: Any) -> list[int]:
    """The global ranks of a process group."""
    return dist.get_process_group_ranks(group)


def _async(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))


def _keep(target: torch.Tensor, source: torch.Tensor | None, change: Callable[[Any], Any] | None = None) -> None:
    """``target`` now holds what ``source`` does, if that is known; None: what nobody knows."""
    handle = _core.get_handle(target)
    if handle is None:
        return
    known = None if source is None or _core.get_handle(source) is None else _core.kept(_core.get_handle(source))
    there = _core.kept(handle)
    if known is None or there is None or there.numel() != known.numel():
        _core.lose(handle)
        return
    with predict.quiet(), torch.no_grad():
        there.copy_((known if change is None else change(known)).reshape(there.shape))


def _reduced(opts: Any, group_size: int) -> Callable[[Any], Any] | None:
    """What becomes of a value that all ranks hold, by the reduction; None: it stays as it is."""
    op = getattr(opts, "reduceOp", opts)
    if op == dist.ReduceOp.SUM:
        return lambda value: value * group_size
    if op == dist.ReduceOp.PRODUCT:
        return lambda value: value**group_size
    return None


def _reduces(kind: str, self: Any, tensors: Any, opts: Any = None, *args: Any, **kwargs: Any) -> Work:
    tensors = _flat(tensors)
    for t in tensors:
        _keep(t, t, _reduced(opts, self.size()))
    return Work(begun(kind, _bytes(tensors), ranks_of(self), _async(opts)), tensors)


def _broadcast(self: Any, tensors: Any, opts: Any = None, *args: Any, **kwargs: Any) -> Work:
    tensors = _flat(tensors)
    return Work(begun("broadcast", _bytes(tensors), ranks_of(self), _async(opts)), tensors)


def _all_gather(self: Any, outputs: Any, inputs: Any, opts: Any = None, *args: Any, **kwargs: Any) -> Work:
    """Also into one tensor: its parts one after another."""
    given, made = _flat(inputs), _flat(outputs)
    for i, t in enumerate(made):
        if len(made) == len(given) and t.numel() != given[i].numel():
            _keep(t, given[i], lambda value: value.reshape(-1).repeat(self.size()) if value.numel() else value)
        else:
            _keep(t, given[i % len(given)] if len(given) > 1 else given[0])
    return Work(begun("all_gather", _bytes(made), ranks_of(self), _async(opts)), made)


def _gather(self: Any, outputs: Any, inputs: Any, opts: Any = None, *args: Any, **kwargs: Any) -> Work:
    given, made = _flat(inputs), _flat(outputs)
    for t in made:
        _keep(t, given[0])
    return Work(begun("gather", _bytes(given) * self.size(), ranks_of(self), _async(opts)), made)


def _scatter(self: Any, outputs: Any, inputs: Any, opts: Any = None, *args: Any, **kwargs: Any) -> Work:
    given, made = _flat(inputs), _flat(outputs)
    _keep(made[0], given[self.rank()] if given else None)
    return Work(begun("scatter", _bytes(made) * self.size(), ranks_of(self), _async(opts)), made)


def _reduce_scatter(self: Any, outputs: Any, inputs: Any, opts: Any = None, *args: Any, **kwargs: Any) -> Work:
    made = _flat(outputs)
    for t in made:
        _keep(t, None)
    return Work(begun("reduce_scatter", _bytes(inputs), ranks_of(self), _async(opts)), made)


def _all_to_all(self: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Work:
    given, made = _flat(inputs), _flat(outputs)
    for i, t in enumerate(made):
        _keep(t, given[i] if len(given) == len(made) else None)
    opts = kwargs.get("opts", args[-1] if args else None)
    return Work(begun("all_to_all", max(_bytes(given), _bytes(made)), ranks_of(self), _async(opts)), made)


def _peer(self: Any, peer: int) -> tuple[int, int]:
    ranks = ranks_of(self)
    return (dist.get_rank(), ranks[peer] if 0 <= peer < len(ranks) else ranks[-1])


def _send(self: Any, tensors: Any, peer: int = 0, *args: Any, **kwargs: Any) -> Work:
    return Work(begun("send", _bytes(tensors), _peer(self, peer), True))


def _recv(self: Any, tensors: Any, peer: int = 0, *args: Any, **kwargs: Any) -> Work:
    tensors = _flat(tensors)
    for t in tensors:
        _keep(t, None)
    return Work(begun("recv", _bytes(tensors), _peer(self, peer), True), tensors)


def _barrier(self: Any, *args: Any, **kwargs: Any) -> Work:
    return Work(begun("barrier", 0, ranks_of(self), False))


def _start_coalescing(self: Any, device: Any) -> None:
    """Collectives begun together: here each is one of its own."""


def _end_coalescing(self: Any, device: Any) -> Work:
    return Work(len(calls) - 1 if calls else None)


_METHODS: dict[str, Callable[..., Any]] = {
    "allreduce": partial(_reduces, "all_reduce"), "allreduce_coalesced": partial(_reduces, "all_reduce"),
    "reduce": partial(_reduces, "reduce"), "broadcast": _broadcast,
    "allgather": _all_gather, "_allgather_base": _all_gather, "all_gather_single": _all_gather,
    "allgather_coalesced": _all_gather, "allgather_into_tensor_coalesced": _all_gather,
    "all_gather_single_coalesced": _all_gather, "gather": _gather, "scatter": _scatter,
    "reduce_scatter": _reduce_scatter, "_reduce_scatter_base": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter, "reduce_scatter_tensor_coalesced": _reduce_scatter,
    "reduce_scatter_single_coalesced": _reduce_scatter, "alltoall": _all_to_all, "alltoall_base": _all_to_all,
    "all_to_all_single": _all_to_all, "send": _send, "recv": _recv, "recv_anysource": _recv, "barrier": _barrier,
    "monitored_barrier": _barrier, "_start_coalescing": _start_coalescing, "_end_coalescing": _end_coalescing,
}  # fmt: skip


def _where_taken(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with torch's refusal of tensors on the CPU where the group has no backend for them."""

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.group_name in of_nccl_alone and any(t.device.type == "cpu" for t in _flat(args)):
            raise RuntimeError("No backend type associated with device type cpu")
        return method(self, *args, **kwargs)

    return checked


def patches() -> Iterator[Patch]:
    return existing(dist.ProcessGroup, {name: _where_taken(method) for name, method in _METHODS.items()})


# ---- functional collectives: operators that give new tensors ---------------------------------------------------------
def functional(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``torch.ops._c10d_functional.<op>(...)`` on tensors without data."""
    name = func._schema.name.partition("::")[2]
    if name == "wait_tensor":
        t = args[0]
        number = _pending.pop(_core.root_slot(_core.get_handle(t)), None)
        wait_for(number)
        return t
    values = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
    inputs = args[0]
    group: Any = values.get("group_name", values.get("group"))
    if isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)
    kind = next(kind for word, kind in _FUNCTIONAL if name.startswith(word))
    several = isinstance(inputs, (list, tuple))
    given = list(inputs) if several else [inputs]
    in_place = name.endswith("_")
    made = given if in_place else [_result(kind, t, values, group.size()) for t in given]
    for t, source in zip(made, given, strict=True):
        _keep(t, source if kind == "broadcast" else None)
    number = begun(kind, max(_bytes(given), _bytes(made)), ranks_of(group), True)
    for t in made:
        _pending[_core.root_slot(_core.get_handle(t))] = number
    return made if several else made[0]


_FUNCTIONAL = (
    ("all_reduce", "all_reduce"), ("all_gather", "all_gather"), ("reduce_scatter", "reduce_scatter"),
    ("all_to_all", "all_to_all"), ("broadcast", "broadcast"),
)  # fmt: skip


def _result(kind: str, t: torch.Tensor, values: dict[str, Any], size: int) -> torch.Tensor:
    first = t.shape[0] if t.dim() else 1
    if kind == "all_gather":
        return t.new_empty((first * size, *t.shape[1:]))
    if kind == "reduce_scatter":
        return t.new_empty((first // size, *t.shape[1:]))
    if kind == "all_to_all":
        sizes = values.get("output_split_sizes") or [first]
        return t.new_empty((math.fsum(sizes) and int(sum(sizes)), *t.shape[1:]))
    return torch.empty_like(t)
