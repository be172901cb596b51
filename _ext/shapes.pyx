"""Shape inference for the hot op families: what torch's eager CPU kernels would return, without running them.

`infer` is called when the recorder has not seen a call before. It answers only where the answer is certain: shape,
strides and dtype equal eager's (the tests compare thousands of calls), and None ("ask torch") otherwise, in
particular for every call that torch would refuse. View ops are not here: torch does those itself.
"""
from libc.stdint cimport int64_t

from mindtorch._ext.layout cimport (
    MAX_NDIM, Operand, code_of, describe, is_evenly_contiguous, load, make_channels_last, numel, preserve,
    suggests_channels_last,
)
from mindtorch._ext.rules cimport bind, contiguous_result

from mindtorch._ext import reductions as _reductions
from mindtorch._ext import layout as _layout
from mindtorch._ext import pointwise as _pointwise
from mindtorch._ext import products as _products
from mindtorch._ext import convolution as _convolution
from mindtorch._ext.layout import Meta as _Meta

Meta = _Meta                                                # what callers describe tensors with

cdef dict _rules = {}
cdef object _in_place = _pointwise.in_place


def init(torch_module):
    """Learn torch's dtypes and promotion rules. Until this is called `infer` answers None to everything."""
    _layout.init(torch_module)
    _products.init(torch_module)
    for rules in (_pointwise.RULES, _products.RULES, _reductions.RULES, _convolution.RULES, _RULES):
        _rules.update(rules)


def names():
    """The ops that have a rule, in-place variants included."""
    return [*_rules, *map("{}_".format, _pointwise.RULES)]


def infer(str name not None, tuple args not None, dict kwargs not None):
    """[(shape, strides, dtype), ...] of the results of a call, or None if there is no certain answer.

    name: ``aten::add``; tensors in `args` and `kwargs` are `Meta` objects. Works for the ATen schema and for the
    public function of the same name. An in-place op (``aten::add_``) answers its first argument.
    """
    cdef tuple entry = _rules.get(name)
    cdef bint in_place = False
    if not args:
        return None                                         # rules rely on a first argument
    if entry is None:
        if not name.endswith("_") or name.endswith("__"):
            return None
        base = name[:len(name) - 1]
        entry = _pointwise.RULES.get(base) if _rules else None
        if entry is None:
            return None
        in_place = True
    try:
        found = entry[0](args, kwargs, entry[1])
        if found is None or not _addressable(found):
            return None
        return _in_place(args, kwargs, found) if in_place else found
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        return None                                         # an argument no rule expects: torch will say what is wrong


cdef bint _addressable(list found) except -1:
    """Whether torch could allocate the results: their bytes fit into 63 bits."""
    cdef double n
    for shape, _, _ in found:
        n = 16
        for size in shape:
            n *= size
        if n >= 9.2e18:
            return False
    return True


# -- joins and copies --------------------------------------------------------------------------------------------------

def join(tuple args, dict kwargs, tuple spec):
    """cat and stack (tensors, dim=0). Without legacy 1-dimensional empty tensors."""
    cdef Operand x, out
    cdef int i, n, dtype, dim = 0
    cdef int64_t total = 0
    cdef bint stack = spec[0], all_channels_last = True, plain = True
    bound = bind(args, kwargs, ("tensors", "dim"), (None, 0))
    if bound is None or type(bound[0]) not in (list, tuple) or not bound[0] or type(bound[1]) is not int:
        return None
    dtype = -1
    for i, tensor in enumerate(bound[0]):
        if not load(tensor, &x):
            return None
        if i == 0:
            out = x
            dtype = x.dtype
            n = x.ndim + stack
            if not -n <= bound[1] < n:
                return None
            dim = bound[1] + n if bound[1] < 0 else bound[1]
        if x.ndim != out.ndim or x.dtype != dtype or numel(&x) == 0:
            return None
        for k in range(x.ndim):
            if x.size[k] != out.size[k] and (stack or k != dim):
                return None
        all_channels_last = all_channels_last and suggests_channels_last(&x)
        plain = plain and is_evenly_contiguous(&x)
        total += 1 if stack else x.size[dim]
    if stack:
        if not plain or out.ndim + 1 > MAX_NDIM:
            return None
        for k in range(out.ndim, dim, -1):
            out.size[k] = out.size[k - 1]
        out.ndim += 1
    elif out.ndim == 5 and not plain:
        return None                                         # channels_last_3d
    out.size[dim] = total
    if not stack and all_channels_last:
        make_channels_last(&out)
        return [describe(&out)]
    return contiguous_result(&out, dtype)


def copy(tuple args, dict kwargs, tuple spec):
    """clone(self, memory_format=preserve), and to/_to_copy to another dtype. A `to` that may return self: None."""
    cdef Operand x
    cdef int dtype
    if not load(args[0], &x):
        return None
    layout = str(kwargs.get("memory_format", "torch.preserve_format"))
    if spec[0] == "clone":
        if len(args) != 1 or not set(kwargs) <= {"memory_format"}:
            return None
        dtype = x.dtype
    else:
        if len(args) != (1 if "dtype" in kwargs else 2):
            return None
        if not set(kwargs) <= {"dtype", "memory_format", "non_blocking"}:
            return None
        requested = kwargs["dtype"] if "dtype" in kwargs else args[1]
        dtype = code_of(requested)
        if dtype < 0 or dtype == x.dtype:
            return None
    if layout == "torch.contiguous_format":
        return contiguous_result(&x, dtype)
    if layout not in ("torch.preserve_format", "None"):
        return None
    x.dtype = dtype
    preserve(&x)
    return [describe(&x)]


_RULES = {
    "aten::cat": (join, (False,)),
    "aten::stack": (join, (True,)),
    "aten::clone": (copy, ("clone",)),
    "aten::_to_copy": (copy, ("to",)),
    "aten::to": (copy, ("to",)),
}
