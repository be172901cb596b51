"""M3: shape rules hold at their borders: each ordinary call with one argument changed a little, as torch answers it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mindtorch._ext import shapes

sys.path.append(str(Path(__file__).parent))  # a module that the tests share; importlib mode leaves the path alone

from test_shapes_of_each import CASES, as_meta, eager


def nearby(value: Any) -> Iterator[Any]:
    """What is almost the same argument."""
    if isinstance(value, torch.Tensor):
        yield value[None]
        for d in range(value.dim()):
            yield value.select(d, 0)
            yield value.narrow(d, 0, 1)
            yield value.narrow(d, 0, 0)
            yield value.narrow(d, 0, value.shape[d] - 1)
            yield value.repeat_interleave(2, d).narrow(d, 0, value.shape[d] + 1)
            yield value.repeat_interleave(2, d)[(slice(None),) * d + (slice(None, None, 2),)]
            yield value.transpose(d, -1)
            yield value.narrow(d, 0, 1).expand(value.shape)
        if value.dim() == 4:
            yield value.contiguous(memory_format=torch.channels_last)
        for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.cfloat):
            yield value.to(dtype)
        yield None
        yield 2
    elif isinstance(value, list):
        yield []
        yield value[:-1]
        yield [*value, *value[-1:]]
        for i, each in enumerate(value):
            for other in nearby(each):
                yield [*value[:i], other, *value[i + 1 :]]
    elif isinstance(value, bool):
        yield from (not value, None)
    elif isinstance(value, int):
        yield from (value + 1, value - 1, -value, 0, 9, float(value), True, None, [value], [value] * 2, [value] * 3)
    elif isinstance(value, float):
        yield from (-value, 0.0, float("nan"), float("inf"), 7e4, 1e39, 2, True, None)
    elif value is None:
        yield from (0, 1.5, True, torch.ones(6), torch.ones(4))
    elif isinstance(value, torch.dtype):
        yield from (torch.bool, torch.int32, torch.float16, None)


def calls(name: str) -> Iterator[tuple[tuple, bool]]:
    """And whether torch's parser lets it through: what that refuses comes to no rule."""
    for args in CASES[name]:
        if isinstance(args[-1], dict):
            continue
        yield args[:-1], False
        for more in (None, True, 0, 1, 0.5):
            yield (*args, more), False
        for i, value in enumerate(args):
            for other in nearby(value):
                yield (*args[:i], other, *args[i + 1 :]), isinstance(value, torch.Tensor) and type(other) is type(value)


def answers(name: str, args: tuple, kwargs: dict[str, Any]) -> list[Any] | None:
    """Of each tensor what torch gives; None where it refuses the call. What values decide comes later."""
    try:
        out = eager(name, args, kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError) as error:
        return [] if any(words in str(error) for words in ("ZeroDivision", "out of range")) else None
    outs = out if isinstance(out, (tuple, list)) else (out,)
    return [(tuple(t.shape), tuple(t.stride()), t.dtype) for t in outs if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("name", CASES)
def test_M3_what_a_rule_answers_nearby_is_what_torch_answers(name: str) -> None:
    wrong, answered = [], 0
    values = name == "embedding"  # whether all rows are there is seen when it runs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args, comes in calls(name):
            ours = shapes.infer(f"aten::{name}", tuple(as_meta(a) for a in args), {})
            if ours is None:
                continue
            answered += 1
            expected = answers(name, args, {})
            if (comes and not values) if expected is None else ours[: len(expected)] != expected:
                wrong.append(([tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args], ours, expected))
    assert not wrong, (len(wrong), answered, wrong[:5])


def named(name: str) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """Each ordinary call with its last arguments by name, by all of the names that operators of this name know."""
    packet = getattr(torch.ops.aten, name)
    known = {tuple(a.name for a in getattr(packet, each)._schema.arguments) for each in packet.overloads()}
    for args in CASES[name]:
        if isinstance(args[-1], dict):
            continue
        for names in sorted(known):
            for at in range(min(len(args), len(names))):
                for i, value in enumerate(args[at:], at):
                    for other in (value, *nearby(value)):
                        changed = (*args[:i], other, *args[i + 1 :])
                        yield changed[:at], dict(zip(names[at:], changed[at:], strict=False))


@pytest.mark.parametrize("name", CASES)
def test_M3_what_a_rule_answers_to_arguments_by_name_is_what_torch_answers(name: str) -> None:
    wrong, answered = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args, kwargs in named(name):
            given = {key: as_meta(value) for key, value in kwargs.items()}
            ours = shapes.infer(f"aten::{name}", tuple(as_meta(a) for a in args), given)
            if ours is None:
                continue
            answered += 1
            expected = answers(name, args, kwargs)
            if expected is not None and ours[: len(expected)] != expected:
                wrong.append((args, kwargs, ours, expected))
    assert not wrong, (len(wrong), answered, wrong[:3])
