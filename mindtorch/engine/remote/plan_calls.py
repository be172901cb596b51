"""Calls of a plan as a worker makes them: as the program described them; where they repeat, by the shortest way and in
place (SPEC R1, L13).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..._ext import lazy as _core
from ..._ext.plan_steps import ReadyStep
from ..._ext.strides import contiguous
from .. import passes
from ..passes.native import OneCall
from . import functions
from .plans import Plan, Step, is_constant
from .results import check_memory
from .wire import Here, Reference

if TYPE_CHECKING:
    from ..._ext.native_calls import NativeCall

__all__ = ["filled_in", "make_ready", "results_of"]


# ---- as they were described ------------------------------------------------------------------------------------------
def results_of(step: Step, tensors: Sequence[Any], k: int, corrections: list[tuple], device: torch.device) -> list[Any]:
    """The outputs of call ``k``, made of these tensors, in the layouts that the program was told."""
    definition = step.definition
    args = list(step.args)
    for at, i in step.tensors:
        args[at] = tensors[i]
    for at in step.nested:
        args[at] = filled_in(args[at], tensors, device)
    kwargs = {**step.kwargs, **{name: filled_in(step.kwargs[name], tensors, device) for name in step.named}}
    out = step.call(*args, **kwargs)
    results = (out,) if definition.single else out
    found: list[Any] = [None] * len(definition.predicted)
    step.as_told = True
    for position, output in enumerate(definition.outputs):
        if output is not None and output >= 0:
            found[output] = _checked(step, k, output, results[position], corrections, device)
            step.as_told &= found[output] is results[position]
    return found


def _checked(step: Step, k: int, output: int, value: Any, corrections: list[tuple], device: torch.device) -> Any:
    """The output in the layout that the program was told."""
    dtype, sizes, strides, offset = step.predicted[output]
    if value is None and 0 in sizes:
        return torch.empty(sizes, dtype=dtype, device=device)
    if not isinstance(value, torch.Tensor) or value.dtype is not dtype or value.shape != sizes:
        got = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise RuntimeError(f"predicted {dtype} {tuple(sizes)}, the kernel gave {got}")
    if value.device != device:
        raise RuntimeError(f"expected a tensor on {device}, the kernel gave one on {value.device}")
    if step.aliases:
        check_memory(value)
    same = value.is_contiguous() if strides is None else _core.canonical(value.shape, value.stride()) == strides
    if same and value.storage_offset() == offset:
        return value
    if step.definition.view:
        raise RuntimeError(f"predicted a view with strides {strides}, the kernel gave {value.stride()}")
    corrections.append((k, output, tuple(value.stride()), value.storage_offset()))
    promised = contiguous(sizes) if strides is None else strides
    return torch.empty_strided(sizes, promised, dtype=dtype, device=value.device).copy_(value)


def filled_in(a: Any, tensors: Sequence[Any], device: torch.device) -> Any:
    """An argument with tensors where References are."""
    if isinstance(a, Reference):
        t = tensors[a.index]
        return t.detach().requires_grad_() if a.tracked else t
    if isinstance(a, Here):
        return device
    if isinstance(a, list):
        return [filled_in(item, tensors, device) for item in a]
    if type(a) is tuple:
        return tuple(filled_in(item, tensors, device) for item in a)
    if isinstance(a, slice):
        return slice(*(filled_in(part, tensors, device) for part in (a.start, a.stop, a.step)))
    return a


# ---- where they repeat -----------------------------------------------------------------------------------------------


def make_ready(plan: Plan, k: int, device: torch.device) -> None:
    """Let the plan's call ``k`` be run by `mindtorch._ext.plan_steps` from now on, if it can.

    It has just given what was predicted, and does so again: for as long as nothing but floats and storages changes.
    """
    step = plan.steps[k]
    definition = step.definition
    given = _given(step, device)
    if given is None or definition.random >= 0 or len(step.args) + len(step.kwargs) > 32:
        return
    args, kwargs, places = given
    outputs = [position for position, output in enumerate(definition.outputs) if output is not None and output >= 0]
    if [definition.outputs[position] for position in outputs] != list(range(len(definition.predicted))):
        return
    ways = functions.ways(definition.function)
    in_place = ways.in_place is not None and _overwrites(plan, k, places)
    plan.ready.steps[k] = ReadyStep(
        ways.in_place if in_place else ways.replay, args, kwargs, places, tuple(outputs), step.dying, step.grad,
        definition.single, check_memory if step.aliases else None, ways.replay is not ways.call, in_place,
        _nbytes(step.predicted[0]) if in_place else 0, _prover(step, places, args, kwargs, device),
    )  # fmt: skip


def _prover(
    step: Step, places: tuple[tuple[int, int], ...], args: tuple, kwargs: dict[str, Any], device: torch.device
) -> Callable[[list[torch.Tensor], tuple[float, ...]], NativeCall | None] | None:
    """What is asked, when the call has run often, for one that does without Python; None: nothing.

    Views that such a call gives are within what it is given, but for `as_strided`'s: nobody looks at them afterwards.
    """
    prove, info = passes.native_prover(), functions.ways(step.definition.function)
    if prove is None or device.type != "cpu" or info.name == "aten::as_strided":
        return None
    named = tuple(kwargs)
    held = (*args, *kwargs.values())
    open_ = [position for position, value in enumerate(held) if type(value) is float]

    def filled(tensors: tuple, floats: tuple) -> tuple[tuple[Any, ...], dict[str, Any]]:
        now = list(held)
        for (position, _value), tensor in zip(places, tensors, strict=True):
            now[position] = tensor
        for position, number in zip(open_, floats, strict=True):
            now[position] = number
        return tuple(now[: len(args)]), dict(zip(named, now[len(args) :], strict=True))

    one = OneCall(info, filled, step.definition.writes)
    return functools.partial(prove, one)


def _given(step: Step, device: torch.device) -> tuple[tuple, dict[str, Any], tuple[tuple[int, int], ...]] | None:
    """Arguments, and (position, index) of the tensors among them; None where tensors are elsewhere than directly there.

    Floats that may change are directly there, too: `Plan.fill` puts others in.
    """
    places: list[tuple[int, int]] = []
    held: list[Any] = []
    for position, value in enumerate((*step.args, *step.kwargs.values())):
        if isinstance(value, Reference) and not value.tracked:
            places.append((position, step.inputs[value.index]))
            held.append(None)
        elif isinstance(value, Here):
            held.append(device)
        elif is_constant(value) and not (isinstance(value, (tuple, list)) and _has_floats(value)):
            held.append(value)
        else:
            return None
    n = len(step.args)
    return tuple(held[:n]), dict(zip(step.kwargs, held[n:], strict=True)), tuple(places)


def _has_floats(value: Any) -> bool:
    return any(map(_has_floats, value)) if isinstance(value, (tuple, list)) else isinstance(value, (float, complex))


def _overwrites(plan: Plan, k: int, places: tuple[tuple[int, int], ...]) -> bool:
    """May the result take the memory of the first argument? This run has made that, and nobody else knows it."""
    step = plan.steps[k]
    if not places or places[0][0] != 0 or step.definition.writes or not step.definition.single or step.aliases:
        return False
    value = places[0][1]
    maker = plan.maker(value)
    return (
        maker is not None
        and functions.ways(maker.definition.function).fresh
        and not maker.aliases
        and value in step.dying
        and step.inputs.count(value) == 1
        and step.predicted == [maker.predicted[value - maker.first]]
        and value not in plan.aliased
    )


def _nbytes(predicted: tuple) -> int:
    dtype, sizes, *_ = predicted
    return int(torch.Size(sizes).numel()) * int(dtype.itemsize)
