"""M3, L3: shape inference in Cython. Oracle: eager on CPU, thousands of random calls, no difference allowed."""

from __future__ import annotations

import os
import random
import warnings

import pytest
import torch
import torch.nn.functional as F

from mindtorch._ext import shapes
from mindtorch._ext.shapes import Meta
from mindtorch.ops import op_name

shapes.init(torch)

#: Another seed tries other calls; a failure prints the call itself.
SEED = int(os.environ.get("SHAPES_SEED", "0"))

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16)
DTYPES = (*FLOATS, *FLOATS, *HALVES, *INTS, torch.int64, torch.bool, torch.bool, torch.complex64)
DEFAULT_SIZES = (1, 1, 2, 3, 4)


def tensor(rng: random.Random, shape, dtype=torch.float32) -> torch.Tensor:
    """A tensor of this shape in a random layout: contiguous, permuted, sliced, expanded, with odd strides of 1s."""
    shape = list(shape)
    ndim = len(shape)
    kind = rng.random()
    if kind < 0.3 or ndim == 0:
        x = torch.ones(shape)
    elif kind < 0.5:
        perm = rng.sample(range(ndim), ndim)
        x = torch.ones([shape[p] for p in perm]).permute([perm.index(i) for i in range(ndim)])
    elif kind < 0.6 and ndim == 4:
        x = torch.ones(shape).contiguous(memory_format=torch.channels_last)
    elif kind < 0.75:
        big = torch.ones([2 * s + 1 for s in shape])
        x = big[tuple(slice(None, 2 * s, 2) if rng.random() < 0.5 else slice(1, 1 + s) for s in shape)]
        if ndim > 1:
            x = x.transpose(*rng.sample(range(ndim), 2)).contiguous().transpose(0, 1).reshape(shape)
    elif kind < 0.85:
        x = torch.ones([1 if rng.random() < 0.4 else s for s in shape]).expand(shape)
    elif kind < 0.95:
        strides = list(torch.ones(shape).stride())
        strides = [rng.choice((1, 2, 7, 0)) if s == 1 else st for s, st in zip(shape, strides)]
        x = torch.ones(8000).as_strided(shape, strides)
    else:
        perm = rng.sample(range(ndim), ndim)
        sizes = [shape[p] + rng.randint(0, 1) for p in perm]
        x = torch.ones(sizes).permute([perm.index(i) for i in range(ndim)])[tuple(slice(0, s) for s in shape)]
    strides = x.stride()
    out = torch.empty_strided(x.shape, strides, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.as_strided(torch.ones(20000, dtype=dtype), out.shape, strides)


def random_shape(rng, low=0, high=5, sizes=DEFAULT_SIZES, zero=0.05):
    return [0 if rng.random() < zero else rng.choice(sizes) for _ in range(rng.randint(low, high))]


def describe(out):
    found = out if isinstance(out, (tuple, list)) else (out,)
    return [(tuple(t.shape), tuple(t.stride()), t.dtype) for t in found]


def as_meta(value):
    if isinstance(value, torch.Tensor):
        return Meta(tuple(value.shape), tuple(value.stride()), value.dtype)
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return type(value)(as_meta(v) for v in value)
    return value


class Tally:
    """Counts of calls eager accepted, of those we answered, and all differences."""

    def __init__(self) -> None:
        self.valid = self.answered = 0
        self.wrong: list[str] = []

    def check(self, func, args, kwargs=None, name=None) -> None:
        kwargs = kwargs or {}
        name = name or op_name(func)
        shown = f"{name}{tuple(as_meta(a) for a in args)} { ({k: as_meta(v) for k, v in kwargs.items()}) }"
        ours = shapes.infer(name, tuple(as_meta(a) for a in args), {k: as_meta(v) for k, v in kwargs.items()})
        try:
            out = func(*args, **kwargs)
        except (RuntimeError, TypeError, IndexError, ValueError, AssertionError) as error:
            if ours is not None:
                self.wrong.append(f"{shown}: eager raises {str(error)[:80]!r}, we say {ours}")
            return
        self.valid += 1
        if ours is None:
            return
        self.answered += 1
        if ours != describe(out):
            self.wrong.append(f"{shown}: eager {describe(out)}, we say {ours}")

    def conclude(self, coverage: float) -> None:
        """coverage: the share that is answered, 0.2 % less. What a rule answers no more is right, but slower, which no
        other test would tell. Other seeds have other shares."""
        assert not self.wrong, f"{len(self.wrong)} wrong of {self.valid}:\n" + "\n".join(self.wrong[:12])
        least = coverage * self.valid * (1 if SEED == 0 else 0.9)
        assert self.answered >= least, f"answered {self.answered} of {self.valid}"
        assert self.valid > 0


def broadcastable(rng, count):
    """Shapes that mostly broadcast."""
    base = random_shape(rng)
    found = []
    for _ in range(count):
        shape = [1 if rng.random() < 0.25 else s for s in base]
        if rng.random() < 0.3:
            shape = shape[rng.randint(0, len(shape)) :]
        if rng.random() < 0.03 and shape:
            shape[0] += 1
        found.append(shape if rng.random() < 0.6 else list(base))
    return found


UNARY = (
    "exp log sin cos tan tanh sigmoid sqrt rsqrt reciprocal erf erfc expm1 log1p log2 log10 exp2 sinh cosh asin acos "
    "atan asinh acosh atanh erfinv lgamma digamma neg relu abs sign floor ceil trunc round square frac bitwise_not "
    "logical_not isnan"
).split()
ACTIVATIONS = (F.gelu, F.silu, F.mish, F.hardswish, F.hardsigmoid, F.leaky_relu, F.elu, F.softplus, F.relu6, F.selu)


def test_M3_unary():
    rng, tally = random.Random(SEED + 1), Tally()
    for _ in range(40):
        x = None
        for name in UNARY:
            x = tensor(rng, random_shape(rng), rng.choice(DTYPES))
            tally.check(getattr(torch, name), (x,))
            if name != "isnan":
                tally.check(getattr(torch.Tensor, name + "_"), (x,))
        tally.check(F.hardtanh, (tensor(rng, [2, 3]), rng.choice((0.5, 2)), rng.choice((-2, 1, 3.0))))
        for func in (*ACTIVATIONS, F.hardtanh, F.relu):
            x = tensor(rng, random_shape(rng), rng.choice(DTYPES))
            tally.check(func, (x,))
            tally.check(aten.gelu, (x,), {"approximate": rng.choice(("none", "tanh"))})
            tally.check(F.leaky_relu, (x, 0.1, rng.random() < 0.5))
    tally.conclude(0.885)


BINARY = (
    "add sub rsub mul div true_divide floor_divide remainder fmod maximum minimum fmax fmin atan2 bitwise_and "
    "bitwise_or bitwise_xor eq ne lt le gt ge logical_and logical_or logical_xor pow"
).split()


def number(rng):
    return rng.choice((1, 2, 3, 300, -1, 70000, 1 << 40, 2.5, 1.0, 1e30, 1e300, float("inf"), True, 1j))


def test_M3_binary():
    rng, tally = random.Random(SEED + 2), Tally()
    for _ in range(120):
        for name in BINARY:
            func = getattr(torch, name)
            first, second = broadcastable(rng, 2)
            dtype = rng.choice(DTYPES)
            x = tensor(rng, first, dtype)
            y = tensor(rng, second, dtype if rng.random() < 0.5 else rng.choice(DTYPES))
            tally.check(func, (x, y))
            tally.check(func, (x, number(rng)))
            if name not in ("rsub", "maximum", "minimum", "fmax", "fmin", "true_divide"):
                tally.check(getattr(torch.Tensor, name + "_"), (x, y))
            if name in ("add", "sub"):
                tally.check(func, (x, y), {"alpha": rng.choice((1, 2, 0.5, 2.0))})
            if name == "div":
                tally.check(func, (x, y), {"rounding_mode": rng.choice((None, "floor", "trunc", "up"))})
    tally.conclude(0.904)


def test_M3_reflected_operators():
    rng, tally = random.Random(SEED + 3), Tally()
    reflected = "__radd__ __rsub__ __rmul__ __rtruediv__ __rpow__ __rfloordiv__ __rmod__ __and__ __or__ __xor__".split()
    for _ in range(60):
        for name in reflected:
            func = getattr(torch.Tensor, name)
            x = tensor(rng, random_shape(rng), rng.choice(DTYPES))
            scalar = rng.choice((2, 3, 2.5, True))
            tally.check(func, (x, scalar))
    tally.conclude(0.879)


def test_M3_ternary_and_masks():
    rng, tally = random.Random(SEED + 4), Tally()
    for _ in range(500):
        one, two, three = broadcastable(rng, 3)
        dtype, other = rng.choice(DTYPES), rng.choice(DTYPES)
        other = dtype if rng.random() < 0.6 else other
        mask = tensor(rng, one, torch.bool)
        x, y = tensor(rng, two, dtype), tensor(rng, three, other)
        tally.check(torch.where, (mask, x, y))
        tally.check(torch.where, (mask, x, number(rng)))
        tally.check(torch.where, (mask, number(rng), number(rng)))
        tally.check(torch.masked_fill, (x, mask, number(rng)))
        tally.check(torch.masked_fill, (x, mask, torch.ones((), dtype=other)))
        if x.is_contiguous():
            tally.check(torch.Tensor.masked_fill_, (x.clone(), mask, number(rng)))
        tally.check(torch.clamp, (x, number(rng), number(rng)))
        tally.check(torch.clamp, (x,), {rng.choice(("min", "max")): number(rng)})
        tally.check(torch.clamp_min, (x, number(rng)))
        tally.check(torch.clamp, (x, y, tensor(rng, one, dtype)))
        tally.check(torch.addcmul, (x, y, tensor(rng, one, dtype)), {"value": rng.choice((1, 0.5))})
        tally.check(torch.addcdiv, (x, y, tensor(rng, one, dtype)))
        tally.check(torch.lerp, (x, y, 0.5))
        tally.check(torch.lerp, (x, y, tensor(rng, one, dtype)))
        tally.check(torch.Tensor.addcmul_, (x, y, tensor(rng, one, dtype)))
    tally.conclude(0.78)


def test_M3_backward_of_activations():
    rng, tally = random.Random(SEED + 5), Tally()
    for _ in range(300):
        shape, dtype = random_shape(rng), rng.choice(DTYPES)
        x, y = tensor(rng, shape, dtype), tensor(rng, shape, dtype)
        y = x if rng.random() < 0.5 else y
        for func in (aten.silu_backward, aten.sigmoid_backward, aten.tanh_backward):
            tally.check(func, (x, y))
        tally.check(aten.gelu_backward, (x, y), {"approximate": "tanh"})
        tally.check(aten.threshold_backward, (x, y, 0))
        tally.check(aten.leaky_relu_backward, (x, y, 0.1, False))
    tally.conclude(0.59)


def test_M3_products():
    rng, tally = random.Random(SEED + 6), Tally()
    dims = (0, 1, 1, 2, 3, 5)
    for _ in range(700):
        b, m, k, n = (rng.choice(dims) for _ in range(4))
        dtype = rng.choice(DTYPES)
        other = dtype if rng.random() < 0.9 else rng.choice(DTYPES)
        wrong = rng.random() < 0.1

        def t(*shape, dtype=dtype):
            return tensor(rng, shape, dtype)

        bad = k + 1 if wrong else k
        tally.check(torch.mm, (t(m, k), t(bad, n, dtype=other)))
        tally.check(torch.bmm, (t(b, m, k), t(b, bad, n, dtype=other)))
        tally.check(torch.mv, (t(m, k), t(bad, dtype=other)))
        tally.check(torch.dot, (t(k), t(bad, dtype=other)))
        tally.check(torch.addmm, (t(rng.choice((1, m, n)), n), t(m, k), t(bad, n, dtype=other)))
        tally.check(torch.addmm, (t(n), t(m, k), t(bad, n)), {"alpha": rng.choice((1, 0.5)), "beta": 1})
        tally.check(torch.baddbmm, (t(b, m, n), t(b, m, k), t(b, bad, n)))
        tally.check(torch.addmv, (t(m), t(m, k), t(bad)))
        lead = random_shape(rng, 0, 3)
        tally.check(F.linear, (t(*lead, k), t(n, bad), t(n)))
        tally.check(F.linear, (t(*lead, k), t(n, bad)))
        lead, other_lead = broadcastable(rng, 2)
        left = t(*lead[:3], m, k) if rng.random() < 0.8 else t(k)
        right = t(*other_lead[:3], bad, n) if rng.random() < 0.8 else t(bad)
        tally.check(torch.matmul, (left, right))
        tally.check(torch.Tensor.__matmul__, (left, right))
    tally.conclude(0.687)


def random_dims(rng, ndim):
    kind = rng.random()
    if kind < 0.45:
        return rng.randint(-ndim - 1, ndim)
    if kind < 0.9:
        return [rng.randint(-ndim, ndim - 1) if ndim else 0 for _ in range(rng.randint(0, 3))]
    return None


def test_M3_reductions():
    rng, tally = random.Random(SEED + 7), Tally()
    for _ in range(300):
        for name in "sum mean amax amin prod any all argmax argmin var std".split():
            func = getattr(torch, name)
            x = tensor(rng, random_shape(rng), rng.choice(DTYPES))
            dim = random_dims(rng, x.ndim)
            tally.check(func, (x,))
            tally.check(func, (x, dim))
            if name in ("var", "std"):
                tally.check(func, (x, dim), {"keepdim": rng.random() < 0.5, "correction": rng.choice((0, 1))})
                tally.check(func, (x, dim), {"unbiased": rng.random() < 0.5})
            else:
                tally.check(func, (x, dim, rng.random() < 0.5))
                tally.check(func, (x,), {"dim": dim, "keepdim": rng.random() < 0.5})
            if name in ("sum", "mean", "prod"):
                tally.check(func, (x, dim), {"dtype": rng.choice(DTYPES)})
                tally.check(getattr(torch.Tensor, name), (x,), {"dtype": rng.choice(DTYPES)})
    tally.conclude(0.84)


def test_M3_softmax_and_norms():
    rng, tally = random.Random(SEED + 8), Tally()
    for _ in range(500):
        x = tensor(rng, random_shape(rng), rng.choice(DTYPES))
        dim = rng.randint(-x.ndim - 1, x.ndim)
        for func in (torch.softmax, torch.log_softmax, F.softmax, F.log_softmax):
            tally.check(func, (x, dim))
            tally.check(func, (x,), {"dim": dim, "dtype": rng.choice((None, *DTYPES))})
        tally.check(aten._softmax, (x, dim, False))
        tally.check(aten._log_softmax, (x, dim, False))
        dtype = rng.choice((*FLOATS, *FLOATS, *HALVES, torch.int64))
        x = tensor(rng, random_shape(rng, 1, 5), dtype)
        k = rng.randint(1, x.ndim)
        normalized = list(x.shape[-k:])
        if rng.random() < 0.05:
            normalized[0] += 1
        affine = rng.choice((dtype, dtype, dtype, torch.float32))
        weight = tensor(rng, normalized, affine) if rng.random() < 0.7 else None
        bias = tensor(rng, normalized, affine) if rng.random() < 0.7 else None
        tally.check(F.layer_norm, (x, normalized, weight, bias))
        tally.check(torch.layer_norm, (x, normalized, weight, bias, 1e-5))
        tally.check(aten.native_layer_norm, (x, normalized, weight, bias, 1e-5))
        tally.check(F.rms_norm, (x, normalized, weight))
        x = tensor(rng, random_shape(rng, 2, 4), dtype)
        groups = rng.choice((1, 2, 3, x.shape[1] or 1))
        channels = [x.shape[1]]
        weight = tensor(rng, channels, affine) if rng.random() < 0.7 else None
        tally.check(F.group_norm, (x, groups, weight, weight))
        if dtype not in FLOATS or affine != dtype or x.numel() == 0:
            continue  # eager crashes on some of these
        stats = torch.ones(channels, dtype=dtype) if rng.random() < 0.8 else None
        training = rng.random() < 0.5 or stats is None
        tally.check(aten.native_batch_norm, (x, weight, weight, stats, stats, training, 0.1, 1e-5))
        if stats is not None:
            tally.check(aten._native_batch_norm_legit, (x, weight, weight, stats, stats, training, 0.1, 1e-5))
    tally.conclude(0.686)


def test_M3_look_ups_joins_copies():
    rng, tally = random.Random(SEED + 9), Tally()
    for _ in range(500):
        dtype = rng.choice(DTYPES)
        weight = tensor(rng, (3, rng.choice((0, 1, 4))), dtype)
        # the two functions take their arguments in opposite order under one name: float indices into an integer
        # table, an error of the one, are a valid call of the other
        kinds = (torch.int64, torch.int32, torch.float32) if dtype.is_floating_point else (torch.int64, torch.int32)
        indices = tensor(rng, random_shape(rng), rng.choice(kinds))
        tally.check(F.embedding, (indices, weight))
        tally.check(F.embedding, (indices, weight, rng.choice((None, 0, 2, -1, 7))))
        tally.check(torch.embedding, (weight, indices))
        shape = random_shape(rng, zero=0.02)
        dim = rng.randint(-len(shape) - 1, len(shape))
        parts = []
        for _ in range(rng.randint(0, 3)):
            part = list(shape)
            if part and rng.random() < 0.5:
                part[dim if -len(part) <= dim < len(part) else 0] = rng.choice((1, 2, 5))
            parts.append(tensor(rng, part, dtype if rng.random() < 0.9 else rng.choice(DTYPES)))
        tally.check(torch.cat, (parts, dim))
        tally.check(torch.cat, (tuple(parts),), {"dim": dim})
        tally.check(torch.stack, ([tensor(rng, shape, dtype) for _ in parts], dim))
        x = tensor(rng, shape, dtype)
        tally.check(torch.clone, (x,))
        tally.check(torch.clone, (x,), {"memory_format": rng.choice((torch.contiguous_format, torch.preserve_format))})
        tally.check(torch.Tensor.to, (x, rng.choice(DTYPES)))
        tally.check(torch.Tensor.to, (x,), {"dtype": rng.choice(DTYPES)})
        tally.check(torch.Tensor.float, (x,))
        tally.check(aten._to_copy, (x,), {"dtype": rng.choice(DTYPES)})
    tally.conclude(0.652)


@pytest.mark.parametrize("flash", [True, False])
def test_M3_attention(flash):
    rng, tally = random.Random(SEED + 10), Tally()
    kernel = torch.nn.attention.SDPBackend
    with torch.nn.attention.sdpa_kernel([kernel.FLASH_ATTENTION, kernel.MATH] if flash else [kernel.MATH]):
        for _ in range(400):
            b, h, s, t, d = (rng.choice((1, 2, 3, 4)) for _ in range(5))
            dtype = rng.choice((*FLOATS, *HALVES))

            def make(*shape, dtype=dtype):
                if len(shape) == 4 and rng.random() < 0.5:
                    return tensor(rng, (shape[0], shape[2], shape[1], shape[3]), dtype).transpose(1, 2)
                return tensor(rng, shape, dtype)

            q, k, v = make(b, h, s, d), make(b, h, t, d), make(b, h, t, d if rng.random() < 0.9 else d + 1)
            tally.check(F.scaled_dot_product_attention, (q, k, v))
            tally.check(F.scaled_dot_product_attention, (q, k, v), {"is_causal": True, "scale": 0.5})
            mask = tensor(rng, rng.choice(((s, t), (b, 1, s, t), (1, t), (b, h, 1, t), (s, t + 1))), torch.bool)
            tally.check(F.scaled_dot_product_attention, (q, k, v, mask))
            tally.check(F.scaled_dot_product_attention, (q, k, v), {"attn_mask": mask.to(dtype), "dropout_p": 0.0})
            tally.check(F.scaled_dot_product_attention, (q, k, v), {"dropout_p": 0.1})
            tally.check(F.scaled_dot_product_attention, (q[0], k[0], v[0]))
            if q.stride(-1) == k.stride(-1) == v.stride(-1) == 1 and v.shape == k.shape:
                tally.check(aten._scaled_dot_product_flash_attention_for_cpu, (q, k, v, 0.0, True))
    tally.conclude(0.278 if flash else 0.058)


def test_M3_convolution_and_pooling():
    rng, tally = random.Random(SEED + 11), Tally()
    for _ in range(700):
        n = rng.choice((1, 2, 2, 3))
        groups = rng.choice((1, 1, 1, 2))
        c_in, c_out = rng.choice((2, 4)), rng.choice((2, 6))
        space = [rng.choice((1, 3, 5, 6)) for _ in range(n)]
        kernel = [rng.choice((1, 2, 3)) for _ in range(n)]
        dtype = rng.choice((*FLOATS, torch.float32, torch.bfloat16, torch.int64))
        lead = [rng.choice((1, 2, 3))] if rng.random() < 0.85 else []
        x = tensor(rng, (*lead, c_in, *space), dtype)
        w = tensor(rng, (c_out, c_in // groups, *kernel), dtype)
        if rng.random() < 0.6:
            x, w = x.contiguous(), w.contiguous()
        bias = tensor(rng, (c_out,), dtype) if rng.random() < 0.5 else None
        stride, padding, dilation = (rng.choice(((1, 2), (0, 1), (1, 2))[i]) for i in range(3))
        name = f"conv{n}d"
        tally.check(getattr(F, name), (x, w, bias, stride, padding, dilation, groups))
        tally.check(getattr(F, name), (x, w), {"padding": [padding] * n, "groups": groups})
        rest = ([stride] * n, [padding] * n, [dilation] * n, False, [0] * n, groups)
        if lead:
            tally.check(aten.convolution, (x, w, bias, *rest))
        tw = tensor(rng, (c_in, c_out // groups, *kernel), dtype)
        extra = rng.choice((0, 1))
        tally.check(getattr(F, f"conv_transpose{n}d"), (x, tw, bias, stride, padding, extra, groups, dilation))
        ceil = rng.random() < 0.5
        tally.check(getattr(F, f"max_pool{n}d"), (x, kernel, stride, padding, dilation, ceil))
        tally.check(getattr(F, f"max_pool{n}d"), (x, kernel[0]), {"return_indices": rng.random() < 0.1})
        tally.check(getattr(F, f"avg_pool{n}d"), (x, kernel, stride, padding, ceil))
        if n > 1:
            tally.check(getattr(F, f"adaptive_avg_pool{n}d"), (x, rng.choice((1, 2, 3, [2] * n))))
    tally.conclude(0.407)


def test_M3_default_dtype_is_asked_each_time():
    x = Meta((2,), (1,), torch.int64)
    assert shapes.infer("aten::add", (x, 1.5), {})[0][2] is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert shapes.infer("aten::add", (x, 1.5), {})[0][2] is torch.float64
        assert shapes.infer("aten::exp", (x,), {})[0][2] is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_M3_what_it_does_not_know_is_left_to_torch():
    x = Meta((2, 3), (3, 1), torch.float32)
    for name, args, kwargs in (
        ("aten::no_such_op", (x,), {}),
        ("aten::add", (x,), {}),
        ("aten::add", (x, x), {"out": x}),
        ("aten::add", (x, "1"), {}),
        ("aten::mm", (x, x), {}),
        ("aten::exp", ([x],), {}),
        ("aten::exp", (Meta((2,), (1,), torch.float8_e4m3fn),), {}),
        ("aten::exp", (Meta((1,) * 20, (1,) * 20, torch.float32),), {}),
        ("aten::softmax", (x,), {}),
        ("aten::cat", ([],), {}),
        ("aten::cat", (x,), {}),
        ("aten::sum", (x, 1 << 80), {}),
        ("aten::avg_pool1d", (x, 2, 2, 0, False, True, 0), {}),
        ("aten::avg_pool1d", (x, 2), {"divisor_override": 0}),
        ("aten::avg_pool1d", (x, 2), {"count_include_pad": 1}),
        ("aten::avg_pool1d", (x, 2), {"ceil_mode": 1}),
        ("aten::max_pool1d", (x, 2), {"return_indices": True}),
        ("aten::max_pool1d", (x, 2), {"return_indices": 1}),
        ("aten::max_pool1d", (x, 2), {"ceil_mode": None}),
    ):
        assert shapes.infer(name, args, kwargs) is None, name
    assert shapes.infer("aten::avg_pool1d", (x, 2), {"count_include_pad": False, "ceil_mode": True}) is not None
    assert shapes.infer("aten::max_pool1d", (x, 2), {"return_indices": False, "ceil_mode": False}) is not None


def test_M3_nonsense_is_survived():
    """No argument makes `infer` raise or crash: what it cannot read it leaves to torch."""
    rng = random.Random(SEED)
    odd = (None, True, -1, 2, 1 << 70, 2.5, float("nan"), "x", [], (), [1, 2], (2, 2, 2), [None], {}, 1j, b"x")
    odd += (torch.float16, torch.int64, torch.contiguous_format)
    words = ("dim", "keepdim", "dtype", "weight", "bias", "other", "alpha", "value", "min", "max", "padding", "stride")
    words += ("input", "kernel_size", "memory_format", "inplace", "approximate", "attn_mask", "groups", "nonsense")
    dtypes = (torch.float32, torch.int64, torch.bool, torch.float8_e5m2, torch.complex64, None)

    def value(nested=True):
        if rng.random() < 0.5:
            shape = tuple(rng.choice((0, 1, 2, 3)) for _ in range(rng.randint(0, 6)))
            return Meta(shape, tuple(rng.choice((0, 1, 2, 5)) for _ in shape), rng.choice(dtypes))
        return [value(False), value(False)] if nested and rng.random() < 0.1 else rng.choice(odd)

    for _ in range(20000):
        args = tuple(value() for _ in range(rng.randint(0, 9)))
        kwargs = {rng.choice(words): value() for _ in range(rng.choice((0, 0, 1, 2)))}
        found = shapes.infer(rng.choice(shapes.names()), args, kwargs)
        assert found is None or all(len(result) == 3 for result in found)


def test_M3_huge_shapes_do_not_overflow_silently():
    big = Meta((1 << 31, 1 << 20), (1 << 20, 1), torch.float32)
    assert shapes.infer("aten::relu", (big,), {}) == [((1 << 31, 1 << 20), (1 << 20, 1), torch.float32)]
    assert shapes.infer("aten::mm", (big, Meta((1 << 20, 4), (4, 1), torch.float32)), {})[0][0] == (1 << 31, 4)
    tall, wide = Meta((1 << 40, 1), (1, 1), torch.float32), Meta((1, 1 << 40), (1, 1), torch.float32)
    assert shapes.infer("aten::mul", (tall, wide), {}) is None  # torch refuses: more than 63 bits of elements
