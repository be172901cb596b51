"""The tensors among a call's arguments: finding ours, and putting others in their place."""
from .intern cimport OpInfo
from .lazy cimport handle_of
from .signature cimport PyObject_TypeCheck, PyTypeObject
from .tape cimport Handle

from .keys import HELD_BY_ALL as _HELD_BY_ALL, same_device
from .lazy import meta_of, view_bits
from .strides import contiguous, extent

cdef object tensor_class, device_class, size_class, empty, as_strided, no_function, set_bits
cdef PyTypeObject *tensor_type
cdef double HELD_BY_ALL = _HELD_BY_ALL


def init(torch, set_view_bits):
    """Called once. ``set_view_bits``: `lazy.set_view_bits`."""
    global tensor_class, tensor_type, device_class, size_class, empty, as_strided, no_function, set_bits
    tensor_class, device_class, size_class = torch.Tensor, torch.device, torch.Size
    tensor_type = <PyTypeObject *>tensor_class
    empty, as_strided = torch._C._VariableFunctions.empty, torch._C._VariableFunctions.as_strided
    no_function, set_bits = torch._C.DisableTorchFunction, set_view_bits


# ---- tensors among arguments ---------------------------------------------------------------------------------------
cdef int _append(list found, object a, bint ours) except -1:
    if PyObject_TypeCheck(a, tensor_type):
        if not ours or handle_of(a) is not None:
            found.append(a)
    elif isinstance(a, (tuple, list)):
        for item in a:
            _append(found, item, ours)
    return 0


def tensors_in(a):
    """Tensors in an argument, in the order in which keys have them."""
    cdef list found = []
    _append(found, a, False)
    return found


def lazy_in(a):
    """Those of them that are ours."""
    cdef list found = []
    _append(found, a, True)
    return found


def collect(OpInfo info, tuple args, dict kwargs):
    """Our tensors among the arguments, and for each whether the call writes it (1, else 0)."""
    cdef list inputs = []
    cdef bytearray written = bytearray()
    cdef Py_ssize_t i
    for i in range(len(args)):
        _append(inputs, args[i], True)
        if len(written) < len(inputs):
            _mark(written, len(inputs), i in info.writes)
    for name, a in kwargs.items():
        _append(inputs, a, True)
        if len(written) < len(inputs):
            _mark(written, len(inputs), name in info.writes)
    return inputs, bytes(written)


cdef int _mark(bytearray written, Py_ssize_t n, bint is_written) except -1:
    while len(written) < n:
        written.append(is_written)
    return 0


cdef object _filled(object a, object holes, object device, bint any_device):
    cdef list items
    if PyObject_TypeCheck(a, tensor_type):
        return next(holes) if handle_of(a) is not None else a
    if isinstance(a, (tuple, list)) and not isinstance(a, size_class):
        items = []
        for item in a:
            items.append(_filled(item, holes, device, any_device))
        return items if type(a) is list else type(a)(items)
    if type(a) is device_class and (any_device or same_device(a)):
        return device
    return a


def filled(tuple args, dict kwargs, tensors, device, *, bint any_device=False):
    """The arguments of a call with these tensors in place of ours, and ``device`` in place of ours, or of any."""
    holes = iter(tensors)
    cdef dict named = {}
    positional = _filled(args, holes, device, any_device)
    for name, a in kwargs.items():
        named[name] = _filled(a, holes, device, any_device)
    return positional, named


def meta_like(tuple facts, int bits=0):
    """Torch's own meta tensor of which these are the facts: (dtype, size, stride or None, offset, place)."""
    dtype, size, stride, offset = facts[0], facts[1], facts[2], facts[3]
    with no_function():                    # in an estimate, torch.empty makes ours
        if stride is None and not offset:
            made = empty(size, dtype=dtype, device="meta")
        else:
            length = max(extent(size, stride, offset), offset)
            made = as_strided(
                empty(length, dtype=dtype, device="meta"), size, contiguous(size) if stride is None else stride, offset
            )
    return set_bits(made, bits) if bits else made


# ---- floats among arguments ----------------------------------------------------------------------------------------
cdef inline bint _is_held(object a) noexcept:
    """Is it a float, not 0, that any dtype holds?"""
    return type(a) is float and 0 < abs(<double>a) <= HELD_BY_ALL


cdef bint _has_float(object a) except -1:
    if type(a) is tuple or type(a) is list:
        for item in a:
            if _has_float(item):
                return True
        return False
    return _is_held(a)


cdef int _show(object a, list shown, list floats) except -1:
    cdef Handle handle
    if PyObject_TypeCheck(a, tensor_type):
        handle = handle_of(a)
        shown.append(object() if handle is None else (*meta_of(handle), view_bits(handle)))
    elif _is_held(a):
        shown.append((float, <double>a > 0, abs(<double>a) <= 1))
        floats.append(a)
    elif isinstance(a, (tuple, list)):
        shown.append((type(a), len(a)))
        for item in a:
            _show(item, shown, floats)
    else:
        shown.append((type(a), a))         # 1, 1.0 and True are equal
    return 0


def without_floats(tuple args, dict kwargs):
    """(floats among the arguments that any dtype holds, what the arguments are but for their values); two empty lists
    if there are none.

    Of these floats only the sign counts, whether they exceed 1, and which is the greater: kernels ask for no more.
    """
    cdef list shown = [], floats = []
    named = tuple(kwargs.items())
    if _has_float(args) or _has_float(named):
        _show(args, shown, floats)
        _show(named, shown, floats)
    return floats, shown
