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


#: How many of these calls the rule of an op answers: what it leaves to torch besides is right, but slower.
ANSWERED = {
    name: int(line.split()[0])
    for line in """
0 _to_copy
6 dot
12 mv
13 addmv
15 adaptive_avg_pool3d
21 addmm
23 gelu_backward sigmoid_backward silu_backward tanh_backward
24 rms_norm stack adaptive_avg_pool2d
25 baddbmm
27 group_norm
28 scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu
31 convolution conv_transpose1d avg_pool1d
35 conv_transpose2d conv_transpose3d
40 bitwise_not
44 bmm
47 threshold_backward
48 clone
50 conv1d
51 addcdiv addcmul
53 leaky_relu_backward
54 max_pool1d
58 clamp_min clamp_max
61 avg_pool3d
62 avg_pool2d
63 linear
64 conv2d
66 max_pool2d
68 max_pool3d
69 native_layer_norm conv3d
70 embedding
73 argmax argmin
75 lerp
76 mm native_batch_norm _native_batch_norm_legit
77 std var
79 to
80 prod all any _softmax _log_softmax
86 softmax log_softmax
87 layer_norm
92 cat
116 matmul
124 masked_fill
125 bitwise_and bitwise_or bitwise_xor
131 acos acosh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp2 expm1 hardtanh lgamma log10 log1p log2 \
reciprocal rsqrt sigmoid sin sinh tan tanh
137 elu frac gelu hardsigmoid hardswish leaky_relu mish relu6 selu silu softplus square
169 abs ceil floor round sign trunc
173 clamp
177 exp isnan log logical_not sqrt
180 atan2 fmax fmin maximum minimum mean
183 amax amin
198 sum
201 neg relu
224 pow
241 where
270 logical_and logical_or logical_xor
296 rsub
314 sub
332 div true_divide
377 floor_divide fmod remainder
378 eq ge gt le lt ne
399 add mul
""".strip().splitlines()
    for name in line.split()[1:]
}


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
    assert answered == ANSWERED[name]


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
