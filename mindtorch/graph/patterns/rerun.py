"""Nodes of a graph, run again on given values.

On the CPU and, whatever the program's precision, in float32: what is asked is which function the nodes compute. Dropout
lets everything through, since what it draws is none of that.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch

from ... import ops
from ...ops.bounds import looking, looking_inside
from ..graph import ComputationGraph
from ..parts import Hole, Opaque, Output, Reading

__all__ = ["CannotRun", "Source", "function", "random_like", "run"]

Source = tuple[int, int]  # (node id, output index)

DROPOUT = frozenset({"aten::native_dropout", "aten::dropout", "aten::dropout_", "aten::_fused_dropout"})


class CannotRun(Exception):
    """Nodes that cannot be run on their own; its text says why."""


@functools.cache
def function(overload: str) -> Any:
    """The operator of that name (``aten.add.Tensor``), None where torch has none."""
    found: Any = torch.ops
    for part in overload.split(".") if overload.count(".") == 2 else ():
        found = getattr(found, part, None)
    return None if found is torch.ops else found


@functools.lru_cache(maxsize=1024)
def _looking(func: Any) -> Any:
    """A function that looks at what it is given where torch's kernel does not: made-up values may fit together ill."""
    if isinstance(func, torch._ops.OpOverload):
        return looking(func)
    return looking_inside(func, ops.op_name(func))


@functools.cache
def functions(op: str) -> tuple[Any, ...]:
    """What computes an op that was recorded as the program called it, without an overload: torch's own of that name."""
    namespace, _, name = op.partition("::")
    if namespace != "aten":
        return ()
    holders = (torch.ops.aten, torch.nn.functional, torch.Tensor, torch)
    return tuple(found for holder in holders if (found := getattr(holder, name, None)) is not None)


def plain_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point else torch.complex64 if dtype.is_complex else dtype


def random_like(output: Output | Reading, generator: torch.Generator, signed: bool = True) -> torch.Tensor:
    """Numbers of its sizes: normal ones, either truth value, zeros for integers, which may be places.

    signed: else all are above 0.
    """
    dtype = plain_dtype(output.dtype)
    if dtype == torch.bool:
        return torch.rand(output.shape, generator=generator, device="cpu") < 0.5
    if dtype == torch.complex64:
        return torch.randn(output.shape, generator=generator, device="cpu", dtype=dtype)
    if dtype == torch.float32:
        found = torch.randn(output.shape, generator=generator, device="cpu", dtype=dtype)
        return found if signed else found.abs() + 0.1
    return torch.zeros(output.shape, device="cpu", dtype=dtype)


def run(
    graph: ComputationGraph,
    nodes: Iterable[int],
    values: dict[Any, torch.Tensor],
    idle: Container[int] = (),
    exact: bool = False,
) -> None:
    """Run these nodes in program order; `values` has what they read from others, and gets what they give.

    idle: nodes that give their first input. exact: in the program's own precision, and with what it drops: to its own
    bits, where the generator stands as it did.

    A key is (node id, output index), or (node id, output index, reading) of what lies otherwise than its node gave it.
    Raises CannotRun.
    """
    for number in sorted(nodes):
        node = graph.nodes[number]
        read = [*zip(node.inputs, node.readings, strict=True)]
        inputs = [_read(values, source, reading, exact) for source, reading in (read[:1] if number in idle else read)]
        if (node.op in DROPOUT and not exact) or number in idle:
            values[number, 0] = inputs[0]
            continue
        args = [_argument(value, inputs, exact) for value in node.args]
        kwargs = {key: _argument(value, inputs, exact) for key, value in node.kwargs.items()}
        if node.op.endswith("_like") and args and not isinstance(args[0], torch.Tensor):
            size, strides, dtype, *rest = args  # recorded without the tensor, of which no more is asked
            args = [torch.empty_strided(size, strides, dtype=dtype, device="cpu"), *rest]
        if node.op == "aten::_softmax" and not exact:
            args[2:] = [False]  # whether it widens: all is wide
        func = function(node.call.overload)
        out = _call(node.op, functions(node.op) if func is None else (func,), args, kwargs)
        written = [inputs[place] for place in node.writes]  # a call recorded without its overload names no arguments
        fresh = [t for t in _tensors(out) if all(t is not each for each in written)]
        values.update(((number, place), t) for place, t in enumerate((*fresh, *written)))


def _call(op: str, candidates: Sequence[Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    said = "torch has no such function"
    kwargs.pop("_stacklevel", None)
    for func in candidates:
        try:
            return _looking(func)(*args, **kwargs)
        except (TypeError, ValueError, LookupError, RuntimeError, NotImplementedError) as error:
            said = str(error).partition("\n")[0]  # another of the same name may take it
    raise CannotRun(f"{op}: {said}")


def _read(values: dict[Any, torch.Tensor], source: Source, reading: Reading | None, exact: bool) -> torch.Tensor:
    if reading is None:
        if source not in values:
            raise CannotRun(f"nothing gives output {source[1]} of node {source[0]}")
        return values[source]
    key = (*source, reading)
    if key in values:
        return values[key]
    if source not in values:
        raise CannotRun(f"nothing gives output {source[1]} of node {source[0]}")
    base = torch.empty(0, dtype=reading.dtype if exact else plain_dtype(reading.dtype), device="cpu")
    return base.set_(values[source].untyped_storage(), reading.offset, reading.shape, reading.strides)


def _argument(value: Any, inputs: Sequence[torch.Tensor], exact: bool) -> Any:
    if isinstance(value, Hole):
        return inputs[value.index]
    if isinstance(value, list):
        return [_argument(item, inputs, exact) for item in value]
    if isinstance(value, tuple):
        return tuple(_argument(item, inputs, exact) for item in value)
    if isinstance(value, torch.dtype):
        return value if exact else plain_dtype(value)
    if isinstance(value, Opaque):
        if value.text == "Generator":
            raise CannotRun("a generator of the program's")
        return torch.device("cpu")
    return value


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _tensors(item)]
    return []
