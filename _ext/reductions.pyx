"""Shape rules of reductions, softmax, normalization and embedding."""
from mindtorch._ext.layout cimport (
    BOOL, BOOLS, FLOAT16, FLOATS, HALVES, INT32, INT64, INTS, INVALID, MAX_NDIM, UINT8, Operand,
    code_of, is_contiguous, is_evenly_contiguous, load, numel, suggests_channels_last,
)
from mindtorch._ext.rules cimport bind, contiguous_result


# -- reductions --------------------------------------------------------------------------------------------------------

cdef object _dims(dim, int ndim, bint empty_is_all):
    """Normalized set of dimensions; None if torch would refuse them."""
    cdef int n = ndim if ndim else 1
    if dim is None:
        return set(range(ndim))
    if type(dim) is int:
        dim = (dim,)
    if type(dim) not in (tuple, list):
        return None
    if not dim:
        return set(range(ndim)) if empty_is_all else None
    found = set()
    for d in dim:
        if type(d) is not int or not -n <= d < n:
            return None
        d = d + n if d < 0 else d
        if d in found:
            return None
        found.add(d)
    return found


cdef list _reduced(Operand *x, object dims, bint keepdim, int dtype, int results):
    cdef Operand out
    cdef int i
    out.ndim = 0
    for i in range(x.ndim):
        if i not in dims:
            out.size[out.ndim] = x.size[i]
            out.ndim += 1
        elif keepdim:
            out.size[out.ndim] = 1
            out.ndim += 1
    return contiguous_result(&out, dtype) * results


def reduction(tuple args, dict kwargs, tuple spec):
    """sum, mean, amax ...: (self, dim=None, keepdim=False, *, dtype=None); spec: (dtypes, result kind, one dim only,
    has dtype, empty allowed)."""
    cdef Operand x
    cdef int dtype
    kind = spec[1]
    bound = bind(args, kwargs, ("self", "dim", "keepdim", "dtype"), (None, None, False, None))
    if bound is None or len(args) > 3 or not load(bound[0], &x) or type(bound[2]) is not bool:
        return None
    if spec[2] and type(bound[1]) is not int and (bound[1] is not None or bound[2] or kind != "index" and (
            len(args) > 1 or "dim" in kwargs)):
        return None
    if kind == "truth" and (x.dtype == UINT8 or (bound[1] is not None and type(bound[1]) is not int)):
        return None                                         # uint8 stays uint8; [] reduces nothing
    dims = _dims(bound[1], x.ndim, not spec[2])
    if dims is None or (not spec[4] and numel(&x) == 0):
        return None
    dtype = x.dtype
    if bound[3] is not None:
        dtype = code_of(bound[3]) if spec[3] else INVALID
    if dtype < 0 or not spec[0] >> dtype & 1:
        return None
    if kind == "sum" and dtype <= INT64 and bound[3] is None:
        dtype = INT64
    elif kind == "index":
        dtype = INT64
    elif kind == "truth":
        dtype = BOOL
    return _reduced(&x, dims, bound[2], dtype, 1)


def variance(tuple args, dict kwargs, tuple spec):
    """var, std (self, dim=None, *, correction=None, keepdim=False), and the older (self, dim, unbiased, keepdim)."""
    cdef Operand x
    if not 1 <= len(args) <= 2 or not set(kwargs) <= {"dim", "correction", "keepdim", "unbiased"}:
        return None
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    keepdim = kwargs.get("keepdim", False)
    if type(dim) is bool or not load(args[0], &x) or type(keepdim) is not bool or not (HALVES | FLOATS) >> x.dtype & 1:
        return None
    if type(kwargs.get("unbiased", True)) is not bool or type(kwargs.get("correction", 1)) not in (int, float):
        return None
    if "unbiased" in kwargs and ("correction" in kwargs or (dim is None and "keepdim" in kwargs)):
        return None
    if numel(&x) == 0:
        return None
    dims = _dims(dim, x.ndim, True)
    return None if dims is None else _reduced(&x, dims, keepdim, x.dtype, 1)


def softmax(tuple args, dict kwargs, tuple spec):
    """softmax(self, dim, dtype=None), _softmax(self, dim, half_to_float), F.softmax(self, dim, _stacklevel, dtype)."""
    cdef Operand x
    cdef int dtype
    if not load(args[0], &x):
        return None
    rest = list(args[1:])
    requested = kwargs.get("dtype")
    dim = kwargs["dim"] if "dim" in kwargs else rest.pop(0)
    if not set(kwargs) <= {"dim", "dtype", "_stacklevel"} or type(dim) is not int:
        return None
    for value in rest:
        if spec[0]:
            if value is not False:
                return None
        elif requested is None and value is not None and type(value) is not int:
            requested = value
    n = x.ndim if x.ndim else 1
    if not -n <= dim < n or len(rest) > 2:
        return None
    dtype = x.dtype if requested is None else code_of(requested)
    if dtype < 0 or not (HALVES | FLOATS) >> dtype & 1:
        return None
    return contiguous_result(&x, dtype)


# -- normalization -----------------------------------------------------------------------------------------------------

cdef bint _affine(value, const Operand *x, tuple shape):
    """A weight or bias: absent, or of x's dtype and the given shape."""
    cdef Operand w
    return value is None or (load(value, &w) and w.dtype == x.dtype and value.shape == shape)


def layer_norm(tuple args, dict kwargs, tuple spec):
    """layer_norm(input, shape, weight, bias, eps, cudnn), native_layer_norm (3 results), rms_norm (no bias)."""
    cdef Operand x, weight
    cdef int i, k
    names = ("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable")
    if spec[0] == "rms":
        names = ("input", "normalized_shape", "weight", "eps")
    bound = bind(args, kwargs, names, (None,) * len(names))
    allowed = HALVES | FLOATS if spec[0] == "layer" else FLOATS
    if bound is None or not load(bound[0], &x) or not allowed >> x.dtype & 1:
        return None
    shape = bound[1]
    if type(shape) is int:
        shape = (shape,)
    shape = tuple(shape)
    k = len(shape)
    if not 0 < k <= x.ndim or numel(&x) == 0 or not _affine(bound[2], &x, shape):
        return None
    for i in range(k):
        if shape[i] != x.size[x.ndim - k + i]:
            return None
    if spec[0] == "rms":
        # made of element-wise steps, which keep odd strides of dimensions of size 1: only where there are none
        if not is_evenly_contiguous(&x) or (load(bound[2], &weight) and not is_evenly_contiguous(&weight)):
            return None
        return contiguous_result(&x, x.dtype)
    if not _affine(bound[3], &x, shape):
        return None
    found = contiguous_result(&x, x.dtype)
    if spec[0] == "native":
        for i in range(x.ndim - k, x.ndim):
            x.size[i] = 1
        found += contiguous_result(&x, x.dtype) * 2
    return found


def group_norm(tuple args, dict kwargs, tuple spec):
    """group_norm(input, num_groups, weight, bias, eps, cudnn), for plainly contiguous input."""
    cdef Operand x
    names = ("input", "num_groups", "weight", "bias", "eps", "cudnn_enabled")
    bound = bind(args, kwargs, names, (None,) * 6)
    if bound is None or not load(bound[0], &x) or not FLOATS >> x.dtype & 1 or type(bound[1]) is not int:
        return None
    if x.ndim < 3 or numel(&x) == 0 or not is_contiguous(&x) or suggests_channels_last(&x) or x.ndim > 4:
        return None
    if bound[1] <= 0 or x.size[1] % bound[1] or numel(&x) == bound[1]:
        return None                                         # the functional refuses one value per group
    if not _affine(bound[2], &x, (x.size[1],)) or not _affine(bound[3], &x, (x.size[1],)):
        return None
    return contiguous_result(&x, x.dtype)


def batch_norm(tuple args, dict kwargs, tuple spec):
    """native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps) and its _legit form.

    Three results; the last two are empty unless training, which torch's meta kernel does not know.
    """
    cdef Operand x, stats
    if len(args) != 8 or kwargs or type(args[5]) is not bool:
        return None
    if not load(args[0], &x) or not FLOATS >> x.dtype & 1 or x.ndim < 2 or numel(&x) == 0:
        return None
    if not is_evenly_contiguous(&x) or (not args[5] and (args[3] is None or args[4] is None)):
        return None
    for value in args[1:5]:
        if not _affine(value, &x, (x.size[1],)):
            return None
    stats.ndim = 1
    stats.size[0] = x.size[1] if args[5] else 0
    return contiguous_result(&x, x.dtype) + contiguous_result(&stats, x.dtype) * 2


# -- look-ups ----------------------------------------------------------------------------------------------------------

def embedding(tuple args, dict kwargs, tuple spec):
    """embedding(weight, indices, padding_idx=-1 ...) and F.embedding(indices, weight, padding_idx=None ...)."""
    cdef Operand weight, indices
    if not 2 <= len(args) <= 3 or (set(kwargs) - {"padding_idx"}):
        return None
    padding = args[2] if len(args) == 3 else kwargs.get("padding_idx")
    if not load(args[0], &weight) or not load(args[1], &indices):
        return None
    if weight.dtype in (INT32, INT64) and indices.dtype >= FLOAT16:
        weight, indices = indices, weight
    if weight.ndim != 2 or weight.dtype < FLOAT16 or indices.dtype not in (INT32, INT64):
        return None
    if padding is not None and (type(padding) is not int or not -1 <= padding < weight.size[0]):
        return None
    if indices.ndim >= MAX_NDIM:
        return None
    indices.size[indices.ndim] = weight.size[1]
    indices.ndim += 1
    return contiguous_result(&indices, weight.dtype)


cdef int _ANY = BOOLS | INTS | HALVES | FLOATS

RULES = {
    "aten::sum": (reduction, (_ANY, "sum", False, True, True)),
    "aten::mean": (reduction, (HALVES | FLOATS, "same", False, True, True)),
    "aten::amax": (reduction, (_ANY, "same", False, False, False)),
    "aten::amin": (reduction, (_ANY, "same", False, False, False)),
    "aten::prod": (reduction, (_ANY, "sum", True, True, True)),
    "aten::any": (reduction, (_ANY, "truth", False, False, True)),
    "aten::all": (reduction, (_ANY, "truth", False, False, True)),
    "aten::argmax": (reduction, (INTS | HALVES | FLOATS, "index", True, False, False)),
    "aten::argmin": (reduction, (INTS | HALVES | FLOATS, "index", True, False, False)),
    "aten::var": (variance, ()),
    "aten::std": (variance, ()),
    "aten::softmax": (softmax, (False,)),
    "aten::log_softmax": (softmax, (False,)),
    "aten::_softmax": (softmax, (True,)),
    "aten::_log_softmax": (softmax, (True,)),
    "aten::layer_norm": (layer_norm, ("layer",)),
    "aten::native_layer_norm": (layer_norm, ("native",)),
    "aten::rms_norm": (layer_norm, ("rms",)),
    "aten::native_batch_norm": (batch_norm, ()),
    "aten::_native_batch_norm_legit": (batch_norm, ()),
    "aten::group_norm": (group_norm, ()),
    "aten::embedding": (embedding, ()),
}
