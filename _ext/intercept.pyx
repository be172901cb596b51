"""Interception: from a torch call to a record on the tape.

Both levels end in `_record`: `torch_function` (whole ops, cheapest, used when nothing has to happen between Python and
the kernel) and `torch_dispatch` (everything else; autograd, autocast and C++ callers have done their part by then).

A call is turned into a key (keys.pyx). Known key: one hash probe, then append. New key: `infer` (Python, handed in)
says what comes out.
"""
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from .context cimport current_location, current_module, current_phase
from .intern cimport KIND_HANDLER, KIND_RECORD, OpInfo, hash_key, sig_out_meta, sig_written
from .keys cimport MIXED, Key, current_key, encode, encode_call, room, start
from .lazy cimport get_tape, handle_of, rename, type_of, wrap
from .structs cimport REC_GRAD, SIG_WRITES, SLOT_GRAD, SLOT_OVERWRITTEN, MetaS, Record, SigS, Slot
from .tape cimport Handle, Tape, rec_outs

cdef extern from "Python.h":
    object PyObject_CallNoArgs(object callable)
    PyObject* METHOD_WRAPPER "(PyObject*)&_PyMethodWrapper_Type"

cdef enum:
    MAX_DRAWS = 2048

cdef Tape tape = None
cdef Key* K = current_key()
# What the Python side hands in: callbacks of mindtorch.intercept, and torch's state queries.
cdef object describe, infer, run_eagerly, lift, mixed_devices, on_record
cdef object inference_enabled, inference_mode, grad_enabled, dispatch_stack, function_stack, any_autocast, forward_ad
cdef object below, detach, increment_version
cdef uint64_t n_whole = 0             # calls recorded at the function level
cdef uint64_t n_dispatch = 0          # calls recorded at the dispatch level
cdef bint logging = False


def init(hooks, torch):
    """Hand in the callbacks of mindtorch.intercept and the torch module. Called once, after lazy.init()."""
    global tape, describe, infer, run_eagerly, lift, mixed_devices, on_record
    global grad_enabled, dispatch_stack, function_stack, any_autocast, forward_ad, below, detach
    global inference_enabled, inference_mode, increment_version
    tape = get_tape()
    inference_enabled = torch.is_inference_mode_enabled
    inference_mode = torch.inference_mode
    grad_enabled = torch.is_grad_enabled
    dispatch_stack = torch._C._len_torch_dispatch_stack
    function_stack = torch._C._len_torch_function_stack
    any_autocast = torch._C._is_any_autocast_enabled
    below = torch._C._disabled_torch_function_impl
    detach = torch.ops.aten.detach.default
    forward_ad = torch.autograd.forward_ad
    increment_version = torch.autograd.graph.increment_version
    describe = hooks.describe
    infer = hooks.infer
    run_eagerly = hooks.run_eagerly
    lift = hooks.lift
    mixed_devices = hooks.mixed_devices
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
    if type_of(o) == METHOD_WRAPPER:
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


# ---- recording -----------------------------------------------------------------------------------------------------
cdef object NOT_RECORDED = object()


cdef uint32_t _out_meta(tuple o) except 0:
    return tape.interner.meta_id(o[0], o[1], o[2], o[3], o[4], o[5] if len(o) > 5 else 0)


cdef uint32_t _new_sig(OpInfo info, tuple args, dict kwargs, bint dispatch) except? 0:
    """Infer what the call gives and intern it; 0 when it cannot be recorded. The key is rebuilt afterwards."""
    spec = infer(info, args, kwargs if kwargs is not None else {}, dispatch)
    if spec is None:
        return 0
    outs, alias, ret, written, flags = spec
    # Before the key: allocating may collect garbage, whose finalizers may record and overwrite the key.
    out_metas = [_out_meta(o) for o in outs]
    if encode_call(info, args, kwargs):
        return 0
    return tape.interner.add_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n), info, ret, out_metas, alias,
                                 written, flags)


cdef object _finish(uint32_t sid):
    """Append the call whose key and inputs are in the static buffers, and wrap its outputs.

    `grad_on` must hold torch's grad mode: some kernels (oneDNN's LSTM) compute differently with it. Results are
    certain not to require grad only if it is on: what custom Functions return is computed with it off, and gets its
    grad_fn afterwards.
    """
    cdef bint no_grad = grad_on and not K.uncertain
    cdef SigS* s = tape.interner.sigs[sid]
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
        inputs = [<object>K.objs[i] for i in range(K.n_ins)]
    r = tape.append(sid, K.ins, current_module(), current_location(), current_phase())
    if grad_on:
        r.flags |= REC_GRAD
    if not s.ret:
        single = wrap(rec_outs(r, s)[0], sig_out_meta(s)[0], no_grad, r)
        if tape.n_pending >= tape.sweep_at:
            tape.sweep()
            _limit()
        return single
    template = <tuple>s.ret
    fresh = [wrap(rec_outs(r, s)[i], sig_out_meta(s)[i], no_grad, r) for i in range(s.n_out)]
    if not no_grad and s.flags & SIG_WRITES:
        for i in range(s.n_in):
            if sig_written(s)[i]:
                # What is written gets the history of what is written into it, and so does whatever shares its storage.
                h = handle_of(inputs[i])
                tape.slot(tape.slot(h.slot).root).flags |= SLOT_GRAD
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
    if type(template[0]) is type:
        return template[0](result)             # torch.return_types.max and its like
    code = template[0]
    if code == 0:
        return result[0]
    if code == 3:
        return None
    return tuple(result) if code == 1 else result


cdef int _limit() except -1:
    if tape.waiting_draws > MAX_DRAWS and tape.on_draws is not None:
        # The generator must advance even if nobody reads the numbers: draw them now, so that they don't pile up.
        tape.waiting_draws = 0
        tape.on_draws()
    if tape.n_pending >= tape.max_pending and tape.on_limit is not None:
        tape.on_limit()
        tape.rearm()
    return 0


cdef object _record(OpInfo info, tuple args, dict kwargs, bint dispatch):
    """Record the call if its arguments are constants and lazy tensors and its result can be inferred."""
    cdef uint32_t sid
    cdef int status = encode_call(info, args, kwargs)
    if status:
        if status == MIXED or not dispatch:
            mixed_devices(info, args, kwargs)
        return NOT_RECORDED
    sid = tape.interner.find_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n))
    cdef bint no_graph = _grad_is_off() or not K.uncertain
    if not dispatch and not no_graph:
        return NOT_RECORDED
    if sid == 0:
        sid = _new_sig(info, args, kwargs, dispatch)
        if sid == 0:
            return NOT_RECORDED
    if tape.interner.sigs[sid].flags & SIG_WRITES and _refused_overlap(info, tape.interner.sigs[sid]):
        return NOT_RECORDED                    # torch's kernel has the say, now
    if logging:
        on_record(info.name, args)
        if encode_call(info, args, kwargs):
            return NOT_RECORDED
    return _finish(sid)


cdef bint _refused_overlap(OpInfo info, SigS* s) noexcept:
    """May the kernel refuse the call in the static buffers, because it writes memory that it also reads?

    Torch compares addresses there; prediction, on storages of its own, cannot.
    """
    cdef uint8_t* written = sig_written(s)
    cdef uint32_t i, j
    cdef Slot* root
    cdef bint shared = False
    for i in range(s.n_in):
        if written[i]:
            root = tape.slot(tape.slot(K.ins[i]).root)
            if root.flags & SLOT_OVERWRITTEN:  # the planner's mark, borrowed
                shared = True
            root.flags |= SLOT_OVERWRITTEN
    for i in range(s.n_in):
        if not written[i] and tape.slot(tape.slot(K.ins[i]).root).flags & SLOT_OVERWRITTEN:
            shared = True
            break
    for i in range(s.n_in):
        if written[i]:
            tape.slot(tape.slot(K.ins[i]).root).flags &= ~SLOT_OVERWRITTEN
    if not shared:
        return False
    for i in range(s.n_in):
        if written[i]:
            for j in range(s.n_in):
                if j != i and tape.slot(K.ins[i]).root == tape.slot(K.ins[j]).root and _overlap(info, i, j):
                    return True
    return False


cdef bint _overlap(OpInfo info, uint32_t i, uint32_t j) noexcept:
    # As at::get_overlap_status: only dense tensors are judged, by the range of memory that they take.
    cdef MetaS* a = &tape.interner.metas[K.metas[i]]
    cdef MetaS* b = &tape.interner.metas[K.metas[j]]
    cdef int64_t end_a, end_b
    if K.ins[i] == K.ins[j] or K.metas[i] == K.metas[j]:
        return not info.pointwise
    if a.dtype != b.dtype:
        return True
    end_a = a.offset + _dense_length(a)
    end_b = b.offset + _dense_length(b)
    if end_a == a.offset or end_b == b.offset:
        return False
    return a.offset < end_b and b.offset < end_a


cdef int64_t _dense_length(MetaS* m) noexcept:
    """Number of elements if the tensor fills the range of memory from its first to its last one, else 0."""
    cdef int64_t count = 1, last = 0, n
    cdef Py_ssize_t k
    for k in range(PyTuple_GET_SIZE(<object>m.size)):
        n = <int64_t><object>PyTuple_GET_ITEM(<object>m.size, k)
        count *= n
        if m.stride and n:
            last += (n - 1) * <int64_t><object>PyTuple_GET_ITEM(<object>m.stride, k)
    return count if not m.stride or count == last + 1 else 0


cdef bint grad_on = False


cdef bint _grad_is_off() except -1:
    """Read torch's grad mode; True when no result can require grad or carry a tangent."""
    # Builtins that run no Python code: the static buffers survive the calls.
    global grad_on
    grad_on = PyObject_CallNoArgs(grad_enabled)
    return not grad_on and (not K.uncertain or <object>forward_ad._current_level < 0)


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
    elif info.writes:
        mixed_devices(info, args, kwargs)      # in place: below Python, CPU operands are not told apart
    # torch's own "do as if the class had no __torch_function__"; an empty dict would not do for property getters.
    return below(func, types, args, kwargs) if kwargs else below(func, types, args)


def torch_dispatch(cls, func, types, tuple args=(), kwargs=None):
    """`__torch_dispatch__` of LazyTensor."""
    cdef OpInfo info = _info_of(func, True)
    if info.view and PyObject_CallNoArgs(inference_enabled) and not args[0].is_inference():
        # A view of a normal tensor is a normal tensor, also in inference mode: torch shares the version counter.
        with inference_mode(False):
            return _dispatch(info, func, args, kwargs)
    return _dispatch(info, func, args, kwargs)


cdef object _dispatch(OpInfo info, object func, tuple args, object kwargs):
    global n_dispatch
    cdef object out
    cdef Handle h
    if func is detach and PyTuple_GET_SIZE(args) == 1:
        # Autograd detaches every output it saves. The same value under another name: no record.
        h = handle_of(<object>PyTuple_GET_ITEM(args, 0))
        if h is not None:
            out = rename(h, PyObject_CallNoArgs(grad_enabled))
            if out is not None:
                return out
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
            if info.bumps:
                increment_version(args[0])
            return out
    elif info.kind == KIND_HANDLER:
        out = info.handler(args, {} if kwargs is None else kwargs)
        if out is not NotImplemented:
            return out
    out = run_eagerly(info, args, {} if kwargs is None else kwargs)
    if info.bumps:
        increment_version(args[0])
    return out


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
            room(128)
            start(info, 2, 0)
            status = encode(<PyObject*>other if reflected else <PyObject*>self, 0)
            if not status:
                status = encode(<PyObject*>self if reflected else <PyObject*>other, 0)
            if not status and (_grad_is_off() or not K.uncertain) and not logging:
                sid = tape.interner.find_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n))
                if sid:
                    n_whole += 1
                    return _finish(sid)
            out = _record(info, (other, self) if reflected else (self, other), None, False)
            if out is not NOT_RECORDED:
                n_whole += 1
                return out
        return fallback(self, other)

    return operator


cdef void _append_device(int device) noexcept:
    # Behind the template: part of the call's identity (the result's metadata), not of its arguments.
    memcpy(K.buf + K.n, &device, sizeof(device))
    K.n += sizeof(device)


def record_creation(OpInfo info, tuple args, dict kwargs, int device):
    """Record a creation call (no tensor inputs decide the device); None if it cannot be recorded."""
    global n_whole
    cdef int status = encode_call(info, args, kwargs)
    cdef uint32_t sid
    if status:
        return None
    room(8)
    _append_device(device)
    sid = tape.interner.find_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n))
    if sid == 0:
        spec = infer(info, args, kwargs, False, device)
        if spec is None:
            return None
        outs, alias, ret, written, flags = spec
        out_metas = [_out_meta(o) for o in outs]
        if encode_call(info, args, kwargs):
            return None
        room(8)
        _append_device(device)
        sid = tape.interner.add_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n), info, ret, out_metas,
                                    alias, written, flags)
    n_whole += 1
    if logging:
        on_record(info.name, args)
        if encode_call(info, args, kwargs):
            return None
    _grad_is_off()
    return _finish(sid)
