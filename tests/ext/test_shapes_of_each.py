"""M3, L3: each shape rule answers ordinary calls, as eager does. What it answers no more is right, but slower."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mindtorch._ext import shapes
from mindtorch._ext.shapes import Meta

shapes.init(torch)

X, Y, ROW = torch.full((4, 6), 0.5), torch.full((4, 6), 0.25), torch.full((6,), 0.125)
N, B = torch.ones(4, 6, dtype=torch.int64), torch.ones(4, 6, dtype=torch.bool)
BATCH, IMAGE = torch.ones(3, 4, 6), torch.ones(2, 4, 8, 8)
LAST = IMAGE.to(memory_format=torch.channels_last)
FLOAT = [(X,), (X.t(),), (X.bfloat16(),), (X.double()[0],), (torch.ones(()),), (LAST,)]
NUMBERS = [(N,), (N.int(),)]
TWO = [(X, Y), (X, ROW), (X.t(), Y.t()), (X, Y.double()), (X, torch.ones(())), (X.half(), Y.half())]
ALSO = [(N, N), (N, X), (X, 2), (N, 2), (N, 2.5), (B, N)]
BACKWARD = [(X, Y), (X.t(), Y.t()), (X.bfloat16(), Y.bfloat16())]
TRUTH = [(N, N), (N, N[0]), (B, B), (N, 3), (B, True)]

UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh digamma elu erf erfc erfinv exp exp2 expm1 floor frac gelu"
    " hardsigmoid hardswish hardtanh isnan leaky_relu lgamma log log10 log1p log2 logical_not mish neg reciprocal relu"
    " relu6 round rsqrt selu sigmoid sign silu sin sinh softplus sqrt square tan tanh trunc"
).split()
REAL = "abs ceil exp floor isnan log logical_not neg relu round sign sqrt trunc".split()
BINARY = "add div eq floor_divide fmod ge gt le lt maximum minimum mul ne remainder rsub sub true_divide".split()
COMPARE = "eq ge gt le lt ne".split()

CASES: dict[str, list[tuple]] = {
    **dict.fromkeys(UNARY, FLOAT),
    **dict.fromkeys(REAL, FLOAT + NUMBERS),
    **dict.fromkeys(("atan2", "fmax", "fmin", "maximum", "minimum"), TWO),
    **{name: TWO + ALSO for name in BINARY if name not in ("maximum", "minimum", "rsub", "sub", "div", "true_divide")},
    **dict.fromkeys(("rsub", "sub", "div", "true_divide"), TWO + ALSO[:4]),
    "pow": [*TWO, (X, 2), (X, 0.5)],
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), TWO + TRUTH[:3]),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), TRUTH),
    "bitwise_not": [(N,), (B,)],
    **dict.fromkeys(("gelu_backward", "sigmoid_backward", "silu_backward", "tanh_backward"), BACKWARD),
    "leaky_relu_backward": [(*given, 0.1, False) for given in BACKWARD],
    "threshold_backward": [(*given, 0) for given in BACKWARD],
    "addcdiv": [(X, Y, Y), (X, ROW, Y)],
    "addcmul": [(X, Y, Y), (X, ROW, Y)],
    "lerp": [(X, Y, 0.5), (X, Y, ROW), (X.t(), Y.t(), 0.5)],
    "clamp": [(X, 0, 1), (X, 0), (X, None, 1.5), (N, 0, 3), (X.t(), 0.5)],
    "clamp_min": [(X, 0), (N, 1)],
    "clamp_max": [(X, 0), (N, 1)],
    "where": [(B, X, Y), (B, X, ROW), (B[0], X, 0.5), (B, 1.0, X), (B, N, N), (B.t(), X.t(), Y.t())],
    "masked_fill": [(X, B, 2.0), (X, B[0], 0), (N, B, 3), (X.t(), B.t(), 1.0)],
    "addmm": [(X[0], BATCH[0], BATCH[0].t()[:, :4].contiguous()[:, [0, 1, 2, 3, 0, 1]])],
    "addmv": [(X[:, 0].contiguous(), X, ROW)],
    "baddbmm": [(torch.ones(3, 4, 5), BATCH, torch.ones(3, 6, 5))],
    "bmm": [(BATCH, torch.ones(3, 6, 5)), (BATCH, BATCH.transpose(1, 2))],
    "dot": [(ROW, ROW)],
    "mm": [(X, Y.t()), (X, torch.ones(6, 5)), (X.bfloat16(), Y.t().bfloat16()), (N, N.t())],
    "mv": [(X, ROW)],
    "matmul": [(X, Y.t()), (BATCH, Y.t()), (BATCH, BATCH.transpose(1, 2)), (X, ROW), (ROW, ROW), (ROW, Y.t())],
    "linear": [(X, torch.ones(5, 6)), (BATCH, torch.ones(5, 6), torch.ones(5)), (ROW, torch.ones(5, 6))],
    **{
        name: [(X,), (X, [0]), (X, [1], True), (BATCH, [0, 2]), (X.t(), [-1]), (IMAGE, [2, 3], True)]
        for name in ("mean", "sum", "amax", "amin")
    },
    **{name: [(X,), (X, 1), (X, 0, True)] for name in ("prod", "argmax", "argmin", "all", "any")},
    **{name: [(X, [0]), (X, [1]), (BATCH, [0, 2])] for name in ("std", "var")},
    **{name: [(X, 1), (X, -1), (BATCH, 0)] for name in ("softmax", "log_softmax")},
    **{name: [(X, 1, False), (X, -1, False), (BATCH, 0, False)] for name in ("_softmax", "_log_softmax")},
    "layer_norm": [(X, [6]), (BATCH, [4, 6], BATCH[0], BATCH[0]), (BATCH, [6], ROW, ROW, 1e-6)],
    "native_layer_norm": [(X, [6], None, None, 1e-5), (BATCH, [6], ROW, ROW, 1e-5)],
    "rms_norm": [(X, [6]), (BATCH, [6], ROW)],
    "group_norm": [(IMAGE, 2), (IMAGE, 2, torch.ones(4), torch.ones(4))],
    "native_batch_norm": [
        (IMAGE, torch.ones(4), torch.ones(4), torch.zeros(4), torch.ones(4), training, 0.1, 1e-5)
        for training in (True, False)
    ],
    "_native_batch_norm_legit": [
        (IMAGE, torch.ones(4), torch.ones(4), torch.zeros(4), torch.ones(4), training, 0.1, 1e-5)
        for training in (True, False)
    ],
    "embedding": [(X, N.clamp(0, 3)), (X, torch.tensor([1, 2]))],
    "cat": [([X, Y],), ([X, Y], 1), ([X.t(), Y.t()], -1), ([BATCH, BATCH], 0)],
    "stack": [([X, Y],), ([X, Y], 1), ([ROW, ROW], -1)],
    "clone": FLOAT[:2],
    "to": [(X, torch.float64), (X, torch.bfloat16), (N, torch.float32)],
    "_to_copy": [(X, {"dtype": torch.float64}), (X.t(), {"dtype": torch.bfloat16})],
    "convolution": [(IMAGE, torch.ones(6, 4, 3, 3), torch.ones(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)],
    "adaptive_avg_pool2d": [(IMAGE, [2, 2]), (IMAGE, [1, 1])],
    "adaptive_avg_pool3d": [(torch.ones(2, 4, 8, 8, 8), [2, 2, 2])],
    "scaled_dot_product_attention": [(torch.ones(1, 2, 4, 8),) * 3],
    "_scaled_dot_product_flash_attention_for_cpu": [(torch.ones(1, 2, 4, 8),) * 3],
}
for _n in (1, 2, 3):
    _x, _w, _three = torch.ones(2, 4, *[8] * _n), torch.ones(6, 4, *[3] * _n), [3] * _n
    _groups = (_x, _w[:, :2].contiguous(), torch.ones(6), [1] * _n, [1] * _n, [2] * _n, 2)
    CASES[f"conv{_n}d"] = [(_x, _w), (_x, _w, torch.ones(6), 2, 1, 1, 1), _groups]
    _w = torch.ones(4, 6, *_three)
    CASES[f"conv_transpose{_n}d"] = [(_x, _w), (_x, _w, torch.ones(6), 2, 1, 1, 1, 1)]
    CASES[f"avg_pool{_n}d"] = [(_x, 2), (_x, _three, 2, 1, True), *[(_x, 2, 2, 0, False, True, None)] * (_n > 1)]
    CASES[f"max_pool{_n}d"] = [(_x, 2), (_x, _three, 2, 1, 1, True), (_x, 2, 2, 0, 1, False, False)]


def eager(name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """By the operator, or by a function of torch's, which takes numbers and defaults that the operator does not."""
    ways = [getattr(owner, name) for owner in (torch.ops.aten, torch, torch.nn.functional) if hasattr(owner, name)]
    with torch.no_grad():
        for way in ways[:-1]:
            try:
                return way(*args, **kwargs)
            except (RuntimeError, TypeError):
                continue
        return ways[-1](*args, **kwargs)


def as_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Meta(tuple(value.shape), tuple(value.stride()), value.dtype)
    return [as_meta(each) for each in value] if isinstance(value, list) else value


def unanswered(name: str, args: tuple) -> bool:
    return shapes.infer(f"aten::{name}", tuple(as_meta(a) for a in args), {}) is None


def unknown(name: str, calls: list[tuple]) -> list[tuple]:
    """The calls that the rule leaves to torch. A dictionary at the end holds arguments with a name."""
    found = []
    for args in calls:
        args, kwargs = (args[:-1], args[-1]) if isinstance(args[-1], dict) else (args, {})
        ours = shapes.infer(
            f"aten::{name}", tuple(as_meta(a) for a in args), {k: as_meta(a) for k, a in kwargs.items()}
        )
        if ours is None:
            found.append(args)
            continue
        out = eager(name, args, kwargs)
        outs = [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor)]
        assert ours[: len(outs)] == [(tuple(t.shape), tuple(t.stride()), t.dtype) for t in outs], (name, args)
    return found


@pytest.mark.parametrize("name", CASES)
def test_M3_ordinary_calls_are_answered(name: str) -> None:
    assert [tuple(as_meta(a) for a in args) for args in unknown(name, CASES[name])] == []


#: Of the same form as what is answered, and refused by torch, or of a kind that is left to it.
ODD = {
    "where": [(X, X, Y), (N, X, Y), (B, X, Y[:, :4]), (B, X)],
    "masked_fill": [(X, X, 2.0), (X, N, 2.0), (N, B, 2.5), (X, B)],
    "clamp": [(X,), (X, "0")],
    "mm": [(X, Y), (X, BATCH), (X, Y.t().double())],
    "bmm": [(BATCH, BATCH), (X, X), (BATCH, BATCH[:2].transpose(1, 2))],
    "matmul": [(X, Y), (X, Y.t().double()), (ROW, torch.ones(()))],
    "linear": [(X, torch.ones(5, 4)), (X, torch.ones(5, 6), torch.ones(4)), (X.double(), torch.ones(5, 6))],
    "addmm": [(X, X, Y), (X[0].double(), X, Y.t())],
    "softmax": [(X, 2), (X, -3), (N, 0)],
    "sum": [(X, [2]), (X, [0, 0])],
    "amax": [(X, [2]), (X, [0, 0]), (torch.ones(0, 3), [0])],
    "argmax": [(X, 2), (torch.ones(0, 3), 0)],
    "layer_norm": [(X, [4]), (X, [6], X[:, 0]), (X, [])],
    "embedding": [(X, Y), (ROW, N)],
    "cat": [([X, BATCH],), ([X, Y[:, :4]],), ([X, Y], 2)],
    "stack": [([X, ROW],), ([X, Y], 3)],
    "conv2d": [
        (IMAGE, torch.ones(6, 3, 3, 3)),
        (IMAGE, torch.ones(6, 4, 9, 9)),
        (IMAGE.double(), torch.ones(6, 4, 3, 3)),
    ],
    "max_pool2d": [(IMAGE, 9), (IMAGE, 2, 0), (IMAGE, 2, 2, 2), (X, 2)],
    "avg_pool2d": [(IMAGE, 9), (IMAGE, 2, 0), (IMAGE, 2, 2, 2), (X, 2)],
    "bitwise_and": [(X, Y), (N, 1.5)],
    "add": [(X, torch.ones(4)), (X, "1"), (X, None)],
}


@pytest.mark.parametrize("name", ODD)
def test_M3_calls_that_torch_refuses_are_not_answered(name: str) -> None:
    given = CASES[name] + ODD[name]
    assert len(unknown(name, given)) == len(ODD[name])


def test_M3_every_rule_is_asked() -> None:
    names = {name.removeprefix("aten::") for name in shapes.names()}
    assert {name for name in names if not name.endswith("_")} == set(CASES)
    assert {name for name in names if name.endswith("_")} <= {f"{name}_" for name in CASES}


def changed(value: Any, change: Any) -> Any:
    """Each tensor changed, of a list too."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [changed(each, change) for each in value] if isinstance(value, list) else value


def _in(dtype: torch.dtype) -> Any:
    return lambda t: t.to(dtype) if t.is_floating_point() else t


#: The same calls in another way; those of them that are left to torch.
_CONVOLUTIONS = {f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)} | {"convolution"}
_POOLING = {f"{kind}{n}d" for kind in ("avg_pool", "max_pool") for n in (1, 2, 3)}
_POOLING |= {"adaptive_avg_pool2d", "adaptive_avg_pool3d"}
_BATCH = {"native_batch_norm", "_native_batch_norm_legit"}
_HALVES = _CONVOLUTIONS | _POOLING | _BATCH | {"native_layer_norm", "rms_norm", "group_norm"}
WAYS: dict[str, tuple[Any, set[str]]] = {
    "float64": (_in(torch.float64), {"to", "_to_copy"}),
    "float16": (_in(torch.float16), _HALVES),
    "bfloat16": (_in(torch.bfloat16), _HALVES | {"to", "_to_copy"}),
    "of one element": (lambda t: t[(slice(0, 1),) * t.dim()], _CONVOLUTIONS | _POOLING | _BATCH | {"stack"}),
    "of one dimension more": (
        lambda t: t[None],
        {"matmul", "group_norm", "adaptive_avg_pool2d", "scaled_dot_product_attention"},
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_M3_ordinary_calls_are_answered_in_other_dtypes_and_of_other_sizes(way: str) -> None:
    change, left = WAYS[way]
    for name, calls in CASES.items():
        given = []
        for args in calls:
            other = tuple(changed(each, change) for each in args)
            try:
                eager(name, *((other[:-1], other[-1]) if isinstance(other[-1], dict) else (other, {})))
            except (RuntimeError, TypeError, ValueError, IndexError):
                # Torch refuses it: of an embedding, for the values.
                assert name == "embedding" or isinstance(other[-1], dict) or unanswered(name, other), (name, other)
                continue
            given.append(other)
        assert not unknown(name, given) or name in left, name


#: Of more than one tensor, or of what programs do not give by name.
_ONLY_BY_PLACE = _BATCH | set(
    "gelu_backward sigmoid_backward silu_backward tanh_backward leaky_relu_backward threshold_backward addcdiv addcmul"
    " lerp where masked_fill addmm addmv baddbmm prod _softmax _log_softmax embedding adaptive_avg_pool2d"
    " adaptive_avg_pool3d".split()
)


@pytest.mark.parametrize("name", sorted(set(CASES) - _ONLY_BY_PLACE))
def test_M3_ordinary_calls_are_answered_by_name_too(name: str) -> None:
    packet = getattr(torch.ops.aten, name)
    known = {tuple(a.name for a in getattr(packet, each)._schema.arguments) for each in packet.overloads()}
    for args in CASES[name]:
        for names in known:
            for at in range(1, 0 if isinstance(args[-1], dict) else min(len(args), len(names))):
                given = (*args[:at], dict(zip(names[at:], args[at:], strict=False)))
                try:
                    eager(name, given[:-1], given[-1])
                except (RuntimeError, TypeError, ValueError):
                    continue  # names of another overload
                if len(args) <= len(names):
                    assert not unknown(name, [given]), given[-1]
