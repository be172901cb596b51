"""Call keys: a torch call as bytes - function, argument template with holes for tensors, constants, metadata ids.

Floats of element-wise calls stand beside the key, in the record, where all with something in common (`_beside`) are
alike to kernels that are asked whether they take a call: a factor that changes at each step makes no new key.

One static buffer serves all threads: no Python code runs between building a key and using it, and the GIL is held.
"""
from cpython.dict cimport PyDict_GetItem, PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from .intern cimport OpInfo
from .interpreter cimport MT_SLOT
from .lazy cimport get_tape, handle_beside, is_subtype, type_of
from .structs cimport MAX_INPUTS, NO_PLACE, SLOT_GRAD
from .tape cimport Handle, Tape
from .template cimport (
    FLOATS_AT, TAG_BYTE, TAG_COMPLEX, TAG_DEVICE, TAG_ELLIPSIS, TAG_FALSE, TAG_FLOAT, TAG_INT, TAG_LIST, TAG_NONE,
    TAG_NUMBER, TAG_OBJECT, TAG_STRING, TAG_TENSOR, TAG_TRUE, TAG_TUPLE,
)

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object o, int *overflow) except? -1
    const char *PyUnicode_AsUTF8AndSize(object o, Py_ssize_t *size) except NULL
    PyObject* LONG "(PyObject*)&PyLong_Type"
    PyObject* FLOAT "(PyObject*)&PyFloat_Type"
    PyObject* BOOL "(PyObject*)&PyBool_Type"
    PyObject* TUPLE "(PyObject*)&PyTuple_Type"
    PyObject* LIST "(PyObject*)&PyList_Type"
    PyObject* UNICODE "(PyObject*)&PyUnicode_Type"
    PyObject* COMPLEX "(PyObject*)&PyComplex_Type"
    PyObject *Py_True
    double PyComplex_RealAsDouble(object o)
    double PyComplex_ImagAsDouble(object o)

cdef enum:
    MAX_DEPTH = 6
    MAX_COMPARED = 4           # floats of one call that a kernel may compare with each other

cdef enum FloatsApart:
    NONE_APART = 0
    COMPARED = 1               # a kernel may ask which is the greater
    EACH_FOR_ITSELF = 2        # each goes with another tensor

# Floats up to this one, 0 aside, are alike to a kernel that is asked whether it takes a call: every dtype holds them.
HELD_BY_ALL = 100.0
cdef double held_by_all = HELD_BY_ALL

cdef Tape tape = None
cdef dict place_of_type
cdef object recorded, _kept
cdef PyObject *base_type = NULL
cdef PyObject *fast_type = NULL
cdef PyObject *dataless_type = NULL
cdef Py_ssize_t slot_offset = 0
cdef PyObject *tensor_type = NULL         # torch.Tensor
cdef PyObject *tensor_size_type = NULL
cdef PyObject *dtype_type = NULL
cdef PyObject *device_type = NULL
cdef PyObject *layout_type = NULL
cdef PyObject *memory_format_type = NULL
cdef Key K
K.buf = NULL
K.ins = NULL
K.metas = NULL
K.objs = NULL
K.n = K.cap = K.n_ins = K.cap_ins = 0
K.serial = 0
K.exact = False


cdef Key *current_key() noexcept:
    return &K


def init(base, fast, dataless, Py_ssize_t offset, dict places, records, torch):
    """Hand in the tensor classes, the places of devices by type, that of recorded tensors, and torch's types.

    Called once, after lazy.init().
    """
    global tape, place_of_type, recorded, base_type, fast_type, dataless_type, slot_offset
    global tensor_type, tensor_size_type
    global dtype_type, device_type, layout_type, memory_format_type, _kept
    tape = get_tape()
    place_of_type, recorded = places, records
    _kept = (base, fast, dataless, torch)
    base_type = <PyObject *>base
    fast_type = <PyObject *>fast
    dataless_type = <PyObject *>dataless
    slot_offset = offset
    tensor_type = <PyObject *>torch.Tensor
    tensor_size_type = <PyObject *>torch.Size
    dtype_type = <PyObject *>torch.dtype
    device_type = <PyObject *>torch.device
    layout_type = <PyObject *>torch.layout
    memory_format_type = <PyObject *>torch.memory_format


cdef int room(size_t extra) except -1:
    cdef uint8_t *p
    cdef size_t cap
    if K.n + extra > K.cap:
        cap = (K.n + extra) * 2 + 512
        p = <uint8_t *>realloc(K.buf, cap)
        if not p:
            raise MemoryError()
        K.buf = p
        K.cap = cap
    return 0


cdef inline void _byte(uint8_t b) noexcept:
    K.buf[K.n] = b
    K.n += 1


cdef inline void _raw(const void *p, size_t n) noexcept:
    memcpy(K.buf + K.n, p, n)
    K.n += n


cdef int _add_input(PyObject *t, Handle h) except -1:
    cdef uint32_t meta = h.meta
    cdef void *p
    cdef int device = tape.interner.metas[meta].device
    cdef size_t cap
    if K.n_ins == K.cap_ins:
        cap = K.cap_ins * 2 + 64
        if cap > MAX_INPUTS:
            return FOREIGN                 # tens of thousands of tensors: run it eagerly
        p = realloc(K.ins, cap * sizeof(uint32_t))
        if not p:
            raise MemoryError()
        K.ins = <uint32_t *>p
        p = realloc(K.metas, cap * sizeof(uint32_t))
        if not p:
            raise MemoryError()
        K.metas = <uint32_t *>p
        p = realloc(K.objs, cap * sizeof(PyObject *))
        if not p:
            raise MemoryError()
        K.objs = <PyObject **>p
        K.cap_ins = cap
    K.ins[K.n_ins] = h.slot
    K.metas[K.n_ins] = meta
    K.objs[K.n_ins] = t
    K.n_ins += 1
    if not h.no_grad or tape.slot(tape.slot(h.slot).root).flags & SLOT_GRAD:
        K.uncertain = True
    _byte(TAG_TENSOR)
    _raw(&meta, 4)
    if K.device == NO_PLACE:
        K.device = device
    elif K.device != device:
        return MIXED
    return OK


cpdef bint same_device(device) except -1:
    """Is this torch.device where recorded tensors are: by name, or as ``cpu``, which they are on below Python?

    Runs no Python code: a key is under way.
    """
    cdef object kind = device.type             # by a getter in C
    cdef PyObject *place
    if kind == "cpu":
        return True
    place = PyDict_GetItem(place_of_type, kind)
    return place != NULL and place == <PyObject *>recorded


def set_exact(bint on):
    """Whether each float is part of its call's key from now on."""
    K.exact = on


cdef bint _beside(double d) noexcept:
    """Leave the float out of the key, but for its sign, whether it exceeds 1, and how it compares with those before."""
    cdef uint8_t n = K.buf[FLOATS_AT]
    cdef uint8_t common = (1 if d < 0 else 0) | (2 if -1 <= d <= 1 else 0)
    cdef uint8_t k
    if n == (MAX_COMPARED if K.apart == COMPARED else MAX_FLOATS) or d == 0 or not -held_by_all <= d <= held_by_all:
        return False
    if K.apart == COMPARED:
        for k in range(n):
            common |= (1 if d < K.floats[k] else 2 if d > K.floats[k] else 0) << (2 + 2 * k)
    _byte(TAG_NUMBER)
    _byte(common)
    K.floats[n] = d
    K.buf[FLOATS_AT] = n + 1
    return True


cdef int encode(PyObject *o) except -1:
    """Append one argument to the key. Runs no Python code; returns OK, FOREIGN or MIXED."""
    return _encode(o, 0)


cdef int _encode(PyObject *o, int depth) except -1:
    # `depth`: of the lists and tuples that it is in.
    cdef PyObject *ty = type_of(o)
    cdef int overflow = 0
    cdef int64_t i64
    cdef double d
    cdef uint16_t n
    cdef Py_ssize_t k, size
    cdef const char *s
    cdef int8_t i8
    cdef int status
    cdef PyObject *h
    room(64)
    if ty == fast_type or ty == dataless_type:
        h = MT_SLOT(o, slot_offset)
        if not h:
            return FOREIGN
        return _add_input(o, <Handle>h)
    if ty == LONG:
        i64 = PyLong_AsLongLongAndOverflow(<object>o, &overflow)
        if overflow:
            return FOREIGN
        if -128 <= i64 < 128:
            i8 = <int8_t>i64
            _byte(TAG_BYTE)
            _raw(&i8, 1)
        else:
            _byte(TAG_INT)
            _raw(&i64, 8)
        return OK
    if o == <PyObject *>None:
        _byte(TAG_NONE)
        return OK
    if ty == BOOL:
        _byte(TAG_TRUE if o == Py_True else TAG_FALSE)
        return OK
    if ty == FLOAT:
        d = PyFloat_AS_DOUBLE(<object>o)
        if K.apart and _beside(d):
            return OK
        _byte(TAG_FLOAT)
        _raw(&d, 8)
        return OK
    if ty == TUPLE or ty == tensor_size_type:
        size = PyTuple_GET_SIZE(<object>o)
        if size > 0xFFFF or depth > MAX_DEPTH:
            return FOREIGN
        n = <uint16_t>size
        _byte(TAG_TUPLE)
        _raw(&n, 2)
        for k in range(size):
            status = _encode(<PyObject *>PyTuple_GET_ITEM(<object>o, k), depth + 1)
            if status:
                return status
        return OK
    if ty == LIST:
        size = PyList_GET_SIZE(<object>o)
        if size > 0xFFFF or depth > MAX_DEPTH:
            return FOREIGN
        n = <uint16_t>size
        _byte(TAG_LIST)
        _raw(&n, 2)
        for k in range(size):
            status = _encode(<PyObject *>PyList_GET_ITEM(<object>o, k), depth + 1)
            if status:
                return status
        return OK
    if ty == dtype_type or ty == layout_type or ty == memory_format_type:
        _byte(TAG_OBJECT)
        _raw(&o, sizeof(o))
        return OK
    if ty == device_type:
        # Lazy tensors look like CPU tensors to C++: below Python, "cpu" means "where the tensors are".
        if same_device(<object>o):
            _byte(TAG_DEVICE)
            return OK
        return FOREIGN
    if ty == UNICODE:
        s = PyUnicode_AsUTF8AndSize(<object>o, &size)
        if size > 1024:
            return FOREIGN
        n = <uint16_t>size
        room(size + 8)
        _byte(TAG_STRING)
        _raw(&n, 2)
        _raw(s, size)
        return OK
    if ty == COMPLEX:
        _byte(TAG_COMPLEX)
        d = PyComplex_RealAsDouble(<object>o)
        _raw(&d, 8)
        d = PyComplex_ImagAsDouble(<object>o)
        _raw(&d, 8)
        return OK
    if o == <PyObject *>Ellipsis:
        _byte(TAG_ELLIPSIS)
        return OK
    if base_type and is_subtype(ty, base_type):
        h = handle_beside(o)
        if not h:
            return FOREIGN
        return _add_input(o, <Handle>h)
    return FOREIGN


cdef void start(OpInfo info, uint8_t nargs, uint8_t nkw) noexcept:
    cdef PyObject *p = <PyObject *>info
    K.serial += 1
    K.n = 0
    K.n_ins = 0
    K.uncertain = False
    K.device = NO_PLACE
    if K.exact or info.random:
        K.apart = NONE_APART
    elif info.bumps:
        K.apart = EACH_FOR_ITSELF
    else:
        K.apart = COMPARED if info.pointwise else NONE_APART
    _raw(&p, sizeof(p))
    _byte(nargs)
    _byte(nkw)
    _byte(0)


cdef int encode_call(OpInfo info, tuple args, dict kwargs) except -1:
    cdef Py_ssize_t n = PyTuple_GET_SIZE(args)
    cdef Py_ssize_t nkw = len(kwargs) if kwargs is not None else 0
    cdef Py_ssize_t k, pos = 0
    cdef PyObject *name
    cdef PyObject *value
    cdef int status
    if n > 255 or nkw > 255:
        return FOREIGN
    room(64)
    start(info, <uint8_t>n, <uint8_t>nkw)
    for k in range(n):
        status = encode(<PyObject *>PyTuple_GET_ITEM(args, k))
        if status:
            return status
    if nkw:
        while PyDict_Next(kwargs, &pos, &name, &value):
            name = _interned_name(name)
            room(64)
            _raw(&name, sizeof(name))
            status = encode(value)
            if status:
                return status
    return OK


cdef int encode_vector(OpInfo info, PyObject **given, Py_ssize_t n, PyObject *names) except -1:
    """As encode_call(), of arguments as CPython hands them to a function in C."""
    cdef Py_ssize_t nkw = PyTuple_GET_SIZE(<object>names) if names else 0
    cdef Py_ssize_t k
    cdef PyObject *name
    cdef int status
    if n > 255 or nkw > 255:
        return FOREIGN
    room(64)
    start(info, <uint8_t>n, <uint8_t>nkw)
    for k in range(n + nkw):
        if k >= n:
            name = _interned_name(<PyObject *>PyTuple_GET_ITEM(<object>names, k - n))
            room(64)
            _raw(&name, sizeof(name))
        status = encode(given[k])
        if status:
            return status
    return OK


cdef dict _names = {}


cdef PyObject *_interned_name(PyObject *name) except NULL:
    # Keys hold keyword names by address: one immortal object per name.
    cdef PyObject *known = PyDict_GetItem(_names, <object>name)
    if known:
        return known
    _names[<object>name] = <object>name
    return name


cdef bint is_ours(PyObject *o) noexcept:
    return type_of(o) == fast_type or type_of(o) == dataless_type


cdef inline void _place(PyObject *h) noexcept:
    cdef int device = tape.interner.metas[(<Handle>h).meta].device if h else 0
    if device < 0:
        K.places |= K.first < 0 and K.first != device
        K.first = device


cdef bint foreign(PyObject *o, int depth) except -1:
    """Is the argument, or anything in it, a tensor that is not ours? K.strangers: is anything no tensor, nor plain?"""
    cdef PyObject *ty = type_of(o)
    cdef Py_ssize_t k
    cdef bint found = False
    if ty == fast_type or depth > MAX_DEPTH:
        return False
    if ty == dataless_type:
        _place(MT_SLOT(o, slot_offset))
        return False
    if ty == LONG or ty == FLOAT or ty == BOOL or o == <PyObject *>None:
        return False
    if ty == TUPLE:
        for k in range(PyTuple_GET_SIZE(<object>o)):
            found |= foreign(<PyObject *>PyTuple_GET_ITEM(<object>o, k), depth + 1)
        return found
    if ty == LIST:
        for k in range(PyList_GET_SIZE(<object>o)):
            found |= foreign(<PyObject *>PyList_GET_ITEM(<object>o, k), depth + 1)
        return found
    if is_subtype(ty, tensor_type):
        if not is_subtype(ty, base_type):
            return True
        _place(handle_beside(o))
        return False
    if ty != dtype_type and ty != device_type and ty != UNICODE:
        K.strangers = True
    return False


cdef bint any_foreign(tuple args, dict kwargs) except -1:
    cdef Py_ssize_t pos = 0
    cdef PyObject *name
    cdef PyObject *value
    cdef bint found
    K.strangers = K.places = False
    K.first = 0
    found = foreign(<PyObject *>args, 0)
    if kwargs is not None:
        while PyDict_Next(kwargs, &pos, &name, &value):
            found |= foreign(value, 0)
    return found


# ---- classes of the program that have a say in calls ----------------------------------------------------------------
cdef object NOBODY = object()
cdef bint asking = False              # is there a class of ours whose own __torch_function__ comes first?
cdef object ask_other = None, ask_strangers = None


def set_others(ask, strangers):
    """Let `ask(cls, func, types, args, kwargs)` call the __torch_function__ of a class that is not ours.

    `strangers(func, args, kwargs)`: the same of operands that are no tensors, of which torch has not told.
    """
    global ask_other, ask_strangers
    ask_other, ask_strangers = ask, strangers


cdef object give_way(object func, tuple args, object kwargs):
    """After any_foreign: what strangers make of a call that torch has asked nobody else about; or NotImplemented."""
    return ask_strangers(func, args, {} if kwargs is None else kwargs) if K.strangers else NotImplemented


def class_asks_first():
    """From now on, classes of ours with a true `_routed` are asked before the engine."""
    global asking
    asking = True


cdef bint somebody_asks_first() noexcept:
    return asking


cdef bint asks_first(PyObject *ty) except -1:
    return asking and is_subtype(ty, base_type) and (<object>ty)._routed


cdef object others_first(object func, object types, tuple args, object kwargs):
    """What a class of the program's makes of the call: torch would not ask ours, which it takes for torch's own.

    NOBODY: there is none; NotImplemented: torch is to ask the next.
    """
    cdef object other, out
    if type(types) is tuple and PyTuple_GET_SIZE(types) == 1 and PyTuple_GET_ITEM(types, 0) == fast_type:
        return NOBODY
    for other in types:
        if <PyObject *>other == fast_type or <PyObject *>other == dataless_type or <PyObject *>other == tensor_type:
            continue                           # torch's functions in Python name its own class, too
        if is_subtype(<PyObject *>other, base_type):
            if asking and other._routed:
                return NotImplemented
        else:
            out = ask_other(other, func, types, args, kwargs)
            if out is not NotImplemented:
                return out
    return NOBODY
