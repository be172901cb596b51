"""Interception: from a torch call to a record on the tape.

Both levels end in `_record`: `torch_function` (whole ops, cheapest, used when nothing has to happen between Python and
the kernel) and `torch_dispatch` (everything else; autograd, autocast and C++ callers have done their part by then).

A call is turned into a key (keys.pyx). Known key: one hash probe, then append. New key: `infer` (Python, handed in)
says what comes out.
"""
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from .context cimport current_location, current_module, current_phase
from .intern cimport (
    KIND_HANDLER, KIND_RECORD, RETURNS_NOTHING, RETURNS_TENSOR, RETURNS_TUPLE, Interner, OpInfo, hash_key, sig_out_meta,
    sig_written,
)
from .interpreter cimport mt_ask
from .keys cimport (
    MIXED, NOBODY, Key, any_foreign, asks_first, current_key, encode, encode_call, give_way, others_first, room, start,
)
from .lazy cimport forget_kept, get_tape, handle_of, has_kept, has_noted, rename, type_of, wrap
from .ledger cimport (
    NAME_DETACH, Place, Script, has_script, here, keep_script, learn, listening, note_call, note_name, settle, stopped,
)
from .local_state cimport (
    function_modes, grad_mode as asked_grad_mode, hide_functions, no_keys, show_functions, undisturbed,
)
from .overlap cimport refused_overlap
from .registry cimport info_of, set_describe, set_info
from .shortcuts cimport may_remember, remember, shortcut, version_of
from .structs cimport (
    MAX_DEVICES, MAX_INPUTS, NO_PLACE, REC_GRAD, SIG_BLIND, SIG_FOLDS, SIG_RANDOM, SIG_SMALL, SIG_WRITES, SLOT_GRAD,
    Record, SigS,
)
from .tape cimport Handle, Tape, rec_outs, sig_floats
from .view_chains cimport counted, is_below, is_long, is_strided, linked

from mindtorch._ext.keys import set_exact
from mindtorch._ext.view_chains import above, shortened

cdef extern from "Python.h":
    object PyObject_CallNoArgs(object callable)

cdef enum:
    MAX_DRAWS = 2048

cdef Tape tape = None
cdef Key *K = current_key()
# What the Python side hands in: callbacks of engine.record.intercept, and torch's state queries.
cdef object infer, run_eagerly, run_whole, without_nodes, lift, mixed_devices, joined, on_record
cdef object inference_enabled, inference_mode, forward_ad
cdef object excluded, past_autograd    # asked in a dispatch: whether it came through torch's dispatcher
cdef object below, detach, increment_version, requires_grad, is_inference, functions_below
cdef uint64_t n_whole = 0             # calls recorded at the function level
cdef uint64_t n_dispatch = 0          # calls recorded at the dispatch level
cdef bint logging = False, apart = False
cdef int drawing_at_once = 0           # nested calls of draw_at_once(True)
cdef object evaluate = None, meet = None    # see set_mode


def init(hooks, torch):
    """Hand in the callbacks of engine.record.intercept and the torch module. Called once, after lazy.init()."""
    global tape, infer, run_eagerly, run_whole, without_nodes, lift, mixed_devices, joined, on_record
    global forward_ad, below, detach
    global excluded, past_autograd
    global inference_enabled, inference_mode, increment_version, requires_grad, is_inference
    global functions_below
    tape = get_tape()
    inference_enabled = torch.is_inference_mode_enabled
    inference_mode = torch.inference_mode
    below = torch._C._disabled_torch_function_impl
    detach = torch.ops.aten.detach.default
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    past_autograd = torch._C.DispatchKey.ADInplaceOrView
    forward_ad = torch.autograd.forward_ad
    requires_grad = torch._C.TensorBase.requires_grad
    functions_below = torch._C.DisableTorchFunctionSubclass
    is_inference = torch._C.TensorBase.is_inference
    increment_version = torch.autograd.graph.increment_version
    set_describe(hooks.describe)
    infer = hooks.infer
    run_eagerly = hooks.run_eagerly
    run_whole = hooks.run_whole
    without_nodes = hooks.without_nodes
    lift = hooks.lift
    mixed_devices = hooks.mixed_devices
    joined = hooks.joined
    on_record = hooks.on_record


def set_logging(bint on):
    """Call hooks.on_record(name, tensors' handle) for each captured op (GENIE_LOG_INTERCEPTS)."""
    global logging
    logging = on


def draw_at_once(bint on):
    """While on (calls nest), no call that draws random numbers is recorded: torch draws in C++ in between."""
    global drawing_at_once
    drawing_at_once += 1 if on else -1


def set_mode(mode):
    """Record as `mode` (mindtorch.devices.mode) says.

    estimate: no call is recorded whole: torch takes it apart, as it does for plain tensors, down to ATen ops. While
    the ledger is open, what a call came to is logged again when it is made again: see `_apart`. No interned call goes,
    as what is reported afterwards names them.
    Its `evaluate(call, info, template, inputs, results)` computes what tensors without data hold. Asked about
    calls with little in their results (SIG_SMALL), right after they were recorded: when their inputs are all kept (see
    lazy.kept), or need not be (SIG_BLIND). `inputs`: the tensors in the call's holes; `results`: the new ones.
    meets: `(info, func, args, kwargs)` answers calls with plain tensors among the arguments, or NotImplemented.
    """
    global apart, evaluate, meet
    tape.interner.frozen += <bint>(mode.estimate is not None) - apart
    apart = mode.estimate is not None
    set_exact(apart)           # the ledger names calls, not records
    evaluate, meet = mode.estimate.evaluate if apart else None, mode.meets


cdef object shorten = None


def set_shorten(how):
    """Call `how(func, info)` once for each function that was recorded whole by `torch_function`."""
    global shorten
    shorten = how


def counts():
    """(calls recorded whole at the function level, calls recorded at the dispatch level)."""
    return n_whole, n_dispatch


def register(func, OpInfo info):
    """Set what the engine does when `func` is called on a lazy tensor (replaces an earlier entry)."""
    set_info(func, info)


# ---- recording -----------------------------------------------------------------------------------------------------
cdef object NOT_RECORDED = object()


cdef uint32_t _out_meta(tuple o) except 0:
    return tape.interner.meta_id(o[0], o[1], o[2], o[3], o[4], o[5] if len(o) > 5 else 0)


cdef uint32_t _new_sig(OpInfo info, tuple args, dict kwargs, bint dispatch, int device) except? 0:
    """Infer what the call gives and intern it; 0 when it cannot be recorded. The key is rebuilt afterwards.

    `device`: the place of a creation call, which has no inputs to tell; else NO_PLACE.
    """
    cdef Interner table = tape.interner
    cdef uint8_t drawing = 0
    cdef int place = device
    if table.bytes > table.evict_at:
        tape.evict()
    spec = infer(info, args, {} if kwargs is None else kwargs, dispatch, None if device == NO_PLACE else device)
    if spec is None:
        return 0
    outs, alias, ret, written, flags = spec
    if len(outs) > MAX_INPUTS:
        return 0               # the elements of a long tensor, one by one
    table.frozen += 1          # nothing names the new entries yet, and a finalizer that runs now may record
    try:
        # Before the key: allocating may collect garbage, whose finalizers may record and overwrite the key.
        out_metas = []
        for o in outs:
            out_metas.append(_out_meta(o))
        if encode_call(info, args, kwargs):
            return 0
        if flags & SIG_RANDOM:
            if device == NO_PLACE:
                device = K.device if K.device < MAX_DEVICES else 0
            drawing = <uint8_t>device
            tape.rng_of(drawing)
        if place != NO_PLACE:
            _append_device(place)
        grad_is_off()
        return table.add_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n), info, ret, out_metas, alias,
                             written, flags, drawing)
    finally:
        table.frozen -= 1


cdef enum:
    EVALUATE = 1
    LOSE = 2


cdef int _knowing(SigS *s) noexcept:
    """What the call in the static buffers means for the values that an estimate keeps: 0, EVALUATE or LOSE."""
    cdef uint32_t i
    cdef uint8_t *written
    if s.flags & SIG_SMALL:
        if s.flags & SIG_BLIND:
            return EVALUATE
        for i in range(s.n_in):
            if not has_kept(K.ins[i]):
                break
        else:
            return EVALUATE
    if s.flags & SIG_WRITES:
        written = sig_written(s)
        for i in range(s.n_in):
            if written[i] and has_noted(K.ins[i]):
                return LOSE
    return 0


cdef object finish(uint32_t sid):
    """Append the call whose key and inputs are in the static buffers, and wrap its outputs.

    `grad_on` must hold torch's grad mode: some kernels (oneDNN's LSTM) compute differently with it. Results are
    certain not to require grad only if it is on: what custom Functions return is computed with it off, and gets its
    grad_fn afterwards.

    Asking where the program is may make objects, and so run a finalizer that records: the buffers are copied first,
    and no entry may go meanwhile.
    """
    cdef bint grad = grad_on
    cdef bint no_grad = grad and not K.uncertain
    cdef SigS *s = tape.interner.sigs[sid]
    cdef uint32_t small[8]
    cdef uint32_t *ins = small
    cdef uint32_t module, loc, slot, k
    cdef bint dataless = K.device < 0
    cdef Record *r
    cdef Record origin
    cdef object out
    cdef uint32_t n_floats = sig_floats(s)
    cdef double few[4]
    cdef int knowing = _knowing(s) if dataless and evaluate is not None else 0
    if s.ret != NULL or knowing or n_floats > 4:
        return _finish_many(sid, s, grad, no_grad, knowing)
    if s.n_in > 8:
        ins = <uint32_t *>malloc(s.n_in * sizeof(uint32_t))
        if not ins:
            raise MemoryError()
    if s.n_in:                 # no tensor was ever seen: there is no buffer
        memcpy(ins, K.ins, s.n_in * sizeof(uint32_t))
    for k in range(n_floats):
        few[k] = K.floats[k]
    tape.interner.frozen += 1
    try:
        module = current_module()
        loc = current_location()
        r = tape.append(sid, ins, few, module, loc, current_phase())
    finally:
        tape.interner.frozen -= 1
        if ins != small:
            free(ins)
    if grad:
        r.flags |= REC_GRAD
    slot = rec_outs(r, s)[0]
    if dataless:
        origin = r[0]
        tape.slot(slot).handles += 1
        if listening:
            note_call(r, s, &slot)
        tape.pass_over(tape.tail - 1)
        try:
            settle()
            return wrap(slot, sig_out_meta(s)[0], no_grad, &origin, few)
        finally:
            tape.handle_died(slot)
    out = wrap(slot, sig_out_meta(s)[0], no_grad, r, few)
    limit()
    return out


cdef object _finish_many(uint32_t sid, SigS *s, bint grad, bint no_grad, int knowing):
    """As finish, for calls that do not return one fresh tensor: several, some of their inputs, or nothing."""
    cdef tuple template = <tuple>s.ret if s.ret else (0, 0)
    cdef uint32_t n_in = s.n_in, n_out = s.n_out, n_floats = sig_floats(s), i, appended = 0
    cdef bint writes = s.flags & SIG_WRITES, dataless = K.device < 0
    cdef uint8_t *written = sig_written(s)      # no entry goes while the table is frozen
    cdef PyObject **objs = <PyObject **>malloc(n_in * (sizeof(PyObject *) + 4) + n_floats * 8 + n_out * 8 + 8)
    cdef double *floats = <double *>(objs + n_in)
    cdef uint32_t *ins = <uint32_t *>(floats + n_floats)
    cdef uint32_t *outs = ins + n_in
    cdef uint32_t *metas = outs + n_out
    cdef uint32_t module, loc
    cdef Record *r
    cdef Record origin
    cdef Handle h
    cdef list fresh, result, inputs
    cdef int code
    if not objs:
        raise MemoryError()
    for i in range(n_in):
        ins[i] = K.ins[i]
        objs[i] = K.objs[i]
        Py_INCREF(<object>objs[i])
    memcpy(floats, K.floats, n_floats * sizeof(double))
    tape.interner.frozen += 1
    try:
        module = current_module()
        loc = current_location()
        r = tape.append(sid, ins, floats, module, loc, current_phase())
        if grad:
            r.flags |= REC_GRAD
        origin = r[0]          # a copy: making a wrapper may run a finalizer that runs the record
        for i in range(n_out):
            outs[i] = rec_outs(r, s)[i]
            metas[i] = sig_out_meta(s)[i]
            tape.slot(outs[i]).handles += 1     # and nobody may drop it before all outputs have their handles
        appended = n_out
        if dataless:
            if listening:
                note_call(r, s, outs)
            tape.pass_over(tape.tail - 1)
            settle()
        fresh = []
        for i in range(n_out):
            fresh.append(wrap(outs[i], metas[i], no_grad, &origin, floats))
        if writes and not no_grad:
            for i in range(n_in):
                if written[i]:
                    # It gets the history of what is written into it, and so does whatever shares its storage.
                    h = handle_of(<object>objs[i])
                    tape.slot(tape.slot(h.slot).root).flags |= SLOT_GRAD
        if knowing == LOSE:
            for i in range(n_in):
                if written[i]:
                    forget_kept(ins[i])
        elif knowing == EVALUATE and evaluate is not None:
            inputs = []
            for i in range(n_in):
                inputs.append(<object>objs[i])
            evaluate(sid, <object>s.info, template, inputs, fresh)
        result = []
        for i in range(1, <uint32_t>len(template)):
            if template[i] is None:
                result.append(None)
                continue
            code = template[i]
            result.append(fresh[code] if code >= 0 else <object>objs[-1 - code])
    finally:
        tape.interner.frozen -= 1
        for i in range(appended):
            tape.handle_died(outs[i])
        for i in range(n_in):
            Py_DECREF(<object>objs[i])
        free(objs)
    limit()
    if type(template[0]) is type:
        return template[0](result)             # torch.return_types.max and its like
    code = template[0]
    if code == RETURNS_TENSOR:
        return result[0]
    if code == RETURNS_NOTHING:
        return None
    return tuple(result) if code == RETURNS_TUPLE else result


cdef int limit() except -1:
    if tape.n_pending < tape.sweep_at:
        return 0
    tape.sweep()
    if tape.waiting_draws > MAX_DRAWS and tape.on_draws is not None:
        # The generator must advance even if nobody reads the numbers: draw them now, so that they don't pile up.
        tape.waiting_draws = 0
        tape.on_draws()
    if (tape.n_pending >= tape.max_pending or tape.waiting > tape.max_waiting) and tape.on_limit is not None:
        tape.on_limit()
        tape.rearm()
    return 0


cdef object _record(OpInfo info, tuple args, dict kwargs, bint dispatch):
    """Record the call if its arguments are constants and lazy tensors and its result can be inferred."""
    cdef uint32_t sid
    cdef int status
    if drawing_at_once and info.random:
        return NOT_RECORDED
    status = encode_call(info, args, kwargs)
    if status:
        if status == MIXED:
            mixed_devices(info, args, kwargs)
        return NOT_RECORDED
    sid = tape.interner.find_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n))
    cdef bint no_graph = grad_is_off() or not K.uncertain
    if not dispatch and not no_graph:
        return NOT_RECORDED
    if sid == 0:
        sid = _new_sig(info, args, kwargs, dispatch, NO_PLACE)
        if sid == 0:
            return NOT_RECORDED
    if tape.interner.sigs[sid].flags & SIG_WRITES and refused_overlap(info, tape.interner.sigs[sid]):
        return NOT_RECORDED                    # torch's kernel has the say, now
    if not dispatch and _folds(tape.interner.sigs[sid]):
        return NOT_RECORDED
    if logging:
        sid = _log(info, args, kwargs, NO_PLACE)
        if sid == 0:
            return NOT_RECORDED
    return finish(sid)


cdef object whole_call(OpInfo info, tuple args, dict kwargs):
    global n_whole
    cdef object out = _record(info, args, kwargs, False)
    n_whole += out is not NOT_RECORDED
    return out


cdef object known(OpInfo info):
    global n_whole
    cdef uint32_t sid
    cdef SigS *s
    if logging or drawing_at_once and info.random or not grad_is_off() and K.uncertain:
        return NOT_RECORDED
    sid = tape.interner.find_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n))
    if sid == 0:
        return NOT_RECORDED
    s = tape.interner.sigs[sid]
    if s.flags & SIG_WRITES or _folds(s):
        return NOT_RECORDED
    n_whole += 1
    return finish(sid)


cdef uint32_t _log(OpInfo info, tuple args, dict kwargs, int device) except? 0:
    """Log the call; Python code runs, so find it again afterwards."""
    on_record(info.name, args)
    if encode_call(info, args, kwargs):
        return 0
    if device != NO_PLACE:
        _append_device(device)
    grad_is_off()
    return tape.interner.find_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n))


cdef bint grad_on = False


cdef bint grad_is_off() except -1:
    """Read torch's grad mode; True when no result can require grad or carry a tangent."""
    # Builtins that run no Python code: the static buffers survive the calls.
    global grad_on
    grad_on = asked_grad_mode()
    return not grad_on and (not K.uncertain or <object>forward_ad._current_level < 0)


cdef bint grad_mode() noexcept:
    return grad_on


cdef void counted_whole() noexcept:
    global n_whole
    n_whole += 1


cdef bint may_be_short() except -1:
    return not logging and not apart and no_keys() and not function_modes()


cdef inline bint _plain_call() except -1:
    """Nothing stands between Python and the kernel: no dispatch mode, no autocast."""
    return not apart and undisturbed()


cdef bint may_be_whole(OpInfo info) except -1:
    return info.kind == KIND_RECORD and not function_modes() and info.at_function is None and (
        _plain_call() and (info.handler is None or info.handler())
    )


# ---- calls that are taken apart --------------------------------------------------------------------------------------
# What a call comes to at the dispatch level is the same each time, unless values are known, a history is kept or a mode
# is on: it is taken apart once, and from then on one record stands for it, and the script that the ledger has of it.
cdef enum:
    MAX_SEEN = 14                      # inputs of which a key can tell what _look() sees

cdef uint32_t seen = 0
cdef tuple NOTHING = ()


cdef uint32_t _scripted(OpInfo info) except? 0:
    """Complete the encoded call's key, and find it: what it comes to depends on more than the arguments.

    0: not found; if K.n is 0 then, the call has to be taken apart each time.
    """
    if not _is_the_same_each_time(info):
        K.n = 0
        return 0
    room(4)
    memcpy(K.buf + K.n, &seen, 4)
    K.n += 4
    return tape.interner.find_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n))


cdef bint _is_the_same_each_time(OpInfo info) except -1:
    """Does what the encoded call comes to depend on no more than its arguments and what is then in `seen`?"""
    cdef uint32_t i, serial = K.serial
    if logging or not listening or K.device >= 0 or K.n_ins > MAX_SEEN:
        return False
    for i in range(K.n_ins):
        if has_kept(K.ins[i]):
            return False
    if not grad_is_off() and K.uncertain or info.kind != KIND_HANDLER and not (info.handler is None or info.handler()):
        return False
    if K.serial == serial:
        below(_look, NOTHING, NOTHING)
    return K.serial == serial          # else a finalizer has come in between


def _look():
    """Note in `seen` what metadata does not tell of the inputs. __torch_function__ must be out of the way."""
    global seen
    cdef uint32_t i, found = 1 if grad_on else 0
    cdef uint32_t n = <uint32_t>K.n_ins, serial = K.serial
    if PyObject_CallNoArgs(inference_enabled):
        found |= 2
    for i in range(n):
        if K.serial != serial:
            break
        if K.uncertain and mt_ask(requires_grad, <object>K.objs[i]):
            found |= <uint32_t>4 << 2 * i
        if is_inference(<object>K.objs[i]):
            found |= <uint32_t>8 << 2 * i
    seen = found


cdef object _apart(OpInfo info, object func, object types, tuple args, dict kwargs):
    """Take the call apart, or do as it did the last time; NOT_RECORDED when that may not be the same.

    `types`: None for a method of torch's that is to be called as it is.
    """
    global n_whole
    cdef uint32_t sid, meta = 0
    cdef Place since
    cdef Handle h
    cdef Script *script = NULL
    if encode_call(info, args, kwargs):
        return NOT_RECORDED
    sid = _scripted(info)
    if has_script(sid):
        n_whole += 1
        return finish(sid)
    if stopped or K.n == 0 or (sid and tape.interner.sigs[sid].n_out == 0):
        return NOT_RECORDED
    here(&since)
    if types is None:
        out = func(*args)
    else:
        out = _go_on(info, func, types, args, kwargs)
    h = handle_of(out)
    if h is not None and not has_kept(h.slot):
        meta = h.meta
        script = learn(&since, tape.slot(h.slot).root, meta)
    _remember(info, args, kwargs, meta, script)
    return out


cdef int _remember(OpInfo info, tuple args, dict kwargs, uint32_t meta, Script *script) except -1:
    """Give the call an entry that stands for the script; without one, an entry that says so."""
    cdef list metas = [] if script == NULL else [meta], alias = [] if script == NULL else [-1]
    cdef uint32_t sid
    cdef SigS *s
    tape.interner.frozen += 1
    try:
        if encode_call(info, args, kwargs) == 0:
            sid = _scripted(info)
            if sid == 0 and K.n:
                sid = tape.interner.add_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n), info, None, metas,
                                            alias, bytes(K.n_ins), 0, 0)
            s = tape.interner.sigs[sid]
            if sid and script != NULL and s.n_out and sig_out_meta(s)[0] == meta:
                keep_script(sid, script)
                script = NULL
    finally:
        tape.interner.frozen -= 1
        free(script)
    return 0


cdef bint _folds(SigS *s) except -1:
    """Does torch take the encoded product apart in another way because an operand requires grad? It knows best how."""
    cdef uint32_t serial = K.serial
    if not s.flags & SIG_FOLDS or K.device < 0 or not K.uncertain:
        return False
    below(_look, NOTHING, NOTHING)
    return K.serial != serial or seen & <uint32_t>0x55555554 != 0


def torch_function(cls, func, types, tuple args=(), kwargs=None):
    """`__torch_function__` of LazyTensor; `cls` is None when a class that has the first say has had it."""
    cdef OpInfo info = info_of(func, False)
    cdef bint mixed, places, short = False
    cdef uint64_t since
    cdef int64_t before
    if cls is not None:
        out = others_first(func, types, args, kwargs)
        if out is not NOBODY:
            return out
    if info.at_function is not None:
        if (out := info.at_function(args, {} if kwargs is None else kwargs)) is not NotImplemented:
            return out
    if meet is not None and any_foreign(args, <dict>kwargs):
        if (out := meet(info, func, args, {} if kwargs is None else kwargs)) is not NotImplemented:
            return out
    if apart and (info.kind == KIND_RECORD or info.copies) and undisturbed():
        if info.kind == KIND_HANDLER and (
            out := info.handler(args, {} if kwargs is None else kwargs)
        ) is not NotImplemented:
            return out
        out = _apart(info, func, types, args, <dict>kwargs)
        if out is not NOT_RECORDED:
            return out
    if info.short:
        out = shortcut(info, args, <dict>kwargs)
        if out is not NOT_RECORDED:
            return out
        short = may_remember and PyTuple_GET_SIZE(args) > 0
    if info.of_dtype is not None and info.twin is None and shorten is not None:
        shorten(func, info)
    if info.kind == KIND_RECORD:
        # What an operator called by name writes or views, torch's layers above the dispatch level must see.
        if not info.view and (info.whole or not info.writes) and _plain_call() and (
            info.handler is None or info.handler()
        ):
            out = whole_call(info, args, <dict>kwargs)
            if out is not NOT_RECORDED:
                if info.twin is None and shorten is not None:
                    shorten(func, info)
                return out
    elif info.kind == KIND_HANDLER:
        if (out := info.handler(args, {} if kwargs is None else kwargs)) is not NotImplemented:
            return out
    mixed, places = any_foreign(args, <dict>kwargs), K.places
    if (out := give_way(func, args, kwargs)) is not NotImplemented:
        return out
    if mixed:
        mixed_devices(info, args, kwargs)      # below Python, CPU operands are not told apart
    if mixed or places:
        args, kwargs = joined(info, args, kwargs, mixed)
    if info.kind == KIND_RECORD and info.whole and not apart:
        if (out := run_whole(info, args, {} if kwargs is None else kwargs)) is not NotImplemented:
            return out
    if not short:
        return _go_on(info, func, types, args, kwargs)
    since, before = tape.tail, version_of(<PyObject *>args[0])
    out = _go_on(info, func, types, args, kwargs)
    remember(info, args, <dict>kwargs, since, before, out)
    return out


cdef object _go_on(OpInfo info, object func, object types, tuple args, object kwargs):
    cdef object first = args[0] if PyTuple_GET_SIZE(args) else _named_first(kwargs)
    cdef int64_t before
    cdef bint again = False
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    before = version_of(<PyObject *>first)
    while True:
        try:
            return _gone_on(info, func, types, args, kwargs)
        except RuntimeError as error:
            if not str(error).startswith("Autograd not support dtype"):
                raise
            done = without_nodes(func, before, again, args, kwargs or {})
            if done is None:
                raise
            if done:
                return done[0]
            again = True


cdef object _named_first(object kwargs):
    return None if kwargs is None else kwargs.get("input", kwargs.get("self"))


cdef inline object _gone_on(OpInfo info, object func, object types, tuple args, object kwargs):
    if info.twin is not None:
        func = info.twin               # it was tried
    if info.view and is_long(args, kwargs):
        return below(shortened, types, (func, args, kwargs or {}))
    # torch's own "do as if the class had no __torch_function__"; an empty dict would not do for property getters.
    return below(func, types, args, kwargs) if kwargs else below(func, types, args)


def torch_dispatch(cls, func, types, tuple args=(), kwargs=None):
    """`__torch_dispatch__` of LazyTensor."""
    # From C++ in a backward pass: hooks have their say there, but what is called from here is torch's own.
    cdef int enabled = hide_functions()
    if enabled < 0:                        # torch does not export it
        with functions_below():
            return _dispatched(func, args, kwargs)
    if not enabled:
        return _dispatched(func, args, kwargs)
    try:
        return _dispatched(func, args, kwargs)
    finally:
        show_functions()


cdef object _dispatched(object func, tuple args, object kwargs):
    cdef OpInfo info = info_of(func, True)
    cdef Handle h
    if info.at_dispatch is not None:
        out = info.at_dispatch(args, {} if kwargs is None else kwargs)
        if type(out) is OpInfo:
            info = out                         # another kind of call for the same operator
        elif out is not NotImplemented:
            return out
    if not info.view:
        return _dispatch(info, func, args, kwargs)
    if is_below() and not is_strided(info.name):
        return above(func, args, kwargs or {})
    if PyObject_CallNoArgs(inference_enabled) and not args[0].is_inference():
        # A view of a normal tensor is a normal tensor, also in inference mode: torch shares the version counter.
        with inference_mode(False):
            out = _dispatch(info, func, args, kwargs)
        h = handle_of(out)
        if h is not None and tape.slot(h.slot).root == h.slot and func is not detach:
            renamed = rename(h, h.no_grad)     # it is no view this time: `to`, `reshape`
            return out if renamed is None else renamed
    elif PyTuple_GET_SIZE(args) and version_of(<PyObject *>args[0]) < 0 and args[0].is_inference():
        with inference_mode(True):             # and that of a tensor of that mode one of it, outside as well
            out = _dispatch(info, func, args, kwargs)
    else:
        out = _dispatch(info, func, args, kwargs)
    if is_below():
        return linked(args[0], out)
    counted(args[0], out)
    return out


cdef object _dispatch(OpInfo info, object func, tuple args, object kwargs):
    global n_dispatch
    cdef object out
    cdef Handle h
    if func is detach and PyTuple_GET_SIZE(args) == 1:
        # Autograd detaches every output it saves. The same value under another name: no record. It is not certain to
        # need no gradient: autograd gives a saved output its history back (handlers.py knows when the program asks).
        h = handle_of(<object>PyTuple_GET_ITEM(args, 0))
        if h is not None:
            out = rename(h, False)
            if out is not None:
                if listening and excluded(past_autograd):
                    note_name(NAME_DETACH)     # the program's own; what autograd saves is no op of a plain run
                return out
    if info.kind == KIND_RECORD:
        kwargs = kwargs or None
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
    out = run_eagerly(info, args, {} if kwargs is None else kwargs)
    if info.bumps:
        increment_version(args[0])
    return out


cdef list _kept = []                  # whose addresses are in keys


cdef OpInfo _method(OpInfo info, fallback):
    """For the keys of calls of `fallback`, which torch may take apart in another way than the function."""
    cdef OpInfo made = OpInfo(fallback, info.name, info.kind, handler=info.handler)
    _kept.append((fallback, made))
    return made


def make_operator(func, fallback, bint whole=True):
    """A method for LazyTensor that records `func` without the detour over `__torch_function__`.

    `fallback` (torch's own method) is called when the call cannot be recorded whole or a torch function mode is on.
    whole: False for a method that is not recorded; an estimate may still know what it comes to.
    """
    cdef OpInfo info = info_of(func, False), method = _method(info, fallback)

    def operator(self, *args):
        if apart and not function_modes() and undisturbed():
            out = _apart(method, fallback, None, (self,) + args, None)
            if out is not NOT_RECORDED:
                return out
        elif whole and not function_modes() and _plain_call():
            out = whole_call(info, (self,) + args, None)
            if out is not NOT_RECORDED:
                return out
        return fallback(self, *args)

    return operator


def make_binary(func, fallback, bint reflected=False):
    """As make_operator, for an operator of two operands; `reflected`: the tensor is the right one."""
    cdef OpInfo info = info_of(func, False), method = _method(info, fallback)

    def operator(self, other):
        cdef object out
        cdef int status
        if apart and not function_modes() and undisturbed():
            out = _apart(method, fallback, None, (self, other), None)
            if out is not NOT_RECORDED:
                return out
        elif not function_modes() and _plain_call():
            if asks_first(type_of(<PyObject *>other)):
                return fallback(self, other)
            room(128)
            start(info, 2, 0)
            status = encode(<PyObject *>other if reflected else <PyObject *>self)
            if not status:
                status = encode(<PyObject *>self if reflected else <PyObject *>other)
            if not status:
                out = known(info)
                if out is not NOT_RECORDED:
                    return out
            out = whole_call(info, (other, self) if reflected else (self, other), None)
            if out is not NOT_RECORDED:
                return out
        return fallback(self, other)

    return operator


cdef int _append_device(int device) except -1:
    # Behind the template: part of the call's identity (the result's metadata), not of its arguments.
    room(8)
    memcpy(K.buf + K.n, &device, sizeof(device))
    K.n += sizeof(device)
    K.device = device
    return 0


def record_creation(OpInfo info, tuple args, dict kwargs, int device):
    """Record a creation call (no tensor inputs decide the device); None if it cannot be recorded."""
    global n_whole
    cdef uint32_t sid
    if drawing_at_once and info.random:
        return None
    if encode_call(info, args, kwargs):
        return None
    _append_device(device)
    sid = tape.interner.find_sig(K.buf, <uint32_t>K.n, hash_key(K.buf, <uint32_t>K.n))
    if sid == 0:
        sid = _new_sig(info, args, kwargs, False, device)
    if sid and logging:
        sid = _log(info, args, kwargs, device)
    if sid == 0:
        return None
    n_whole += 1
    grad_is_off()
    return finish(sid)
