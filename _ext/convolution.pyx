"""Shape rules of convolution and pooling, for plainly contiguous tensors."""
from libc.stdint cimport int64_t

from mindtorch._ext.layout cimport (
    FLOATS, Operand, describe, is_evenly_contiguous, load, make_contiguous, numel,
)


cdef bint _plain(const Operand *x) noexcept:
    """Not empty, and contiguous without odd strides: never readable as channels-last, whose results differ."""
    return is_evenly_contiguous(x) and numel(x) > 0


cdef tuple _expand(value, int n):
    """An int or a list of 1 or n ints, as n ints; TypeError for anything else."""
    if type(value) is int:
        return (value,) * n
    if type(value) not in (list, tuple) or len(value) not in (1, n):
        raise TypeError(value)
    for item in value:
        if type(item) is not int:
            raise TypeError(item)
    return tuple(value) * n if len(value) == 1 else tuple(value)


cdef object _result(Operand *x, int dtype):
    x.dtype = dtype
    make_contiguous(x)
    return [describe(x)]


cdef dict _bound(list names, list values, tuple args, dict kwargs):
    """What is given to each of these, whose values else are those; None: too many."""
    if len(args) > len(names):
        return None
    values[:len(args)] = args
    for key, value in kwargs.items():
        values[names.index(key)] = value
    return dict(zip(names, values))


def convolution(tuple args, dict kwargs, tuple spec):
    """conv{n}d(input, weight, bias, stride, padding, dilation, groups), convolution(... transposed ...)."""
    cdef Operand x, w, b
    cdef int i, n, batch
    cdef int64_t size, groups, c_in, c_out
    names = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    values = [None, None, None, 1, 0, 1, 1]
    if spec[0] == 0:
        names[6:] = ["transposed", "output_padding", "groups"]
        values[6:] = [None, None, None]
    elif spec[1]:
        names[5:] = ["output_padding", "groups", "dilation"]
        values[5:] = [0, 1, 1]
    if (bound := _bound(names, values, args, kwargs)) is None:
        return None
    transposed = bound.get("transposed", spec[1])
    if not load(bound["input"], &x) or not load(bound["weight"], &w) or x.dtype != w.dtype or not FLOATS >> x.dtype & 1:
        return None
    n = w.ndim - 2
    if n < 1 or n > 3 or (spec[0] and n != spec[0]) or x.ndim not in (n + 1, n + 2):
        return None
    if type(transposed) is not bool or not _plain(&x) or not _plain(&w):
        return None
    batch = x.ndim - n - 1
    if spec[0] == 0 and not batch:
        return None
    stride, padding = _expand(bound["stride"], n), _expand(bound["padding"], n)
    dilation, extra = _expand(bound["dilation"], n), _expand(bound.get("output_padding", 0), n)
    if type(bound["groups"]) is not int:
        return None
    groups = bound["groups"]
    c_in = x.size[batch]
    c_out = w.size[1] * groups if transposed else w.size[0]
    if groups < 1 or c_in != (w.size[0] if transposed else w.size[1] * groups) or w.size[0] % groups:
        return None
    if bound["bias"] is not None:
        if not load(bound["bias"], &b) or b.dtype != x.dtype or b.ndim != 1 or b.size[0] != c_out:
            return None
    if min(stride) < 1 or min(padding) < 0 or min(dilation) < 1 or min(extra) < 0 or (not transposed and max(extra)):
        return None
    for i in range(n):
        size = x.size[batch + 1 + i]
        if transposed:
            if extra[i] >= stride[i] and extra[i] >= dilation[i]:
                return None
            size = (size - 1) * stride[i] - 2 * padding[i] + dilation[i] * (w.size[2 + i] - 1) + extra[i] + 1
        else:
            size = size + 2 * padding[i] - dilation[i] * (w.size[2 + i] - 1) - 1
            if size < 0:
                return None
            size = size // stride[i] + 1
        if size < 1:
            return None
        x.size[batch + 1 + i] = size
    x.size[batch] = c_out
    return _result(&x, x.dtype)


def pooling(tuple args, dict kwargs, tuple spec):
    """max_pool{n}d(input, kernel, stride, padding, dilation, ceil_mode), avg_pool{n}d(..., padding, ceil_mode, ...)."""
    cdef Operand x
    cdef int i, n = spec[0], first
    cdef int64_t size, reach
    cdef bint is_max = spec[1]
    names = ["input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"]
    values = [None, None, None, 0, 1, False, False]
    if not is_max:
        names[4:] = ["ceil_mode", "count_include_pad", "divisor_override"]
        values[4:] = [False, True, None]
    if (bound := _bound(names, values, args, kwargs)) is None:
        return None
    if bound.get("return_indices", False) is not False or type(bound["ceil_mode"]) is not bool:
        return None
    if type(bound.get("count_include_pad", True)) is not bool or bound.get("divisor_override") is not None:
        return None
    if not load(bound["input"], &x) or not FLOATS >> x.dtype & 1 or x.ndim not in (n + 1, n + 2) or not _plain(&x):
        return None
    kernel, padding, dilation = _expand(bound["kernel_size"], n), _expand(bound["padding"], n), (
        _expand(bound.get("dilation", 1), n))
    stride = bound["stride"]
    stride = kernel if stride is None or stride == [] or stride == () else _expand(stride, n)
    if min(kernel) < 1 or min(stride) < 1 or min(padding) < 0 or min(dilation) < 1:
        return None
    first = x.ndim - n
    for i in range(n):
        if padding[i] * 2 > kernel[i] or (n == 3 and not is_max and x.size[first + i] < kernel[i]):
            return None
        reach = x.size[first + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        if reach < 0:
            return None
        size = reach // stride[i] + 1
        if bound["ceil_mode"]:
            size = (reach + stride[i] - 1) // stride[i] + 1
            if (size - 1) * stride[i] >= x.size[first + i] + padding[i]:
                size -= 1
        x.size[first + i] = size
    return _result(&x, x.dtype)


def adaptive_pooling(tuple args, dict kwargs, tuple spec):
    """adaptive_avg_pool{n}d(input, output_size)."""
    cdef Operand x
    cdef int i, n = spec[0]
    if len(args) != 2 or kwargs or not load(args[0], &x) or not FLOATS >> x.dtype & 1 or not _plain(&x):
        return None
    size = _expand(args[1], n)
    if min(size) < 1 or x.ndim not in (n + 1, n + 2):
        return None
    for i in range(n):
        x.size[x.ndim - n + i] = size[i]
    return _result(&x, x.dtype)


RULES = {
    "aten::convolution": (convolution, (0, False)),
    **{f"aten::conv{n}d": (convolution, (n, False)) for n in (1, 2, 3)},
    **{f"aten::conv_transpose{n}d": (convolution, (n, True)) for n in (1, 2, 3)},
    **{f"aten::max_pool{n}d": (pooling, (n, True)) for n in (1, 2, 3)},
    **{f"aten::avg_pool{n}d": (pooling, (n, False)) for n in (1, 2, 3)},
    **{f"aten::adaptive_avg_pool{n}d": (adaptive_pooling, (n,)) for n in (2, 3)},
}
