"""Interception: from a torch call to a record on the tape.

Both levels end in `_record`: `torch_function` (whole ops, cheapest, used when nothing has to happen between Python and
the kernel) and `torch_dispatch` (everything else; autograd, autocast and C++ callers have done their part by then).

A call is turned into a byte key: function, argument template with holes for tensors, constants, metadata ids of the
tensors. Known key: one hash probe, then append. New key: `infer` (Python, handed in) says what comes out.
No Python code runs between building a key and using it, so one static buffer serves all threads under the GIL.
"""
cimport cython
from cpython.dict cimport PyDict_GetItem, PyDict_Next
from cpython.exc cimport PyErr_Clear
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from .context cimport current_location, current_module, current_phase
from .intern cimport (
    KIND_EAGER, KIND_HANDLER, KIND_PASS, KIND_RECORD, Interner, OpInfo, hash_key, sig_out_meta,
)
from .replay cimport Segment, decode_call, hole_metas, plan_segment
from .structs cimport (
    MAX_HANDLES, REC_GRAD, SIG_RANDOM, SIG_VIEW, SIG_WRITES, SLOT_FAILED, SLOT_PENDING, MetaS, Record, SigS, Slot,
)
from .tape cimport Handle, Tape, new_handle, rec_ins, rec_outs

cdef extern from *:
    """
    #include "structmember.h"
    static Py_ssize_t mt_slot_offset(PyObject *descr) {
        if (!PyObject_TypeCheck(descr, &PyMemberDescr_Type)) return -1;
        return ((PyMemberDescrObject *)descr)->d_member->offset;
    }
    #define MT_SLOT(obj, off) (*(PyObject **)((char *)(obj) + (off)))
    #define MT_SET_SLOT(obj, off, val) (*(PyObject **)((char *)(obj) + (off)) = (val))
    #define MT_TYPE(obj) ((PyObject *)Py_TYPE(obj))
    #define MT_SUBTYPE(a, b) PyType_IsSubtype((PyTypeObject *)(a), (PyTypeObject *)(b))
    """
    PyObject* Py_TYPE_ "MT_TYPE"(PyObject* o) noexcept
    bint PyType_IsSubtype_ "MT_SUBTYPE"(PyObject* a, PyObject* b) noexcept
    void MT_SET_SLOT(PyObject* obj, Py_ssize_t off, PyObject* val) noexcept
    Py_ssize_t mt_slot_offset(PyObject* descr) noexcept
    PyObject* MT_SLOT(PyObject* obj, Py_ssize_t off) noexcept

cdef extern from "Python.h":
    object PyObject_Vectorcall(PyObject* callable, PyObject** args, size_t nargsf, PyObject* kwnames)
    object PyObject_CallNoArgs(object callable)
    int64_t PyLong_AsLongLongAndOverflow(object o, int* overflow) except? -1
    const char* PyUnicode_AsUTF8AndSize(object o, Py_ssize_t* size) except NULL
    PyObject* METHOD_WRAPPER "(PyObject*)&_PyMethodWrapper_Type"
    PyObject* LONG "(PyObject*)&PyLong_Type"
    PyObject* FLOAT "(PyObject*)&PyFloat_Type"
    PyObject* BOOL "(PyObject*)&PyBool_Type"
    PyObject* TUPLE "(PyObject*)&PyTuple_Type"
    PyObject* LIST "(PyObject*)&PyList_Type"
    PyObject* UNICODE "(PyObject*)&PyUnicode_Type"
    PyObject* COMPLEX "(PyObject*)&PyComplex_Type"
    PyObject* Py_True
    double PyComplex_RealAsDouble(object o)
    double PyComplex_ImagAsDouble(object o)

# ---- what the Python side hands in --------------------------------------------------------------------------------
cdef Tape tape = None                 # the process's tape of lazy tensors
cdef PyObject* base_type = NULL       # LazyTensor
cdef PyObject* fast_type = NULL       # its subclass with a slot for the handle: what calls return
cdef Py_ssize_t slot_offset = 0
cdef PyObject* tensor_size_type = NULL
cdef PyObject* dtype_type = NULL
cdef PyObject* device_type = NULL
cdef PyObject* layout_type = NULL
cdef PyObject* memory_format_type = NULL
cdef object make_wrapper, fast_type_obj, same_device
cdef object describe, infer, run_eagerly, lift, mixed_devices, on_record
cdef object grad_enabled, dispatch_stack, function_stack, any_autocast, forward_ad, below, detach
cdef uint64_t n_whole = 0             # calls recorded at the function level
cdef uint64_t n_dispatch = 0          # calls recorded at the dispatch level
cdef bint logging = False


def init(*, Tape main_tape, base, fast, hooks, torch):
    """Hand in the tape, the tensor classes, the callbacks of mindtorch.intercept and the torch module. Called once."""
    global tape, base_type, fast_type, slot_offset, tensor_size_type, dtype_type, device_type, layout_type
    global memory_format_type, make_wrapper, fast_type_obj, same_device, describe, infer, run_eagerly, lift
    global mixed_devices, grad_enabled, dispatch_stack, function_stack, any_autocast, forward_ad, below, detach
    global on_record, same_device_cpu
    tape = main_tape
    _keep.extend([base, fast, hooks, torch])
    base_type = <PyObject*>base
    fast_type = <PyObject*>fast
    fast_type_obj = fast
    slot_offset = mt_slot_offset(<PyObject*>fast.__dict__["_handle"])
    if slot_offset < 0:
        raise TypeError(f"[init] expected a class with a `_handle` slot, got {fast!r}")
    tensor_size_type = <PyObject*>torch.Size
    dtype_type = <PyObject*>torch.dtype
    device_type = <PyObject*>torch.device
    layout_type = <PyObject*>torch.layout
    memory_format_type = <PyObject*>torch.memory_format
    make_wrapper = torch.Tensor._make_wrapper_subclass
    grad_enabled = torch.is_grad_enabled
    dispatch_stack = torch._C._len_torch_dispatch_stack
    function_stack = torch._C._len_torch_function_stack
    any_autocast = torch._C._is_any_autocast_enabled
    below = torch._C._disabled_torch_function_impl
    detach = torch.ops.aten.detach.default
    forward_ad = torch.autograd.forward_ad
    describe = hooks.describe
    infer = hooks.infer
    run_eagerly = hooks.run_eagerly
    lift = hooks.lift
    mixed_devices = hooks.mixed_devices
    same_device = hooks.same_device
    on_record = hooks.on_record


def set_logging(bint on):
    """Call hooks.on_record(name, tensors' handle) for each captured op (GENIE_LOG_INTERCEPTS)."""
    global logging
    logging = on


def counts():
    """(calls recorded whole at the function level, calls recorded at the dispatch level)."""
    return n_whole, n_dispatch


# ---- function -> OpInfo, by identity -------------------------------------------------------------------------------
cdef list _keep = []                  # every key and value below stays alive
cdef PyObject** reg_keys = NULL
cdef PyObject** reg_vals = NULL
cdef size_t reg_mask = 0
cdef size_t reg_n = 0


cdef inline size_t _reg_find(PyObject* func) noexcept:
    cdef size_t i = (<size_t>func >> 4) * <size_t>0x9E3779B97F4A7C15ULL >> 20 & reg_mask
    while reg_keys[i] != NULL and reg_keys[i] != func:
        i = (i + 1) & reg_mask
    return i


cdef PyObject* _key_of(object func) except NULL:
    # Property accessors (`Tensor.data.__set__`) are made anew on each access: go by the descriptor behind them.
    cdef PyObject* o = <PyObject*>func
    if Py_TYPE_(o) == METHOD_WRAPPER:
        o = <PyObject*>func.__self__
        if func.__name__ == "__set__":
            o = <PyObject*>(<char*>o + 1)
    return o


cdef int _reg_add(object func, OpInfo info) except -1:
    global reg_keys, reg_vals, reg_mask, reg_n
    cdef PyObject** old_keys = reg_keys
    cdef PyObject** old_vals = reg_vals
    cdef size_t old = reg_mask + 1 if reg_keys else 0
    cdef size_t i, j
    if (reg_n + 1) * 2 > reg_mask:
        reg_mask = reg_mask * 2 + 1 if reg_keys else 1023
        reg_keys = <PyObject**>calloc(reg_mask + 1, sizeof(PyObject*))
        reg_vals = <PyObject**>calloc(reg_mask + 1, sizeof(PyObject*))
        if not reg_keys or not reg_vals:
            raise MemoryError()
        for i in range(old):
            if old_keys[i]:
                j = _reg_find(old_keys[i])
                reg_keys[j] = old_keys[i]
                reg_vals[j] = old_vals[i]
        free(old_keys)
        free(old_vals)
    cdef PyObject* key = _key_of(func)
    i = _reg_find(key)
    if not reg_keys[i]:
        reg_n += 1
    _keep.append((func, info))
    reg_keys[i] = key
    reg_vals[i] = <PyObject*>info
    return 0


cdef OpInfo _info_of(object func, bint dispatch):
    cdef size_t i
    if reg_keys:
        i = _reg_find(_key_of(func))
        if reg_keys[i]:
            return <OpInfo>reg_vals[i]
    cdef OpInfo info = describe(func, dispatch)
    _reg_add(func, info)
    return info


def register(func, OpInfo info):
    """Set what the engine does when `func` is called on a lazy tensor (replaces an earlier entry)."""
    _reg_add(func, info)


# ---- handles -------------------------------------------------------------------------------------------------------
cdef inline Handle handle_of(object t):
    """The handle of a lazy tensor; None for anything else."""
    cdef PyObject* o = <PyObject*>t
    cdef PyObject* h
    if Py_TYPE_(o) == fast_type:
        h = MT_SLOT(o, slot_offset)
        return <Handle>h if h else None
    if base_type and PyType_IsSubtype_(Py_TYPE_(o), base_type):
        return getattr(t, "_handle", None)
    return None


def get_handle(t):
    """The engine's handle of lazy tensor `t`, or None."""
    return handle_of(t)


cdef object _wrap(uint32_t slot, uint32_t meta, bint no_grad, Record* r):
    """A new LazyTensor for value `slot` with metadata `meta`."""
    cdef MetaS* m = &tape.interner.metas[meta]
    cdef PyObject* argv[7]
    cdef object t, offset = None
    cdef Handle h
    h = new_handle(tape, slot, meta)
    h.no_grad = no_grad
    if r:
        h.sig = r.sig
        h.module = r.module
        h.loc = r.loc
        h.phase = r.phase
    if m.offset:
        offset = m.offset
    argv[0] = NULL
    argv[1] = <PyObject*>fast_type_obj
    argv[2] = m.size
    argv[3] = m.stride if m.stride else <PyObject*>None
    argv[4] = <PyObject*>offset
    argv[5] = <PyObject*>None
    argv[6] = m.dtype
    if m.offset and not m.stride:
        stride = _contiguous_strides(<object>m.size)
        argv[3] = <PyObject*>stride
    t = PyObject_Vectorcall(<PyObject*>make_wrapper, argv + 1, 6, NULL)
    Py_INCREF(h)
    MT_SET_SLOT(<PyObject*>t, slot_offset, <PyObject*>h)
    return t


def canonical(size, tuple stride):
    """None when `stride` is what a new contiguous tensor of this size has, else `stride`."""
    return None if stride == _contiguous_strides(size) else stride


cdef tuple _contiguous_strides(object size):
    cdef list out = [1] * len(size)
    cdef int64_t acc = 1
    cdef Py_ssize_t k = len(size) - 1
    while k >= 0:
        out[k] = acc
        acc *= max(<int64_t>size[k], 1)
        k -= 1
    return tuple(out)


# ---- keys ----------------------------------------------------------------------------------------------------------
cdef enum:
    OK = 0
    FOREIGN = 1            # holds something that is not a constant or a lazy tensor: the slow path decides
    MIXED = 2              # lazy tensors of two device indices
    MAX_DEPTH = 6

cdef uint8_t* buf = NULL
cdef size_t buf_n = 0, buf_cap = 0
cdef uint32_t* ins = NULL
cdef PyObject** in_objs = NULL       # borrowed: the tensors behind `ins`
cdef size_t ins_n = 0, ins_cap = 0
cdef bint uncertain = False          # some tensor may require grad
cdef int in_device = -1


cdef inline int _room(size_t extra) except -1:
    global buf, buf_cap
    cdef uint8_t* p
    if buf_n + extra > buf_cap:
        buf_cap = (buf_n + extra) * 2 + 512
        p = <uint8_t*>realloc(buf, buf_cap)
        if not p:
            raise MemoryError()
        buf = p
    return 0


cdef inline void _byte(uint8_t b) noexcept:
    global buf_n
    buf[buf_n] = b
    buf_n += 1


cdef inline void _raw(const void* p, size_t n) noexcept:
    global buf_n
    memcpy(buf + buf_n, p, n)
    buf_n += n


cdef int _add_input(PyObject* t, Handle h) except -1:
    global ins, in_objs, ins_cap, ins_n, uncertain, in_device
    cdef uint32_t meta = h.meta
    cdef void* p
    cdef int device = tape.interner.metas[meta].device
    if ins_n == ins_cap:
        ins_cap = ins_cap * 2 + 64
        p = realloc(ins, ins_cap * sizeof(uint32_t))
        if not p:
            raise MemoryError()
        ins = <uint32_t*>p
        p = realloc(in_objs, ins_cap * sizeof(PyObject*))
        if not p:
            raise MemoryError()
        in_objs = <PyObject**>p
    ins[ins_n] = h.slot
    in_objs[ins_n] = t
    ins_n += 1
    if not h.no_grad:
        uncertain = True
    _byte(c'T')
    _raw(&meta, 4)
    if in_device < 0:
        in_device = device
    elif in_device != device:
        return MIXED
    return OK


cdef int _encode(PyObject* o, int depth) except -1:
    """Append one argument to the key. Runs no Python code; returns OK, FOREIGN or MIXED."""
    cdef PyObject* ty = Py_TYPE_(o)
    cdef int overflow = 0
    cdef int64_t i64
    cdef double d
    cdef uint16_t n
    cdef Py_ssize_t k, size
    cdef const char* s
    cdef int8_t i8
    cdef int status
    cdef PyObject* h
    _room(64)
    if ty == fast_type:
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
            _byte(c'i')
            _raw(&i8, 1)
        else:
            _byte(c'I')
            _raw(&i64, 8)
        return OK
    if o == <PyObject*>None:
        _byte(c'N')
        return OK
    if ty == BOOL:
        _byte(c't' if o == Py_True else c'f')
        return OK
    if ty == FLOAT:
        d = PyFloat_AS_DOUBLE(<object>o)
        _byte(c'F')
        _raw(&d, 8)
        return OK
    if ty == TUPLE or ty == tensor_size_type:
        size = PyTuple_GET_SIZE(<object>o)
        if size > 0xFFFF or depth > MAX_DEPTH:
            return FOREIGN
        n = <uint16_t>size
        _byte(c'(')
        _raw(&n, 2)
        for k in range(size):
            status = _encode(<PyObject*>PyTuple_GET_ITEM(<object>o, k), depth + 1)
            if status:
                return status
        return OK
    if ty == LIST:
        size = PyList_GET_SIZE(<object>o)
        if size > 0xFFFF or depth > MAX_DEPTH:
            return FOREIGN
        n = <uint16_t>size
        _byte(c'[')
        _raw(&n, 2)
        for k in range(size):
            status = _encode(<PyObject*>PyList_GET_ITEM(<object>o, k), depth + 1)
            if status:
                return status
        return OK
    if ty == dtype_type or ty == layout_type or ty == memory_format_type:
        _byte(c'O')
        _raw(&o, sizeof(o))
        return OK
    if ty == device_type:
        # Lazy tensors look like CPU tensors to C++: below Python, "cpu" means "where the tensors are".
        if same_device(<object>o):
            _byte(c'D')
            return OK
        return FOREIGN
    if ty == UNICODE:
        s = PyUnicode_AsUTF8AndSize(<object>o, &size)
        if size > 1024:
            return FOREIGN
        n = <uint16_t>size
        _room(size + 8)
        _byte(c'S')
        _raw(&n, 2)
        _raw(s, size)
        return OK
    if ty == COMPLEX:
        _byte(c'C')
        d = PyComplex_RealAsDouble(<object>o)
        _raw(&d, 8)
        d = PyComplex_ImagAsDouble(<object>o)
        _raw(&d, 8)
        return OK
    if o == <PyObject*>Ellipsis:
        _byte(c'.')
        return OK
    if base_type and PyType_IsSubtype_(ty, base_type):
        handle = getattr(<object>o, "_handle", None)
        if handle is None:
            return FOREIGN
        return _add_input(o, <Handle>handle)
    return FOREIGN


cdef inline void _start(OpInfo info, uint8_t nargs, uint8_t nkw) noexcept:
    global buf_n, ins_n, uncertain, in_device
    cdef PyObject* p = <PyObject*>info
    buf_n = 0
    ins_n = 0
    uncertain = False
    in_device = -1
    _raw(&p, sizeof(p))
    _byte(nargs)
    _byte(nkw)


cdef int _encode_call(OpInfo info, tuple args, dict kwargs) except -1:
    cdef Py_ssize_t n = PyTuple_GET_SIZE(args)
    cdef Py_ssize_t nkw = len(kwargs) if kwargs is not None else 0
    cdef Py_ssize_t k, pos = 0
    cdef PyObject* name
    cdef PyObject* value
    cdef int status
    if n > 255 or nkw > 255:
        return FOREIGN
    _room(64)
    _start(info, <uint8_t>n, <uint8_t>nkw)
    for k in range(n):
        status = _encode(<PyObject*>PyTuple_GET_ITEM(args, k), 0)
        if status:
            return status
    if nkw:
        while PyDict_Next(kwargs, &pos, &name, &value):
            name = _interned_name(name)
            _room(64)
            _raw(&name, sizeof(name))
            status = _encode(value, 0)
            if status:
                return status
    return OK


cdef dict _names = {}


cdef PyObject* _interned_name(PyObject* name) except NULL:
    # Keys hold keyword names by address: one immortal object per name.
    cdef PyObject* known = PyDict_GetItem(_names, <object>name)
    if known:
        return known
    _names[<object>name] = <object>name
    return name


# ---- recording -----------------------------------------------------------------------------------------------------
cdef object NOT_RECORDED = object()


cdef uint32_t _new_sig(OpInfo info, tuple args, dict kwargs, bint dispatch) except? 0:
    """Infer what the call gives and intern it; 0 when it cannot be recorded. The key is rebuilt afterwards."""
    spec = infer(info, args, kwargs if kwargs is not None else {}, dispatch)
    if spec is None:
        return 0
    outs, alias, ret, written, flags = spec
    if _encode_call(info, args, kwargs):
        return 0
    out_metas = [tape.interner.meta_id(o[0], o[1], o[2], o[3], o[4]) for o in outs]
    return tape.interner.add_sig(buf, <uint32_t>buf_n, hash_key(buf, <uint32_t>buf_n), info, ret, out_metas, alias,
                                 written, flags)


cdef object _finish(uint32_t sid, bint no_grad):
    """Append the call whose key and inputs are in the static buffers, and wrap its outputs.

    `grad_on` must hold torch's grad mode: some kernels (oneDNN's LSTM) compute differently with it.
    """
    cdef SigS* s = tape.interner.sigs[sid]
    cdef PyObject* small[8]
    cdef uint32_t i
    cdef Record* r
    cdef object single, result
    cdef list fresh
    cdef tuple template
    cdef list inputs = None
    cdef Handle h
    cdef int code
    if s.ret:
        # The return value names inputs: keep them, since wrapping runs torch code and may reuse the buffers.
        inputs = [<object>in_objs[i] for i in range(ins_n)]
    r = tape.append(sid, ins, current_module(), current_location(), current_phase())
    if grad_on:
        r.flags |= REC_GRAD
    if not s.ret:
        single = _wrap(rec_outs(r, s)[0], sig_out_meta(s)[0], no_grad, r)
        if tape.n_pending >= tape.sweep_at:
            tape.sweep()
            _limit()
        return single
    template = <tuple>s.ret
    fresh = [_wrap(rec_outs(r, s)[i], sig_out_meta(s)[i], no_grad, r) for i in range(s.n_out)]
    if not no_grad and s.flags & SIG_WRITES:
        for single in inputs:
            h = handle_of(single)
            if h is not None:
                h.no_grad = False
    if tape.n_pending >= tape.sweep_at:
        tape.sweep()
        _limit()
    result = []
    for i in range(1, <uint32_t>len(template)):
        if template[i] is None:
            result.append(None)
            continue
        code = template[i]
        result.append(fresh[code] if code >= 0 else inputs[-1 - code])
    code = template[0]
    if code == 0:
        return result[0]
    if code == 3:
        return None
    return tuple(result) if code == 1 else result


cdef int _limit() except -1:
    if tape.n_pending >= tape.max_pending and tape.on_limit is not None:
        tape.on_limit()
    return 0


cdef object _record(OpInfo info, tuple args, dict kwargs, bint dispatch):
    """Record the call if its arguments are constants and lazy tensors and its result can be inferred."""
    cdef uint32_t sid
    cdef int status = _encode_call(info, args, kwargs)
    if status:
        if status == MIXED or not dispatch:
            mixed_devices(info, args, kwargs)
        return NOT_RECORDED
    sid = tape.interner.find_sig(buf, <uint32_t>buf_n, hash_key(buf, <uint32_t>buf_n))
    cdef bint no_grad = _grad_is_off() or not uncertain
    if not dispatch and not no_grad:
        return NOT_RECORDED
    if sid == 0:
        sid = _new_sig(info, args, kwargs, dispatch)
        if sid == 0:
            return NOT_RECORDED
    if logging:
        on_record(info.name, args)
        if _encode_call(info, args, kwargs):
            return NOT_RECORDED
    return _finish(sid, no_grad)


cdef bint grad_on = False


cdef bint _grad_is_off() except -1:
    """Read torch's grad mode; True when no result can require grad or carry a tangent."""
    # Builtins that run no Python code: the static buffers survive the calls.
    global grad_on
    grad_on = PyObject_CallNoArgs(grad_enabled)
    return not grad_on and (not uncertain or <object>forward_ad._current_level < 0)


cdef inline bint _plain_call() except -1:
    """Nothing stands between Python and the kernel: no dispatch mode, no autocast."""
    return not PyObject_CallNoArgs(dispatch_stack) and not PyObject_CallNoArgs(any_autocast)


def torch_function(cls, func, types, tuple args=(), kwargs=None):
    """`__torch_function__` of LazyTensor."""
    global n_whole
    cdef OpInfo info = _info_of(func, False)
    cdef object out
    if info.kind == KIND_RECORD:
        if _plain_call() and (info.handler is None or info.handler()):
            out = _record(info, args, <dict>kwargs, False)
            if out is not NOT_RECORDED:
                n_whole += 1
                return out
    elif info.kind == KIND_HANDLER:
        out = info.handler(args, {} if kwargs is None else kwargs)
        if out is not NotImplemented:
            return out
    # torch's own "do as if the class had no __torch_function__"; an empty dict would not do for property getters.
    return below(func, types, args, kwargs) if kwargs else below(func, types, args)


def torch_dispatch(cls, func, types, tuple args=(), kwargs=None):
    """`__torch_dispatch__` of LazyTensor."""
    global n_dispatch
    cdef OpInfo info
    cdef object out
    cdef Handle h
    if func is detach and PyTuple_GET_SIZE(args) == 1:
        # Autograd detaches every output it saves. The same value under another name: no record.
        h = handle_of(<object>PyTuple_GET_ITEM(args, 0))
        if h is not None:
            out = _rename(h)
            if out is not None:
                return out
    info = _info_of(func, True)
    if info.kind == KIND_RECORD:
        if kwargs is not None and not kwargs:
            kwargs = None
        out = _record(info, args, <dict>kwargs, True)
        if out is NOT_RECORDED:
            lifted = lift(info, args, kwargs)
            if lifted is not None:
                args, kwargs = lifted
                out = _record(info, args, <dict>kwargs, True)
        if out is not NOT_RECORDED:
            n_dispatch += 1
            return out
    elif info.kind == KIND_HANDLER:
        out = info.handler(args, {} if kwargs is None else kwargs)
        if out is not NotImplemented:
            return out
    return run_eagerly(info, args, {} if kwargs is None else kwargs)


def make_operator(func, fallback):
    """A method for LazyTensor that records `func` without the detour over `__torch_function__`.

    `fallback` (torch's own method) is called when the call cannot be recorded whole or a torch function mode is on.
    """
    cdef OpInfo info = _info_of(func, False)

    def operator(self, *args):
        global n_whole
        cdef object out
        if not PyObject_CallNoArgs(function_stack) and _plain_call():
            out = _record(info, (self,) + args, None, False)
            if out is not NOT_RECORDED:
                n_whole += 1
                return out
        return fallback(self, *args)

    return operator


def make_binary(func, fallback, bint reflected=False):
    """As make_operator, for an operator of two operands; `reflected`: the tensor is the right one."""
    cdef OpInfo info = _info_of(func, False)

    def operator(self, other):
        global n_whole
        cdef object out
        cdef uint32_t sid
        cdef int status
        if not PyObject_CallNoArgs(function_stack) and _plain_call():
            _room(128)
            _start(info, 2, 0)
            status = _encode(<PyObject*>other if reflected else <PyObject*>self, 0)
            if not status:
                status = _encode(<PyObject*>self if reflected else <PyObject*>other, 0)
            if not status and (_grad_is_off() or not uncertain) and not logging:
                sid = tape.interner.find_sig(buf, <uint32_t>buf_n, hash_key(buf, <uint32_t>buf_n))
                if sid:
                    n_whole += 1
                    return _finish(sid, True)
            out = _record(info, (other, self) if reflected else (self, other), None, False)
            if out is not NOT_RECORDED:
                n_whole += 1
                return out
        return fallback(self, other)

    return operator


def record_creation(OpInfo info, tuple args, dict kwargs, int device):
    """Record a creation call (no tensor inputs decide the device); None if it cannot be recorded."""
    global in_device, n_whole
    cdef int status = _encode_call(info, args, kwargs)
    cdef uint32_t sid
    if status:
        return None
    _raw(&device, sizeof(device))      # the device index is part of the call's identity, not of its template
    sid = tape.interner.find_sig(buf, <uint32_t>buf_n, hash_key(buf, <uint32_t>buf_n))
    if sid == 0:
        spec = infer(info, args, kwargs, False, device)
        if spec is None:
            return None
        outs, alias, ret, written, flags = spec
        if _encode_call(info, args, kwargs):
            return None
        _room(8)
        _raw(&device, sizeof(device))
        out_metas = [tape.interner.meta_id(o[0], o[1], o[2], o[3], o[4]) for o in outs]
        sid = tape.interner.add_sig(buf, <uint32_t>buf_n, hash_key(buf, <uint32_t>buf_n), info, ret, out_metas,
                                    alias, written, flags)
    n_whole += 1
    if logging:
        on_record(info.name, args)
        if _encode_call(info, args, kwargs):
            return None
    _grad_is_off()
    return _finish(sid, True)


# ---- values --------------------------------------------------------------------------------------------------------
def hold(tensor, int device, root=None, bint no_grad=False):
    """A LazyTensor for an already computed torch tensor; `root` = lazy tensor whose storage it shares."""
    cdef Handle h = handle_of(root) if root is not None else None
    cdef uint32_t meta = tape.interner.meta_id(
        tensor.dtype, tensor.shape, canonical(tensor.shape, tensor.stride()), tensor.storage_offset(), device)
    cdef uint32_t slot = tape.hold(tensor, tape.slot(h.slot).root if h is not None else 0)
    return _wrap(slot, meta, no_grad, NULL)


def meta_of(Handle h):
    """(dtype, size, stride or None when contiguous, storage offset, device index) of a lazy tensor."""
    return tape.interner.meta(h.meta)


def device_index(t):
    """The remote_accelerator index of lazy tensor `t`."""
    cdef Handle h = handle_of(t)
    return tape.interner.metas[h.meta].device if h is not None else 0


cdef object _rename(Handle h):
    """A new LazyTensor naming the same value as handle `h`; it does not require grad."""
    if tape.slot(h.slot).handles >= MAX_HANDLES:
        return None
    cdef object t = _wrap(h.slot, h.meta, True, NULL)
    cdef Handle n = <Handle>MT_SLOT(<PyObject*>t, slot_offset)
    n.sig, n.module, n.loc, n.phase = h.sig, h.module, h.loc, h.phase
    return t


def rebind(Handle h, Handle to):
    """Make `h` name the value of `to` from now on (assignment to `.data`)."""
    cdef uint32_t old = h.slot
    if tape.slot(to.slot).handles >= MAX_HANDLES:
        raise RuntimeError(f"more than {MAX_HANDLES} tensors would name one value")
    if old == to.slot:
        return
    tape.slot(to.slot).handles += 1
    h.slot, h.meta, h.sig, h.module, h.loc, h.phase = to.slot, to.meta, to.sig, to.module, to.loc, to.phase
    tape.handle_died(old)


def unshare(Handle h):
    """Give `h` a value of its own, sharing storage, if other tensors name the same one; it must be computed."""
    cdef Slot* s = tape.slot(h.slot)
    cdef uint32_t old = h.slot
    if s.handles <= 1 and not s.users:
        return
    h.slot = tape.hold((<object>s.concrete).detach(), s.root)
    tape.slot(h.slot).handles = 1
    tape.handle_died(old)


def wrap_slot(int slot, int meta):
    """A LazyTensor for a value known by its slot (inputs of a pending record)."""
    return _wrap(slot, meta, True, NULL)


def adopt(param, Handle h):
    """Give a tensor without the handle slot (LazyParameter) its own handle on the value of `h`."""
    cdef Handle n = new_handle(tape, h.slot, h.meta)
    n.sig, n.module, n.loc, n.phase = h.sig, h.module, h.loc, h.phase
    n.no_grad = False
    param._handle = n


def value(Handle h):
    """The computed torch tensor behind `h`, None while it is pending. Raises the stored error if its op failed."""
    cdef Slot* s = tape.slot(h.slot)
    if s.flags & SLOT_FAILED:
        raise <object>s.concrete
    if s.flags & SLOT_PENDING:
        return None
    return <object>s.concrete


def segment(list handles, list written):
    """The Segment of pending records that the values need; `written` = values about to be written off the tape."""
    cdef Py_ssize_t n = len(handles), m = len(written), k
    cdef uint32_t* ids = <uint32_t*>calloc(n + m + 1, sizeof(uint32_t))
    if not ids:
        raise MemoryError()
    try:
        for k in range(n):
            ids[k] = (<Handle>handles[k]).slot
        for k in range(m):
            ids[n + k] = (<Handle>written[k]).slot
        return plan_segment(tape, ids, n, ids + n, m)
    finally:
        free(ids)


def segment_all():
    """The Segment of everything that a live handle can see."""
    return plan_segment(tape, NULL, 0, NULL, 0)


def rng_segment():
    """The Segment of all pending random draws (before a draw or a seed that happens off the tape)."""
    cdef uint32_t rng = tape.rng
    return plan_segment(tape, &rng, 1, NULL, 0)


def set_meta(Handle h, tensor):
    """The value's metadata changed (resize_, set_): remember the new one."""
    cdef int device = tape.interner.metas[h.meta].device
    h.meta = tape.interner.meta_id(tensor.dtype, tensor.shape, canonical(tensor.shape, tensor.stride()),
                                   tensor.storage_offset(), device)


def replace_value(Handle h, tensor):
    """Make `tensor` the computed value behind `h` (the value must not be pending)."""
    cdef Slot* s = tape.slot(h.slot)
    if s.flags & SLOT_PENDING:
        raise RuntimeError("replace_value expects a computed value, got a pending one")
    cdef PyObject* old = s.concrete
    Py_INCREF(tensor)
    s.concrete = <PyObject*>tensor
    if old:
        Py_DECREF(<object>old)


def correct_output(uint32_t sig, uint32_t out, tensor):
    """The first run disagreed with the prediction: later recordings of this call predict what came."""
    cdef SigS* s = tape.interner.sigs[sig]
    cdef int device = tape.interner.metas[sig_out_meta(s)[out]].device
    sig_out_meta(s)[out] = tape.interner.meta_id(
        tensor.dtype, tensor.shape, canonical(tensor.shape, tensor.stride()), tensor.storage_offset(), device)


def sig_output_meta(uint32_t sig, uint32_t out):
    """(dtype, size, stride or None, offset, device index) predicted for output `out` of call `sig`."""
    return tape.interner.meta(sig_out_meta(tape.interner.sigs[sig])[out])


def sig_is_view(uint32_t sig):
    """True when the call's outputs alias its inputs."""
    return bool(tape.interner.sigs[sig].flags & SIG_VIEW)


def sig_info(uint32_t sig):
    """The OpInfo of call `sig`."""
    return <OpInfo>tape.interner.sigs[sig].info


def call_template(uint32_t sig, tuple inputs, device=None):
    """(args, kwargs) of call `sig` with `inputs` in its holes."""
    cdef SigS* s = tape.interner.sigs[sig]
    cdef PyObject* ptrs[256]
    cdef Py_ssize_t k
    if len(inputs) != s.n_in or s.n_in > 256:
        raise ValueError(f"[{(<OpInfo>s.info).name}] expected {s.n_in} inputs (at most 256), got {len(inputs)}")
    for k in range(<Py_ssize_t>s.n_in):
        ptrs[k] = <PyObject*>PyTuple_GET_ITEM(inputs, k)
    return decode_call(s, ptrs, device)


def producer(Handle h):
    """describe() of the pending record that makes the value, or None once it has run."""
    cdef Slot* s = tape.slot(h.slot)
    if not s.flags & SLOT_PENDING:
        return None
    return tape.describe(s.producer)


# ---- hooks on torch's own functions --------------------------------------------------------------------------------
cdef extern from *:
    """
    #define MT_SET_CALL(type, f) (((PyTypeObject *)(type))->tp_call = (ternaryfunc)(f))
    """
    void MT_SET_CALL(object type, void* f) noexcept
    PyObject* PyObject_Call_ "PyObject_Call"(PyObject* func, PyObject* args, PyObject* kwargs) noexcept
    PyObject* PyDict_GetItem_ "PyDict_GetItem"(PyObject* d, PyObject* key) noexcept

cdef object _device_key = "device"
cdef str _device_type = "remote_accelerator"


cdef bint _names_us(object device) except -1:
    if type(device) is str:
        return (<str>device).startswith(_device_type)
    return getattr(device, "type", None) == _device_type


cdef class CreationHook:
    """Stand-in for a torch creation function: calls create(func, args, kwargs) when `device=` is one of ours.

    Its tp_call is the C function below: a plain call costs one more C call and one dictionary probe (SPEC S4).
    """
    cdef object func, create
    cdef dict __dict__

    def __init__(self, func, create):
        self.func = func
        self.create = create

    def __call__(self, *args, **kwargs):
        return self.func(*args, **kwargs)      # replaced by _hook_call below

    def __get__(self, instance, owner):
        return self                            # a builtin does not bind either

    def __repr__(self):
        return repr(self.func)

    def __reduce__(self):
        return self.__name__                   # pickled by name, like the function it stands for


cdef PyObject* _hook_call(PyObject* self, PyObject* args, PyObject* kwargs) noexcept:
    cdef PyObject* device
    if kwargs:
        device = PyDict_GetItem_(kwargs, <PyObject*>_device_key)
        if device != NULL and device != <PyObject*>None and device != <PyObject*>_last_foreign:
            return _hook_device(self, args, kwargs, device)
    return PyObject_Call_(<PyObject*>(<CreationHook>self).func, args, kwargs)


cdef object _last_foreign = None      # a device seen not to be ours: programs pass the same object again and again


cdef PyObject* _hook_device(PyObject* self, PyObject* args, PyObject* kwargs, PyObject* device) except? NULL:
    global _last_foreign
    cdef CreationHook hook = <CreationHook>self
    cdef object out
    if not _names_us(<object>device):
        _last_foreign = <object>device
        return PyObject_Call_(<PyObject*>hook.func, args, kwargs)
    out = hook.create(hook.func, <object>args, <object>kwargs)
    Py_INCREF(out)
    return <PyObject*>out


MT_SET_CALL(CreationHook, <void*>_hook_call)


def make_to_hook(original, slow):
    """Stand-in for Tensor.to: `slow` decides when a lazy tensor or a device by name is involved."""

    def to(self, *args, **kwargs):
        cdef PyObject* first
        if not kwargs and PyTuple_GET_SIZE(args) > 0 and handle_of(self) is None:
            first = <PyObject*>PyTuple_GET_ITEM(args, 0)
            if Py_TYPE_(first) == dtype_type or (Py_TYPE_(first) == device_type and not _names_us(<object>first)):
                return original(self, *args)
        return slow(self, *args, **kwargs)

    return to


def forget_calls():
    """Infer every call afresh from now on (something that results depend on has changed)."""
    tape.interner.forget_calls()


def input_metas(uint32_t sig):
    """Metadata ids of the inputs of call `sig`, in the order of its holes."""
    cdef SigS* s = tape.interner.sigs[sig]
    return hole_metas(s)


def constants(uint32_t sig):
    """(args, kwargs) of call `sig` with None in place of tensors."""
    cdef SigS* s = tape.interner.sigs[sig]
    return call_template(sig, (None,) * s.n_in)
