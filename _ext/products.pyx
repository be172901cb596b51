"""Shape rules of matrix products and attention."""
from mindtorch._ext.layout cimport (
    BOOL, COMPLEXES, FLOATS, FLOAT32, HALVES, INTS, Meta, Operand, broadcast, describe, load, preserve,
)
from mindtorch._ext.rules cimport bind, contiguous_result

cdef object _flash_enabled = None


def init(torch_module):
    global _flash_enabled
    _flash_enabled = torch_module.backends.cuda.flash_sdp_enabled


# -- products ----------------------------------------------------------------------------------------------------------

cdef bint _two(a, b, Operand *x, Operand *y, int allowed):
    return load(a, x) and load(b, y) and x.dtype == y.dtype and (allowed >> x.dtype & 1) != 0


def product(tuple args, dict kwargs, tuple spec):
    """mm, bmm, mv, dot: operands of the given numbers of dimensions."""
    cdef Operand x, y, out
    cdef int i
    if len(args) == 1 and len(kwargs) == 1:
        ((key, value),) = kwargs.items()
        if key not in ("mat2", "vec", "tensor"):
            return None
        args, kwargs = (args[0], value), {}
    if len(args) != 2 or kwargs or not _two(args[0], args[1], &x, &y, INTS | HALVES | FLOATS | COMPLEXES):
        return None
    if x.ndim != spec[0] or y.ndim != spec[1]:
        return None
    if x.ndim == 3 and x.size[0] != y.size[0]:
        return None
    if x.size[x.ndim - 1] != y.size[y.ndim - 2 if y.ndim > 1 else 0]:
        return None
    out.ndim = x.ndim + y.ndim - 2 - (1 if x.ndim == 3 else 0)
    for i in range(x.ndim - 1):
        out.size[i] = x.size[i]
    if y.ndim > 1:
        out.size[out.ndim - 1] = y.size[y.ndim - 1]
    return contiguous_result(&out, x.dtype)


cdef list _matmul(Operand *x, Operand *y):
    cdef Operand a, b, out
    cdef int i, lead
    if x.ndim == 0 or y.ndim == 0 or x.size[x.ndim - 1] != y.size[y.ndim - 2 if y.ndim > 1 else 0]:
        return None
    if x.ndim <= 2 and y.ndim > 2 and (x.ndim == 2 and (x.size[0] == 1 or y.size[y.ndim - 1] == 1)):
        return None                                         # computed transposed; strides of the 1s depend on the way
    a.ndim = x.ndim - 2 if x.ndim > 2 else 0
    b.ndim = y.ndim - 2 if y.ndim > 2 else 0
    for i in range(a.ndim):
        a.size[i] = x.size[i]
    for i in range(b.ndim):
        b.size[i] = y.size[i]
    cdef Operand leads[2]
    leads[0] = a
    leads[1] = b
    if not broadcast(leads, 2, &out):
        return None
    lead = out.ndim
    if x.ndim > 1:
        out.size[lead] = x.size[x.ndim - 2]
        lead += 1
    if y.ndim > 1:
        out.size[lead] = y.size[y.ndim - 1]
        lead += 1
    out.ndim = lead
    return contiguous_result(&out, x.dtype)


def matmul(tuple args, dict kwargs, tuple spec):
    cdef Operand x, y
    bound = bind(args, kwargs, ("self", "other"), (None, None))
    if bound is None or not _two(bound[0], bound[1], &x, &y, INTS | HALVES | FLOATS | COMPLEXES):
        return None
    return _matmul(&x, &y)


def linear(tuple args, dict kwargs, tuple spec):
    """linear(input, weight, bias=None): weight and bias of 2 and 1 dimensions."""
    cdef Operand x, weight, bias
    bound = bind(args, kwargs, ("input", "weight", "bias"), (None, None, None))
    if bound is None or not _two(bound[0], bound[1], &x, &weight, HALVES | FLOATS):
        return None
    if weight.ndim != 2 or x.ndim == 0 or x.size[x.ndim - 1] != weight.size[1]:
        return None
    if bound[2] is not None:
        if not load(bound[2], &bias) or bias.dtype != x.dtype or bias.ndim != 1 or bias.size[0] != weight.size[0]:
            return None
    x.size[x.ndim - 1] = weight.size[0]
    return contiguous_result(&x, x.dtype)


def add_product(tuple args, dict kwargs, tuple spec):
    """addmm, baddbmm, addmv (self, a, b, *, beta, alpha)."""
    cdef Operand add, x, y
    if len(args) != 3 or not set(kwargs) <= {"beta", "alpha"} or not load(args[0], &add):
        return None
    for value in kwargs.values():
        if type(value) not in (int, float):
            return None
    found = product(args[1:], {}, spec)
    if found is None or not load(args[1], &x) or add.dtype != x.dtype or not (HALVES | FLOATS) >> x.dtype & 1:
        return None
    load(Meta(*found[0]), &y)
    cdef Operand both[2]
    both[0] = add
    both[1] = y
    if not broadcast(both, 2, &x) or x.ndim != y.ndim or describe(&x)[0] != found[0][0]:
        return None
    return found


# -- attention ---------------------------------------------------------------------------------------------------------

def attention(tuple args, dict kwargs, tuple spec):
    """scaled_dot_product_attention where CPU takes its flash kernel, and that kernel itself (2 results).

    The result is laid out like the query. Other kernels: None; torch's meta prediction would be that of the math
    composite, whose strides differ.
    """
    cdef Operand q, k, v, mask
    cdef Operand out
    if spec[0]:
        names = ("query", "key", "value", "dropout_p", "is_causal", "attn_mask", "scale")
        bound = bind(args, kwargs, names, (None, None, None, 0.0, False, None, None))
        if bound is None or len(args) > 5:
            return None
        query, key, value, dropout, causal, bias, scale = bound
        gqa = False
    else:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        bound = bind(args, kwargs, names, (None, None, None, None, 0.0, False, None, False))
        if bound is None:
            return None
        query, key, value, bias, dropout, causal, scale, gqa = bound
        if not _flash_enabled():
            return None
    if gqa is not False or dropout != 0 or type(causal) is not bool or (causal and bias is not None):
        return None
    if scale is not None and type(scale) is not float:
        return None
    if not _two(query, key, &q, &k, HALVES | FLOATS) or not load(value, &v) or v.dtype != q.dtype:
        return None
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        return None
    for i in range(4):
        if q.size[i] == 0 or k.size[i] == 0 or k.size[i] != v.size[i] or (i != 2 and q.size[i] != k.size[i]):
            return None
    if q.stride[3] != 1 or k.stride[3] != 1 or v.stride[3] != 1:
        return None
    if bias is not None:
        if not load(bias, &mask) or mask.ndim not in (2, 4) or mask.dtype not in (BOOL, q.dtype) or spec[0]:
            return None
        if mask.size[mask.ndim - 2] not in (1, q.size[2]) or mask.size[mask.ndim - 1] not in (1, k.size[2]):
            return None
        if mask.ndim == 4 and (mask.size[0] not in (1, q.size[0]) or mask.size[1] not in (1, q.size[1])):
            return None
    out = q
    preserve(&out)
    found = [describe(&out)]
    if spec[0]:
        out.ndim = 3                                        # logsumexp
        out.dtype = FLOAT32 if q.dtype < FLOAT32 else q.dtype
        out.stride[0] = q.size[2] * q.size[1]
        out.stride[1] = 1
        out.stride[2] = q.size[1]
        found.append(describe(&out))
    return found


RULES = {
    "aten::mm": (product, (2, 2)),
    "aten::bmm": (product, (3, 3)),
    "aten::mv": (product, (2, 1)),
    "aten::dot": (product, (1, 1)),
    "aten::matmul": (matmul, ()),
    "aten::linear": (linear, ()),
    "aten::addmm": (add_product, (2, 2)),
    "aten::baddbmm": (add_product, (3, 3)),
    "aten::addmv": (add_product, (2, 1)),
    "aten::scaled_dot_product_attention": (attention, (False,)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (attention, (True,)),
}
