"""Random numbers that an estimate has no use for, drawn all the same: the generator is then where a run's would be.

Integers that are drawn have known values (see known_values.py), floats have none. A program that draws both from one
generator of the CPU gets the integers of a run only if the floats are drawn, too. They are drawn by torch's own
kernels, thrown away, and of many only so many that it takes no time to speak of: where there were more, the report
says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...engine.record import predict
from . import refusals

__all__ = ["begin", "called", "created", "differ"]

_MOST = 1 << 27  # elements, of one estimate
_PIECE = 1 << 20  # elements that are there at once; kernels that take 16 at a time find the same ones in each piece
#: Kernels that draw element by element, or by 16: pieces of a tensor leave the generator where the whole one does.
_IN_PIECES: dict[str, Callable[..., Any]] = {
    "rand": torch.Tensor.uniform_, "rand_like": torch.Tensor.uniform_, "uniform_": torch.Tensor.uniform_,
    "randn": torch.Tensor.normal_, "randn_like": torch.Tensor.normal_, "normal_": torch.Tensor.normal_,
}  # fmt: skip
#: How many numbers these draw depends on values.
_BY_VALUES = frozenset({"poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "_dirichlet_grad"})
_left, _lost, _differ = _MOST, False, False


def begin() -> None:
    global _left, _lost, _differ
    _left, _lost, _differ = _MOST, False, False


def differ() -> bool:
    """Whether integers were drawn from where a run's generator would not have been."""
    return _differ


def created(func: Callable[..., Any], args: tuple, kwargs: dict[str, Any], device: torch.device) -> torch.Tensor | None:
    """What `func` makes there with a generator, as a meta tensor, if its values are not kept; they are drawn."""
    refusals.check_generator(kwargs["generator"], device.type)
    rest = {k: v for k, v in kwargs.items() if k != "generator"}
    like: torch.Tensor = func(*args, device=torch.device("meta"), **rest)
    if predict.little(like.dtype, like.numel(), random=True):
        _keep(device.type)
        return None
    if device.type == "cpu":
        _skip(func.__name__, functools.partial(func, *args, device=device, **kwargs), like, kwargs["generator"])
    return like


def called(info: Any, args: tuple, kwargs: dict[str, Any], inputs: list[Any], unknown: bool) -> dict[str, Any]:
    """The `kwargs` with which a call that has a generator goes on. unknown: it gives sizes only, for which torch takes
    no generator, as values are not known."""

    def draw() -> None:
        given = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu").fill_(0.5) for t in inputs]
        on_cpu, named = predict.filled(args, kwargs, given, torch.device("cpu"))  # numbers that any distribution takes
        info.call(*on_cpu, **named)

    kind = inputs[0].device.type
    if not unknown:
        _keep(kind)
        return kwargs
    if kind == "cpu":
        _skip(info.name, draw, inputs[0], kwargs["generator"])
    return {**kwargs, "generator": None}


def _keep(kind: str) -> None:
    """Values are drawn that the estimate keeps."""
    global _differ
    _differ = _differ or (_lost and kind == "cpu")


def _skip(name: str, draw: Callable[[], Any], like: Any, generator: torch.Generator) -> None:
    """Take from the generator what drawing `like` takes; `draw()` draws all of it."""
    global _left, _lost
    name, count = name.removeprefix("aten::"), int(like.numel())
    piecewise = _IN_PIECES.get(name) if like.is_contiguous() and not like.dtype.is_complex else None
    if count > _left or name in _BY_VALUES or (piecewise is None and count > _PIECE):
        _lost = True
        return
    _left -= count
    with predict.quiet():
        if piecewise is None or count <= _PIECE:
            draw()
            return
        part = torch.empty(2 * _PIECE, dtype=like.dtype, device="cpu")
        while count:
            taken = count if count < 2 * _PIECE else _PIECE
            piecewise(part[:taken], generator=generator)
            count -= taken
