"""Lazy tensors as Python objects: making them, their handles, their values, and what is known about their calls.

Owns the process's tape. A LazyTensor that a call returns has its handle in a slot read at a fixed offset. Objects that
were plain tensors once have the layout of those: their handles are beside them, see adopt().
"""
import weakref

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from .context cimport PHASE_CANDIDATE
from .intern cimport OpInfo, set_world as _set_world, sig_key, sig_out_meta, sig_written as sig_writes
from .interpreter cimport MT_SET_SLOT, MT_SLOT, mt_slot_offset
from .ledger cimport listening, note_memory, settle
from .local_state cimport no_keys
from .native_calls cimport object_of
from .replay cimport again, plan_segment
from .structs cimport (
    MAX_HANDLES, META_CONJ, META_NEG, SIG_RANDOM, SIG_VIEW, SLOT_FAILED, SLOT_GRAD, SLOT_PENDING, SLOT_USED,
    MetaS, Record, SigS, Slot,
)
from .tape cimport Handle, Tape, floats_at, new_handle, rec_floats, sig_floats as _sig_floats
from .template cimport decode_call, hole_metas
from .kept_wrappers cimport keeping, learn, take

cdef extern from "Python.h":
    object PyLong_FromVoidPtr(void *p)
    PyObject* PyDict_GetItem_ "PyDict_GetItem"(object d, object key) noexcept
    object PyObject_CallNoArgs(object callable)
    object PyObject_Vectorcall(PyObject *callable, PyObject **args, size_t nargsf, PyObject *kwnames)

cdef Tape tape = None                 # the process's tape of lazy tensors
cdef PyObject *base_type = NULL       # RecordedTensor
cdef PyObject *fast_type = NULL       # its subclass with a slot for the handle: what calls return
cdef PyObject *slotted_type = NULL    # what both of these and other classes with a slot derive from
cdef PyObject *dataless_type = NULL   # the same, of tensors that hold no data
cdef Py_ssize_t slot_offset = 0
cdef object reference = None          # weakref.ref
cdef object make_wrapper, fast_type_obj, set_conj, set_neg, strided, as_strided, empty, inference_enabled
cdef list places = None               # devices that C++ is told for the places that hold no data, -1 first


def init(*, Tape main_tape, base, fast, dataless, slotted, list dataless_places, maker, torch):
    """Hand in the tape, the tensor classes and Tensor._make_wrapper_subclass, past all hooks. Called once.

    Returns the offset of the handle's slot.
    """
    global tape, base_type, fast_type, dataless_type, fast_type_obj, slot_offset, make_wrapper, set_conj, set_neg
    global strided, places, as_strided, empty, slotted_type, reference, inference_enabled
    slot_offset = mt_slot_offset(<PyObject*>slotted.__dict__["_handle"])
    if slot_offset < 0 or not issubclass(fast, slotted) or not issubclass(dataless, slotted):
        raise TypeError(f"[init] expected classes with the `_handle` slot of {slotted!r}, got {fast!r}, {dataless!r}")
    tape = main_tape
    base_type = <PyObject *>base
    fast_type = <PyObject *>fast
    dataless_type = <PyObject *>dataless
    slotted_type = <PyObject *>slotted
    reference = weakref.ref
    fast_type_obj = (fast, dataless, base, slotted)     # kept alive
    make_wrapper = maker
    set_conj = torch._C._set_conj
    set_neg = torch._C._set_neg
    strided = torch.strided
    inference_enabled = torch.is_inference_mode_enabled
    as_strided = torch._C._VariableFunctions.as_strided
    empty = torch._C._VariableFunctions.empty
    places = dataless_places
    return slot_offset


cdef Tape get_tape():
    return tape


# ---- handles -------------------------------------------------------------------------------------------------------
cdef PyObject *class_of_results() noexcept:
    return fast_type


cdef void give_handle(object t, Handle h) noexcept:
    Py_INCREF(h)
    MT_SET_SLOT(<PyObject *>t, slot_offset, <PyObject *>h)


cdef Handle handle_of(object t):
    """The handle of a lazy tensor; None for anything else."""
    cdef PyObject *o = <PyObject *>t
    cdef PyObject *h
    if type_of(o) == fast_type or type_of(o) == dataless_type:
        h = MT_SLOT(o, slot_offset)
        return <Handle>h if h else None
    if base_type and is_subtype(type_of(o), base_type):
        h = handle_beside(o)
        return <Handle>h if h else None
    return None


cdef PyObject *handle_beside(PyObject *o) except? NULL:
    """As handle_of, for objects of other classes than calls return; borrowed, NULL if there is none."""
    cdef PyObject *found
    if is_subtype(type_of(o), slotted_type):
        return MT_SLOT(o, slot_offset)
    found = PyDict_GetItem_(_adopted, PyLong_FromVoidPtr(o))
    return PyTuple_GET_ITEM(<object>found, 0) if found else NULL


cdef dict _adopted = {}               # address of an object without slot -> (its handle, a weak reference to it)


def is_adopted(t):
    """True for a tensor of ours whose handle is beside it: the engine holds a weak reference to it."""
    return <size_t><PyObject *>t in _adopted


cdef object _forgetting(object address):
    def forget(_reference):
        _adopted.pop(address, None)            # the same number object: there may be no memory for another

    return forget


def get_handle(t):
    """The engine's handle of lazy tensor `t`, or None."""
    return handle_of(t)


cdef object wrap(uint32_t slot, uint32_t meta, bint no_grad, Record *r, const void *floats):
    """A new LazyTensor for value `slot` with metadata `meta`. `r`, `floats`: of the record that makes it."""
    cdef MetaS *m
    cdef PyObject *argv[9]
    cdef Py_ssize_t n_args = 6
    cdef object t, offset = None
    cdef Handle h = new_handle(tape, slot, meta)     # from here on the metadata's objects cannot go
    cdef int bits
    cdef bint inference = False
    h.no_grad = no_grad
    if r:
        h.set_call(r.sig, floats)
        h.module = r.module
        h.loc = r.loc
        h.phase = r.phase
    m = &tape.interner.metas[meta]
    bits = m.bits
    if keeping:
        inference = not no_keys() and PyObject_CallNoArgs(inference_enabled)
        t = take(tape, meta, inference)
        if t is not None:
            give_handle(t, h)
            return t
    if m.offset:
        offset = m.offset
    argv[0] = NULL
    argv[1] = fast_type
    argv[2] = m.size
    argv[3] = m.stride if m.stride else <PyObject *>None
    argv[4] = <PyObject *>offset
    argv[5] = <PyObject *>None
    argv[6] = m.dtype
    if m.offset and not m.stride:
        stride = contiguous(<object>m.size)
        argv[3] = <PyObject *>stride
    if m.device < 0:
        argv[1] = dataless_type
        argv[7] = <PyObject *>strided
        argv[8] = <PyObject *>places[-1 - m.device]
        n_args = 8
    t = PyObject_Vectorcall(<PyObject *>make_wrapper, argv + 1, n_args, NULL)
    give_handle(t, h)
    if bits:
        set_view_bits(t, bits)
    elif keeping:
        learn(tape, meta, inference, t)
    return t


def canonical(size, tuple stride):
    """None when `stride` is what a new contiguous tensor of this size has, else `stride`."""
    return None if stride == contiguous(size) else stride


cdef tuple contiguous(object size):
    cdef list out = [1] * len(size)
    cdef int64_t acc = 1
    cdef Py_ssize_t k = len(size) - 1
    while k >= 0:
        out[k] = acc
        acc *= max(<int64_t>size[k], 1)
        k -= 1
    return tuple(out)


cdef uint32_t _meta_of_tensor(object tensor, int device) except 0:
    return tape.interner.meta_id(tensor.dtype, tensor.shape, canonical(tensor.shape, tensor.stride()),
                                 tensor.storage_offset(), device, view_bits(tensor))


def view_bits(tensor):
    """The MetaBits of a torch tensor, or of a handle: does its memory hold conjugates, or the other sign?"""
    if isinstance(tensor, Handle):
        return tape.interner.metas[(<Handle>tensor).meta].bits
    return (META_CONJ if tensor.is_conj() else 0) | (META_NEG if tensor.is_neg() else 0)


def set_view_bits(tensor, int bits):
    """Tell torch what view_bits() told; returns the tensor."""
    if bits & META_CONJ:
        set_conj(tensor, True)
    if bits & META_NEG:
        set_neg(tensor, True)
    return tensor


# ---- values --------------------------------------------------------------------------------------------------------
def hold(tensor, int device, root=None, bint no_grad=False):
    """A tensor of ours for an already computed torch tensor; `root` = the one of ours whose storage it shares.

    In a place that holds no data (`device` negative), only what is known about it is kept.
    """
    cdef Handle h = handle_of(root) if root is not None else None
    if tape.interner.bytes > tape.interner.evict_at:
        tape.evict()
    cdef uint32_t meta = _meta_of_tensor(tensor, device)
    cdef uint32_t slot = tape.hold(tensor if device >= 0 else None, tape.slot(h.slot).root if h is not None else 0)
    if listening and device < 0 and h is None:
        note_memory(slot, meta)
    out = wrap(slot, meta, no_grad, NULL, NULL)
    settle()
    return out


def position():
    """Where the next op is recorded."""
    return tape.tail


def tell_phase(uint64_t since, uint8_t phase):
    """What was recorded from there on in `PHASE_CANDIDATE` was in `phase`: of what still waits to be run."""
    cdef uint64_t seq
    cdef Record *r
    for seq in range(max(since, tape.head), tape.tail):
        r = tape.record(seq)
        if r != NULL and r.phase == PHASE_CANDIDATE:
            r.phase = phase


def meta_of(Handle h):
    """(dtype, size, stride or None when contiguous, storage offset, place) of a tensor of ours."""
    return tape.interner.meta(h.meta)


cdef bint is_ours(object cls) noexcept:
    """Is the class one of ours?"""
    return isinstance(cls, type) and is_subtype(<PyObject *>cls, base_type)


cpdef int device_index(t) except? -1:
    """The place of tensor `t`: the index of a remote_accelerator; negative: it holds no data (see MetaS.device)."""
    cdef Handle h = handle_of(t)
    return tape.interner.metas[h.meta].device if h is not None else 0


cdef object rename(Handle h, bint no_grad):
    """A new LazyTensor naming the same value as handle `h`; None when too many do already."""
    if tape.slot(h.slot).handles >= MAX_HANDLES:
        return None
    cdef object t = wrap(h.slot, h.meta, no_grad, NULL, NULL)
    cdef Handle n = <Handle>MT_SLOT(<PyObject *>t, slot_offset)
    n.follow(h)
    return t


def rebind(Handle h, Handle to):
    """Make `h` name the value of `to` from now on (assignment to `.data`)."""
    cdef uint32_t old = h.slot
    if tape.slot(to.slot).handles >= MAX_HANDLES:
        raise RuntimeError(f"more than {MAX_HANDLES} tensors would name one value")
    if old == to.slot:
        return
    tape.slot(to.slot).handles += 1
    h.slot = to.slot
    h.set_meta(to.meta)
    h.follow(to)
    tape.handle_died(old)


def may_require_grad(Handle h):
    """From now on the tensor of `h` and others on its storage are not taken to need no autograd."""
    h.no_grad = False
    tape.slot(tape.slot(h.slot).root).flags |= SLOT_GRAD


def needs_no_grad(Handle h):
    """True when it is certain that the tensor of `h` does not require grad."""
    return h.no_grad and not tape.slot(tape.slot(h.slot).root).flags & SLOT_GRAD


def same_root(Handle a, Handle b):
    """True when the two values are known to share their storage."""
    return tape.slot(a.slot).root == tape.slot(b.slot).root


def is_alone(Handle h):
    """True when nothing else names, reads or views the value, and it fills its storage."""
    cdef Slot *s = tape.slot(h.slot)
    cdef MetaS *m = &tape.interner.metas[h.meta]
    return s.handles <= 1 and not s.users and s.root == h.slot and not m.offset and not m.stride and not m.bits


def unshare(Handle h):
    """Give `h` a value of its own, sharing storage, if other tensors name the same one; it must be computed."""
    cdef Slot *s = tape.slot(h.slot)
    cdef uint32_t old = h.slot
    if s.handles <= 1 and not s.users:
        return
    value = object_of(s) if s.concrete else None
    if tape.interner.metas[h.meta].device < 0:
        value = None           # what is known of it is its root's
    h.slot = tape.hold(None if value is None else value.detach(), s.root)
    tape.slot(h.slot).handles = 1
    tape.handle_died(old)


def wrap_slot(int slot, int meta):
    """A LazyTensor for a value known by its slot (inputs of a pending record)."""
    tape.interner.meta(meta)       # refuses an id that is not in use
    cdef Slot *s = tape.slot(slot)
    cdef Record *r = tape.record(s.producer) if s.flags & SLOT_PENDING else NULL
    return wrap(slot, meta, True, r, rec_floats(r, tape.interner.sigs[r.sig]) if r else NULL)


def adopt(param, Handle h):
    """Give a tensor its own handle on the value of `h`. None: it is no longer one of ours.

    Without a slot, it is kept beside the object: what a program finds in `__dict__` it copies to other tensors.
    """
    cdef Handle n
    address = PyLong_FromVoidPtr(<PyObject *>param)
    if h is None:
        if is_subtype(type_of(<PyObject *>param), slotted_type):
            if MT_SLOT(<PyObject *>param, slot_offset):
                del param._handle
        else:
            _adopted.pop(address, None)
        return
    n = new_handle(tape, h.slot, h.meta)
    n.follow(h)
    n.no_grad = False
    if is_subtype(type_of(<PyObject *>param), slotted_type):
        param._handle = n
    else:
        _adopted[address] = (n, reference(param, _forgetting(address)))


def value(Handle h):
    """The computed torch tensor behind `h`, None while it is pending. Raises the stored error if its op failed.

    Of a tensor without data: None.
    """
    cdef Slot *s = tape.slot(h.slot)
    if not s.concrete:
        return None
    if s.flags & SLOT_FAILED:
        raise again(<object>s.concrete)
    if s.flags & SLOT_PENDING:
        return None
    return object_of(s)


def computed():
    """(slot, what stands for its value) of all values that are computed."""
    cdef list out = []
    cdef Slot *s
    cdef uint32_t i = 1
    cdef object value
    while i < tape.n_slots:
        s = tape.slot(i)
        if s.flags & SLOT_USED and not s.flags & (SLOT_PENDING | SLOT_FAILED) and s.concrete:
            value = object_of(s)           # first: what follows makes objects, and slots may die then
            if value is not None and not isinstance(value, _Noted):
                out.append((i, value))
        i += 1
    return out


def exchange(uint32_t slot, old, value):
    """Let `value` stand for what `old` stood for; an exception: it has failed. Not where the slot is another's by now.
    """
    cdef Slot *s
    if slot >= tape.n_slots:
        return
    s = tape.slot(slot)
    if not s.flags & SLOT_USED or s.flags & (SLOT_PENDING | SLOT_FAILED) or s.concrete != <PyObject *>old:
        return
    Py_INCREF(value)
    s.concrete = <PyObject *>value
    if isinstance(value, BaseException):
        s.flags |= SLOT_FAILED
    Py_DECREF(old)


# ---- what estimates know of tensors without data ---------------------------------------------------------------------
cdef bint has_kept(uint32_t slot) noexcept:
    """Is there a real storage beside the tensor without data?"""
    cdef Slot *root = tape.slot(tape.slot(slot).root)
    return root.concrete != NULL and type_of(root.concrete) == <PyObject *>_Kept


cdef bint has_noted(uint32_t slot) noexcept:
    """Is anything known of a tensor without data: its memory, or what was decided of it?"""
    cdef Slot *root = tape.slot(tape.slot(slot).root)
    return root.concrete != NULL and root.concrete != <PyObject *>None


cdef class _Noted:
    """In the place of the value of a tensor without data: what an estimate knows of it. No executor has it."""


cdef class _Kept(_Noted):
    """A plain tensor on the real storage."""
    cdef object tensor

    def __init__(self, tensor):
        self.tensor = tensor


cdef class _Decided(_Noted):
    """What all its elements are taken for, of which dtype and how many they are."""
    cdef object value, dtype, size

    def __init__(self, value, dtype, size):
        self.value, self.dtype, self.size = value, dtype, size


def decided(Handle h):
    """What `decide` said of the elements of the storage of `h`, if nothing was written to it since; else None."""
    cdef MetaS *m = &tape.interner.metas[h.meta]
    cdef PyObject *found = tape.slot(tape.slot(h.slot).root).concrete
    if m.device >= 0 or found == NULL or type_of(found) != <PyObject *>_Decided:
        return None
    return (<_Decided>found).value if (<_Decided>found).dtype is <object>m.dtype else None


def decide(Handle h, value):
    """All elements of `h` are taken for `value`, though nobody knows them: those of its storage, of which views say so.

    False where it is but a part of a storage whose other elements are taken for something else, or nothing.
    """
    cdef MetaS *m = &tape.interner.metas[h.meta]
    cdef PyObject *found = tape.slot(tape.slot(h.slot).root).concrete
    cdef object size = <object>m.size
    if not is_root(h):
        if decided(h) is None or (decided(h) != value and size.numel() != (<_Decided>found).size.numel()):
            return False
        size = (<_Decided>found).size
    note(h, _Decided(value, <object>m.dtype, size))
    return True


def is_kept(Handle h):
    """True when keep() gave the storage of `h` real memory, and lose() has not taken it."""
    return tape.interner.metas[h.meta].device < 0 and has_kept(h.slot)


def kept(Handle h):
    """The real value of a tensor without data: a plain tensor on the storage that all its views share; None: unknown.

    Not to be resized. It is made from the handle's own sizes and strides, so there is nothing to go stale.
    """
    cdef MetaS *m = &tape.interner.metas[h.meta]
    if m.device >= 0 or not has_kept(h.slot):
        return None
    cdef object base = (<_Kept>tape.slot(tape.slot(h.slot).root).concrete).tensor
    cdef object dtype = <object>m.dtype, size = <object>m.size, stride
    cdef int64_t offset = m.offset
    cdef int bits = m.bits
    stride = <object>m.stride if m.stride else None
    if base.dtype is dtype and not offset and base.shape == size and (
        base.is_contiguous() if stride is None else base.stride() == stride
    ) and not base.storage_offset():
        return base            # as it was kept: no need for another view
    if stride is None:
        stride = contiguous(size)
    try:
        if base.dtype is dtype:
            base = as_strided(base, size, stride, offset)
        else:
            base = empty(0, dtype=dtype, device="cpu").set_(base.untyped_storage(), offset, size, stride)
    except RuntimeError:
        return None            # it goes on behind what is kept (resize_)
    return set_view_bits(base, bits) if bits else base


def keep(Handle h, tensor):
    """From now on the memory of plain `tensor`, from the start of its storage, is that of `h` and all its views."""
    if tape.interner.metas[h.meta].device >= 0:
        raise ValueError("[keep] expected a tensor without data, got a lazy one")
    note(h, _Kept(tensor))


cdef void note(Handle h, _Noted noted):
    cdef Slot *s = tape.slot(tape.slot(h.slot).root)
    cdef PyObject *old = s.concrete
    Py_INCREF(noted)
    s.concrete = <PyObject *>noted
    if old:
        Py_DECREF(<object>old)


def is_root(Handle h):
    """True when the storage of `h` is its own: it is no view."""
    return tape.slot(h.slot).root == h.slot


def root_slot(Handle h):
    """Number of the slot that owns the storage: the same for all that share it, another's once they are gone."""
    return tape.slot(h.slot).root


def lose(Handle h):
    """Something unknown was written to the storage: nothing on it is known any more."""
    if tape.interner.metas[h.meta].device < 0:
        forget_kept(h.slot)


cdef void forget_kept(uint32_t slot) noexcept:
    cdef Slot *s = tape.slot(tape.slot(slot).root)
    cdef PyObject *old = s.concrete
    s.concrete = NULL
    if old:
        Py_DECREF(<object>old)


def segment(list handles, list written):
    """The Segment of pending records that the values need; `written` = values about to be written off the tape."""
    cdef Py_ssize_t n = len(handles), m = len(written), k
    cdef uint32_t *ids = <uint32_t *>calloc(n + m + 1, sizeof(uint32_t))
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


def sweep():
    """Drop every pending record whose effect nobody can see."""
    tape.sweep()


def rng_segment(int device):
    """The Segment of the device's pending random draws (before a draw or a seed that happens off the tape)."""
    cdef uint32_t rng = tape.rng_of(device)
    return plan_segment(tape, &rng, 1, NULL, 0)


def set_meta(Handle h, tensor):
    """The value's metadata changed (resize_, set_): remember the new one."""
    cdef int device = tape.interner.metas[h.meta].device
    h.set_meta(_meta_of_tensor(tensor, device))
    if listening and device < 0 and tape.slot(h.slot).root == h.slot:
        note_memory(h.slot, h.meta)
        settle()


cdef SigS *_sig(uint32_t sig) except NULL:
    if sig == 0 or sig >= tape.interner.n_sigs or not tape.interner.sigs[sig]:
        raise KeyError(f"call {sig} is not interned")
    return tape.interner.sigs[sig]


def correct_output(uint32_t sig, uint32_t out, tensor):
    """The first run disagreed with the prediction: later recordings of this call predict what came.

    They get a call entry of their own. What was recorded before keeps the old one, and its promise.
    """
    cdef int device = tape.interner.metas[sig_out_meta(_sig(sig))[out]].device
    cdef uint32_t corrected, meta
    tape.interner.frozen += 1
    try:
        meta = _meta_of_tensor(tensor, device)
        corrected = tape.interner.replacement(sig)
        sig_out_meta(_sig(corrected))[out] = meta
    finally:
        tape.interner.frozen -= 1


def sig_output_meta(uint32_t sig, uint32_t out):
    """(dtype, size, stride or None, offset, device index) predicted for output `out` of call `sig`."""
    return tape.interner.meta(sig_out_meta(_sig(sig))[out])


def output_metas(uint32_t sig):
    """Metadata ids of the outputs of call `sig`."""
    cdef SigS *s = _sig(sig)
    cdef list out = []
    cdef uint32_t k
    for k in range(s.n_out):
        out.append(sig_out_meta(s)[k])
    return out


def sig_outputs(uint32_t sig):
    """How many tensors call `sig` makes; those that it returns as they came, or writes in place, are not among them."""
    return _sig(sig).n_out


def sig_is_view(uint32_t sig):
    """True when the call's outputs alias its inputs."""
    return bool(_sig(sig).flags & SIG_VIEW)


def sig_returns(uint32_t sig):
    """Which of a call's results are its outputs: None for a single one that is; else a tuple whose first entry says how
    they are returned, then for each the output's number, less than 0 for an input, None for what is no tensor.
    """
    cdef SigS *s = _sig(sig)
    return <object>s.ret if s.ret else None


def sig_written(uint32_t sig):
    """Which of a call's holes are tensors that it writes."""
    cdef SigS *s = _sig(sig)
    cdef list out = []
    cdef uint32_t k
    for k in range(s.n_in):
        if sig_writes(s)[k]:
            out.append(k)
    return tuple(out)


def sig_info(uint32_t sig):
    """The OpInfo of call `sig`."""
    return <OpInfo>_sig(sig).info


def sig_generator(uint32_t sig):
    """Index of the device whose generator call `sig` draws from, -1 if it draws nothing."""
    cdef SigS *s = _sig(sig)
    return s.device if s.flags & SIG_RANDOM else -1


def sig_floats(uint32_t sig):
    """How many floats of call `sig` stand in its records."""
    return _sig_floats(_sig(sig))


def call_template(uint32_t sig, tuple inputs, device=None, tuple floats=()):
    """(args, kwargs) of call `sig` with `inputs` in its holes, and `floats` where its records have those."""
    cdef SigS *s = _sig(sig)
    cdef PyObject **ptrs
    cdef Py_ssize_t k
    if len(inputs) != s.n_in:
        raise ValueError(f"[{(<OpInfo>s.info).name}] expected {s.n_in} inputs, got {len(inputs)}")
    if len(floats) != _sig_floats(s):
        raise ValueError(f"[{(<OpInfo>s.info).name}] expected {_sig_floats(s)} floats, got {len(floats)}")
    inputs += floats
    ptrs = <PyObject **>calloc(len(inputs) + 1, sizeof(PyObject *))
    if not ptrs:
        raise MemoryError()
    try:
        for k in range(len(inputs)):
            ptrs[k] = <PyObject *>PyTuple_GET_ITEM(inputs, k)
        return decode_call(sig_key(s), ptrs, ptrs + s.n_in, device)
    finally:
        free(ptrs)


def producer(Handle h):
    """describe() of the pending record that makes the value, or None once it has run."""
    cdef Slot *s = tape.slot(h.slot)
    if not s.flags & SLOT_PENDING:
        return None
    return tape.describe(s.producer)


def forget_calls():
    """Infer every call afresh from now on (something that results depend on has changed)."""
    tape.interner.forget_calls()


def set_world(uint32_t number):
    """Find only calls first recorded under this number, from now on: one for each state of torch's settings."""
    _set_world(number)


def keep_calls(bint on):
    """While on (calls nest), no interned call or metadata goes: for readers that keep ids across records."""
    if on:
        tape.interner.frozen += 1
    else:
        tape.interner.frozen -= 1


def input_metas(uint32_t sig):
    """Metadata ids of the inputs of call `sig`, in the order of its holes."""
    cdef list out = []
    cdef SigS *s = _sig(sig)
    cdef uint32_t *metas = <uint32_t *>malloc((<size_t>s.n_in + 1) * sizeof(uint32_t))
    cdef uint32_t k
    if not metas:
        raise MemoryError()
    try:
        hole_metas(sig_key(s), metas)
        for k in range(s.n_in):
            out.append(metas[k])
    finally:
        free(metas)
    return out


def constants(Handle h):
    """(args, kwargs) of the call that made the value, with None in place of tensors."""
    cdef SigS *s = _sig(h.sig)
    return call_template(h.sig, (None,) * s.n_in, None, floats_at(h.floats(), _sig_floats(s)))
