"""Shape rules of element-wise ops.

A rule gets (args, kwargs, spec) and answers a list of (shape, strides, dtype), or None: "ask torch". It answers None
for everything that eager torch would refuse, so that the user sees torch's own message.
"""
from mindtorch._ext.layout cimport (
    BOOL, BOOLS, COMPLEX64, COMPLEXES, FLOAT16, FLOATS, HALVES, INT8, INT16, INT32, INTS, MAX_OPERANDS, UINT8, Meta,
    Operand, broadcast, cast_strides, code_of, default_float, describe, is_contiguous, is_dense, iterate, load,
    load_number, make_contiguous, preserve, result_type,
)

# What the result's dtype is.
cdef enum:
    COMMON = 0          # the promoted one
    FLOATING = 1        # the promoted one, integers become the default float
    TRUTH = 2           # bool
    LIKE = 3            # the operand's own, and its layout too: made by empty_like


cdef bint _fits(object value, int dtype) except -1:
    """Whether a Python number can be converted without torch complaining of overflow."""
    kind = type(value)
    if kind is bool or kind is complex:
        return True
    if kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            return dtype >= FLOAT16
        limit = 65504.0 if dtype == FLOAT16 else 3.38e38
        return dtype >= FLOAT16 and -limit <= value <= limit
    if dtype == BOOL:
        return 0 <= value <= 1
    if dtype == UINT8:
        return 0 <= value <= 255
    if dtype == INT8:
        return -128 <= value <= 127
    if dtype == INT16:
        return -(1 << 15) <= value < 1 << 15
    if dtype == INT32:
        return -(1 << 31) <= value < 1 << 31
    if dtype == FLOAT16:
        return -65504 <= value <= 65504
    return -(1 << 63) <= value < 1 << 63


cdef object _pointwise(tuple operands, int kind, int allowed, bint simple):
    """Promote, cast, broadcast. `simple`: only if all operands are alike and dense, when the order is no matter."""
    cdef Operand ops[MAX_OPERANDS]
    cdef Operand out
    cdef int i, d, common, n = len(operands)
    cdef bint any_tensor = False
    if n > MAX_OPERANDS:
        return None
    for i in range(n):
        if load(operands[i], &ops[i]):
            any_tensor = True
        elif not load_number(operands[i], &ops[i]):
            return None
    if not any_tensor:
        return None
    common = result_type(ops, n)
    if kind == FLOATING and 0 <= common < FLOAT16:
        common = default_float()
    if common < 0 or not allowed >> common & 1:
        return None
    for i in range(n):
        if ops[i].wrapped:
            if not _fits(operands[i], common):
                return None
        elif simple:
            if ops[i].dtype != common or ops[i].ndim != ops[0].ndim or not is_dense(&ops[i]):
                return None
            for d in range(ops[i].ndim):
                if ops[i].stride[d] != ops[0].stride[d] or ops[i].size[d] != ops[0].size[d]:
                    return None
        else:
            cast_strides(&ops[i], common)
    if not iterate(ops, n, &out):
        return None
    out.dtype = BOOL if kind == TRUTH else common
    return [describe(&out)]


cdef bint _plain_extras(tuple args, int first) except -1:
    """Further positional arguments are numbers, None, False (a functional's `inplace`) or a gelu approximation."""
    cdef int i
    for i in range(first, len(args)):
        value = args[i]
        if value is not None and value is not False and value not in ("none", "tanh") and (
                type(value) is not int and type(value) is not float):
            return False
    return True


def unary(tuple args, dict kwargs, tuple spec):
    cdef Operand op
    cdef int kind = spec[0], allowed = spec[1], extras = spec[2]
    if not 1 <= len(args) <= 1 + extras or not _plain_extras(args, 1):
        return None
    for key, value in kwargs.items():
        if key == "inplace":
            if value is not False:
                return None
        elif not extras or (type(value) not in (int, float) and value not in ("none", "tanh")) or (
                key not in ("approximate", "negative_slope", "alpha", "min_val", "max_val", "beta", "threshold")):
            return None
    if kind == LIKE:
        low = args[1] if extras == 3 and len(args) > 1 else kwargs.get("min_val", -1)
        high = args[2] if extras == 3 and len(args) > 2 else kwargs.get("max_val", 1)
        if low is False or high is False or low > high or not load(args[0], &op) or not allowed >> op.dtype & 1:
            return None
        preserve(&op)
        return [describe(&op)]
    return _pointwise(args[:1], kind, allowed, False)


def binary(tuple args, dict kwargs, tuple spec):
    cdef int kind = spec[0], allowed = spec[1]
    if len(args) == 1 and len(kwargs) == 1 and "other" in kwargs:
        args, kwargs = (args[0], kwargs["other"]), {}
    if len(args) != 2 or kwargs:
        return None
    return _pointwise(args[::-1] if spec[2] else args, kind, allowed, False)


def of_tensors(tuple args, dict kwargs, tuple spec):
    """A binary op whose Python function takes no numbers."""
    cdef Operand op
    for value in (*args, *kwargs.values()):
        if not load(value, &op):
            return None
    return binary(args, kwargs, spec)


def sum_or_difference(tuple args, dict kwargs, tuple spec):
    """add, sub, rsub: with an optional `alpha`, an integer unless the result is floating."""
    cdef Operand op
    alpha = 1
    if spec[3]:
        for value in args:
            if type(value) is bool or (load(value, &op) and op.dtype == BOOL):
                return None                                 # no subtraction of bools
    if "alpha" in kwargs:
        kwargs = dict(kwargs)
        alpha = kwargs.pop("alpha")
    found = binary(args, kwargs, spec)
    if found is None or type(alpha) is int:
        return found
    if type(alpha) is float and code_of(found[0][2]) >= FLOAT16:
        return found
    return None


def division(tuple args, dict kwargs, tuple spec):
    if "rounding_mode" in kwargs:
        mode = kwargs["rounding_mode"]
        kwargs = {k: v for k, v in kwargs.items() if k != "rounding_mode"}
        if mode is not None:
            if mode not in ("floor", "trunc"):
                return None
            return binary(args, kwargs, (COMMON, INTS | HALVES | FLOATS, False))
    found = binary(args, kwargs, spec)
    if found is not None and len(args) == 2 and type(args[1]) is not Meta:
        # `2 / x` is recorded alike, and is reciprocal(x) * 2: answer only where the two agree
        once = _pointwise(args[:1], FLOATING, BOOLS | INTS | HALVES | FLOATS, False)
        if once is None or found != _pointwise((Meta(*once[0]), args[1]), COMMON, HALVES | FLOATS, False):
            return None
    return found


def power(tuple args, dict kwargs, tuple spec):
    """pow: of tensors; of a contiguous floating tensor and a number (`2 ** x`, recorded alike, gives contiguous)."""
    cdef Operand op
    if len(args) == 1 and len(kwargs) == 1 and "exponent" in kwargs:
        args, kwargs = (args[0], kwargs["exponent"]), {}
    if len(args) != 2 or kwargs:
        return None
    for base, number in (args, args[::-1]):
        if type(number) in (int, float) and load(base, &op):
            if not (HALVES | FLOATS) >> op.dtype & 1 or not _fits(number, op.dtype) or not is_contiguous(&op):
                return None
            make_contiguous(&op)
            return [describe(&op)]
        if type(number) is bool:
            return None
    return _pointwise(args, COMMON, HALVES | FLOATS, False)


def backward(tuple args, dict kwargs, tuple spec):
    """(grad, saved, numbers...): alike and dense, or torch decides."""
    if len(args) < 2 or not _plain_extras(args, 2):
        return None
    for key, value in kwargs.items():
        if key not in ("approximate", "threshold", "negative_slope") or type(value) is bool:
            return None
    return _pointwise(args[:2], COMMON, HALVES | FLOATS, True)


def clamp(tuple args, dict kwargs, tuple spec):
    """clamp(self, min, max), clamp_min, clamp_max: numbers promote but are no operands; tensors are."""
    cdef Operand ops[3]
    cdef Operand out
    cdef int common, n = 1
    given = (*args[1:], *kwargs.values())
    limits = []
    if not args or len(given) > spec[0] or not set(kwargs) <= {"min", "max"}:
        return None
    for limit in given:
        if limit is not None:
            limits.append(limit)
    if not limits or not load(args[0], &ops[0]):
        return None
    for limit in limits:
        if type(limit) not in (int, float):
            if kwargs or len(args) != 1 + len(limits) or not all(load(t, &ops[1]) for t in limits):
                return None
            return _pointwise(args, COMMON, INTS | HALVES | FLOATS, False)
        load_number(limit, &ops[n])
        n += 1
    common = result_type(ops, n)
    if common < 0 or not (INTS | HALVES | FLOATS) >> common & 1:
        return None
    for limit in limits:
        if not _fits(limit, common):
            return None
    cast_strides(&ops[0], common)
    if not iterate(ops, 1, &out):
        return None
    out.dtype = common
    return [describe(&out)]


def where(tuple args, dict kwargs, tuple spec):
    """where(condition, self, other): the condition takes part in the layout, not in promotion."""
    cdef Operand ops[3]
    cdef Operand out
    cdef int i, common
    if len(args) != 3 or kwargs or not load(args[0], &ops[0]) or ops[0].dtype != BOOL:
        return None
    for i in range(1, 3):
        if not load(args[i], &ops[i]) and not load_number(args[i], &ops[i]):
            return None
    common = result_type(&ops[1], 2)
    if common < 0:
        return None
    for i in range(1, 3):
        if ops[i].wrapped:
            if not _fits(args[i], common):
                return None
        else:
            cast_strides(&ops[i], common)
    if not iterate(ops, 3, &out):
        return None
    out.dtype = common
    return [describe(&out)]


def masked_fill(tuple args, dict kwargs, tuple spec):
    """masked_fill(self, mask, value): a contiguous copy of the broadcast self, its dtype kept."""
    cdef Operand ops[2]
    cdef Operand value, out
    if len(args) == 2 and len(kwargs) == 1 and "value" in kwargs:
        args, kwargs = (*args, kwargs["value"]), {}
    if len(args) != 3 or kwargs or not load(args[0], &ops[0]) or not load(args[1], &ops[1]):
        return None
    if ops[1].dtype != BOOL or not broadcast(ops, 2, &out):
        return None
    if load(args[2], &value):
        if value.ndim or value.dtype != ops[0].dtype:
            return None
    elif type(args[2]) is complex or not load_number(args[2], &value) or not _fits(args[2], ops[0].dtype):
        return None
    make_contiguous(&out)
    out.dtype = ops[0].dtype
    return [describe(&out)]


def ternary(tuple args, dict kwargs, tuple spec):
    """lerp, addcmul, addcdiv over floating tensors of one dtype; a number may stand for lerp's weight."""
    cdef Operand op
    cdef int first = -1
    cdef tuple operands = args
    if len(args) != 3:
        return None
    for key in kwargs:
        if key != "value" or not spec[0] or type(kwargs[key]) not in (int, float):
            return None
    if not spec[0] and type(args[2]) in (int, float):
        operands = args[:2]
    for value in operands:
        if not load(value, &op) or first not in (-1, op.dtype):
            return None
        first = op.dtype
    return _pointwise(operands, COMMON, HALVES | FLOATS, False)


cdef bint _can_cast(int a, int b) noexcept:
    if a >= COMPLEX64 and b < COMPLEX64:
        return False
    if a >= FLOAT16 and b < FLOAT16:
        return False
    return a == BOOL or b != BOOL


def in_place(tuple args, dict kwargs, found):
    """The result of the in-place variant, given the functional one's: self, if the result fits into it."""
    cdef Operand op
    cdef int d
    if found is None or not args or not load(args[0], &op):
        return None
    shape, _, dtype = found[0]
    if shape != args[0].shape or not _can_cast(code_of(dtype), op.dtype):
        return None
    for d in range(op.ndim):
        if op.stride[d] == 0 and op.size[d] > 1:
            return None                                     # torch refuses to write into overlapping memory
    return [(args[0].shape, args[0].strides, args[0].dtype)]


def _names(str names, rule, *spec):
    return {f"aten::{name}": (rule, spec) for name in names.split()}


cdef int _ANY = BOOLS | INTS | HALVES | FLOATS

#: name -> (rule, spec); spec of `unary`: (result, dtypes, number of extra arguments).
#: Of binary ops: (result, dtypes, operands swapped).
RULES = {
    **_names("exp log sin cos tan tanh sigmoid sqrt rsqrt reciprocal erf erfc expm1 log1p log2 log10 exp2 sinh cosh "
             "asin acos atan asinh acosh atanh erfinv lgamma digamma", unary, FLOATING, _ANY, 0),
    **_names("neg relu", unary, COMMON, INTS | HALVES | FLOATS, 1),
    **_names("abs sign floor ceil trunc round", unary, COMMON, INTS | HALVES | FLOATS, 0),
    **_names("square frac silu mish hardswish hardsigmoid", unary, COMMON, HALVES | FLOATS, 1),
    **_names("gelu leaky_relu elu softplus selu", unary, COMMON, HALVES | FLOATS, 3),
    **_names("relu6", unary, LIKE, HALVES | FLOATS, 1),
    **_names("hardtanh", unary, LIKE, HALVES | FLOATS, 3),
    **_names("bitwise_not", unary, COMMON, BOOLS | INTS, 0),
    **_names("logical_not isnan", unary, TRUTH, _ANY, 0),
    **_names("add", sum_or_difference, COMMON, _ANY | COMPLEXES, False, False),
    **_names("sub", sum_or_difference, COMMON, INTS | HALVES | FLOATS | COMPLEXES, False, True),
    **_names("rsub", sum_or_difference, COMMON, INTS | HALVES | FLOATS, True, True),
    **_names("mul", binary, COMMON, _ANY | COMPLEXES, False),
    **_names("div true_divide", division, FLOATING, _ANY | COMPLEXES, False),
    **_names("floor_divide remainder fmod", binary, COMMON, INTS | HALVES | FLOATS, False),
    **_names("maximum minimum fmax fmin", of_tensors, COMMON, _ANY, False),
    **_names("atan2", of_tensors, FLOATING, _ANY, False),
    **_names("bitwise_and bitwise_or bitwise_xor", binary, COMMON, BOOLS | INTS, False),
    **_names("eq ne lt le gt ge", binary, TRUTH, _ANY, False),
    **_names("logical_and logical_or logical_xor", of_tensors, TRUTH, _ANY, False),
    **_names("pow", power),
    **_names("threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward leaky_relu_backward",
             backward),
    **_names("clamp", clamp, 2),
    **_names("clamp_min clamp_max", clamp, 1),
    **_names("where", where),
    **_names("masked_fill", masked_fill),
    **_names("addcmul addcdiv", ternary, True),
    **_names("lerp", ternary, False),
}
