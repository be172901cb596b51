"""Calls of torch's methods that come to the same each time, done without torch's detours (SPEC S14).

Views, writes and conversions go through torch's layers down to the dispatch level, as autograd counts versions and says
which tensor is a view of which. For the same method, arguments and metadata they come to the same there: views of one
tensor, one write, one new tensor, or the tensor itself. So a call goes torch's way twice, and what the second time has
recorded is remembered by the call's key. From then on the records are made at once; a view is made by torch's own
operator (native_views.pyx), a write without gradient advances the version.

Nothing is remembered of calls that read values, run something or record anything else. Modes, transforms, forward-mode
AD and inference mode go torch's way.
"""
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

from .context cimport current_location, current_module, current_phase
from .intern cimport RETURNS_TENSOR, OpInfo, hash_key, sig_alias, sig_key, sig_out_meta, sig_written
from .intercept cimport NOT_RECORDED, counted_whole, finish, grad_is_off, grad_mode, limit, may_be_short
from .kept_wrappers cimport advance, version
from .keys cimport OK, Key, asks_first, current_key, encode, encode_call, room, somebody_asks_first, start
from .lazy cimport class_of_results, contiguous, get_tape, give_handle, handle_of, type_of
from .native_views cimport View, describe, make
from .overlap cimport refused_overlap
from .structs cimport NO_PLACE, REC_GRAD, SIG_FORGOTTEN, SIG_RANDOM, SIG_VIEW, SIG_WRITES, Record, SigS
from .tape cimport Handle, Tape, new_handle, rec_floats, rec_ins, rec_outs, sig_floats
from .template cimport decode_call, n_floats
from .view_chains cimport is_long

cdef extern from "Python.h":
    object PyObject_CallNoArgs(object callable)

cdef enum:
    PLACES = 2048
    MET = 4096
    ALIKE = 8                  # places for calls whose hashes are alike, the last that was used first
    MAX_VIEWS = 4              # that one call makes, one of the other
    NO_ALIAS = 0xFFFF
    SLICE = 0xF0               # no tag of a template: keys here are not read back

cdef enum Kind:
    TORCHS = 0                 # torch has to see the call
    SAME = 1                   # it returns its tensor
    VIEWS = 2
    NEW = 3                    # without gradient, a new tensor
    WRITE = 4                  # without gradient

cdef struct Way:
    uint32_t hash, keylen
    uint32_t sids[MAX_VIEWS]   # the records
    uint8_t kind, n_views
    uint32_t unused            # so that what follows is aligned for words of eight bytes
    # … the views, the key

cdef Way *ways[PLACES]
cdef uint32_t met[MET]         # hashes of calls that were made once: what is remembered pays from the third on
cdef uint64_t evictions = 0
cdef size_t held = 0           # bytes
cdef int busy = 0              # ways are in use
cdef bint may_remember = False
cdef OpInfo asked = None       # by a method, before torch asks about the same call
cdef uint32_t asked_serial = 0
cdef bint certain = False      # of the encoded call: nothing that it gives can have a gradient
cdef bint usable = False
cdef Tape tape = None
cdef Key *K = current_key()
cdef PyObject *NOTHING = <PyObject *>None      # in place of a tensor
cdef object NO_LEVEL = -1                      # of forward-mode AD; CPython has one such number
cdef PyObject *no_level = NULL
cdef dict forward_ad
cdef object getitem, anomalies, empty_strided, plain_class, meta_device


def start_with(torch):
    """From now on, remember what calls come to. Called once, after lazy.init()."""
    global tape, getitem, anomalies, forward_ad, no_level, empty_strided, plain_class, meta_device, usable
    tape = get_tape()
    getitem = torch.Tensor.__getitem__
    anomalies = torch.is_anomaly_enabled
    forward_ad = torch.autograd.forward_ad.__dict__
    no_level = <PyObject *>NO_LEVEL
    empty_strided = torch._C._VariableFunctions.empty_strided
    plain_class = torch.Tensor
    meta_device = torch.device("meta")
    usable = True


def remembered():
    """(calls that are remembered, bytes that they take)."""
    cdef int i, n = 0
    for i in range(PLACES):
        n += ways[i] != NULL
    return n, held


def forget():
    """Let all calls go torch's way once more, as if they had not been made."""
    clear()
    memset(met, 0, sizeof(met))


cdef inline View *views_of(Way *w) noexcept:
    return <View *>(w + 1)


cdef inline uint8_t *key_of(Way *w) noexcept:
    return <uint8_t *>(views_of(w) + w.n_views)


cdef inline size_t size_of(Way *w) noexcept:
    return sizeof(Way) + w.n_views * sizeof(View) + w.keylen


cdef void drop(Way **place) noexcept:
    global held
    if place[0] != NULL:
        held -= size_of(place[0])
        free(place[0])
        place[0] = NULL


cdef void clear() noexcept:
    """The numbers of calls may be those of others by now. While ways are in use, none goes."""
    global evictions
    cdef int i
    if busy:
        return
    for i in range(PLACES):
        drop(&ways[i])
    evictions = tape.interner.evictions


# ---- keys ------------------------------------------------------------------------------------------------------------
cdef bint is_encoded(OpInfo info, tuple args, dict kwargs) except -1:
    cdef PyObject *index
    cdef Py_ssize_t k
    if info.func is not getitem:
        return encode_call(info, args, kwargs) == OK and 0 <= K.device < NO_PLACE
    if PyTuple_GET_SIZE(args) != 2 or kwargs:
        return False
    room(64)
    start(info, 2, 0)
    index = PyTuple_GET_ITEM(args, 1)
    if encode(PyTuple_GET_ITEM(args, 0)) != OK or not 0 <= K.device < NO_PLACE:
        return False
    if type(<object>index) is not tuple:
        return is_index(index)
    for k in range(PyTuple_GET_SIZE(<object>index)):
        if not is_index(<PyObject *>PyTuple_GET_ITEM(<object>index, k)):
            return False
    return True


cdef bint is_index(PyObject *o) except -1:
    """Append an index to the key; False for all but ints, slices of them, None and Ellipsis."""
    cdef object one = <object>o
    if type(one) is slice:
        room(64)
        K.buf[K.n] = SLICE
        K.n += 1
        for part in (one.start, one.stop, one.step):
            if part is not None and type(part) is not int or encode(<PyObject *>part) != OK:
                return False
        return True
    return (one is None or one is Ellipsis or type(one) is int) and encode(o) == OK


cdef inline Way **places_of(uint32_t hash) noexcept:
    return &ways[hash % (PLACES // ALIKE) * ALIKE]


cdef Way *find(uint32_t hash) noexcept:
    cdef Way **places = places_of(hash)
    cdef Way *w
    cdef int k
    for k in range(ALIKE):
        w = places[k]
        if w == NULL:
            break
        if w.hash == hash and w.keylen == K.n and not memcmp(key_of(w), K.buf, K.n):
            memmove(places + 1, places, k * sizeof(Way *))
            places[0] = w
            return w
    return NULL


cdef bint was_met(uint32_t hash) noexcept:
    """Was the call made before, as far as is known? It is from now on."""
    cdef uint32_t *hashes = &met[hash % (MET // ALIKE) * ALIKE]
    cdef int k = 0
    while k < ALIKE - 1 and hashes[k] != hash:
        k += 1
    cdef bint found = hashes[k] == hash
    memmove(hashes + 1, hashes, k * sizeof(uint32_t))
    hashes[0] = hash
    return found


# ---- calls -----------------------------------------------------------------------------------------------------------
cdef bint is_seen_by_torch(tuple args) except -1:
    """Has something in torch, or a class of the program's, to see how the call is made?"""
    cdef Py_ssize_t k
    if not may_be_short() or PyDict_GetItem(forward_ad, "_current_level") != no_level:
        return True
    if somebody_asks_first():
        for k in range(PyTuple_GET_SIZE(args)):
            if asks_first(type_of(<PyObject *>PyTuple_GET_ITEM(args, k))):
                return True
    return False


cdef object first(OpInfo info, tuple args, dict kwargs):
    global asked, asked_serial
    out = shortcut(info, args, kwargs)
    if out is NOT_RECORDED:
        asked, asked_serial = info, K.serial
    return out


cdef object shortcut(OpInfo info, tuple args, dict kwargs):
    global may_remember, certain, asked
    cdef Way *w
    cdef uint32_t i, hash
    if asked is info and asked_serial == K.serial:
        asked = None                           # the method has asked: no other call was looked at since
        return NOT_RECORDED
    may_remember = False
    if not usable or is_seen_by_torch(args) or not is_encoded(info, args, kwargs):
        return NOT_RECORDED
    grad_is_off()
    certain = not (grad_mode() and K.uncertain)
    if tape.interner.evictions != evictions:
        clear()
    hash = hash_key(K.buf, <uint32_t>K.n)
    w = find(hash)
    if w == NULL:
        may_remember = was_met(hash)
    if w == NULL or w.kind == TORCHS or (w.kind >= NEW and not certain):
        return NOT_RECORDED
    if w.kind == SAME:
        counted_whole()
        return <object>K.objs[0]
    for i in range(max(w.n_views, 1)):
        if tape.interner.sigs[w.sids[i]].flags & SIG_FORGOTTEN:
            may_remember = True                # the first run disagreed with the prediction: what comes now is new
            return NOT_RECORDED
    if w.kind == WRITE:
        return written(w)
    if w.kind == NEW:
        counted_whole()
        return finish(w.sids[0])
    if is_long(args, kwargs) or (not certain and PyObject_CallNoArgs(anomalies)):
        return NOT_RECORDED                    # nodes look for the line that they are made at, in Python
    return viewed(w)


cdef object written(Way *w):
    cdef SigS *s = tape.interner.sigs[w.sids[0]]
    cdef object out
    if refused_overlap(<OpInfo>s.info, s) or version(K.objs[0]) < 0:
        return NOT_RECORDED
    counted_whole()
    out = finish(w.sids[0])
    advance(<PyObject *>out)
    return out


cdef object viewed(Way *w):
    """Record the views, and have torch make the last one."""
    global busy
    cdef object base = <object>K.objs[0], out
    cdef bint grad = grad_mode(), no_node = certain
    cdef uint32_t slot = K.ins[0], module, loc, before = 0
    cdef int i
    cdef Record *r = NULL
    cdef Record last
    cdef double none = 0
    cdef Handle h
    busy += 1                                  # asking where the program is may run a finalizer
    tape.interner.frozen += 1
    try:
        module = current_module()
        loc = current_location()
        out = make(<PyObject *>base, views_of(w), w.n_views, class_of_results(), no_node)
        if out is None:
            return NOT_RECORDED
        for i in range(w.n_views):
            r = tape.append(w.sids[i], &slot, &none, module, loc, current_phase())
            if grad:
                r.flags |= REC_GRAD
            slot = rec_outs(r, tape.interner.sigs[w.sids[i]])[0]
            tape.slot(slot).handles += 1       # until the next one has it
            if before:
                tape.handle_died(before)
            before = slot
        last = r[0]
        h = new_handle(tape, slot, sig_out_meta(tape.interner.sigs[last.sig])[0])
        tape.handle_died(slot)
        before = 0
        h.no_grad = grad and no_node
        h.set_call(last.sig, &none)
        h.module, h.loc, h.phase = last.module, last.loc, last.phase
        h.steps = handle_of(base).steps + w.n_views
        give_handle(out, h)
    finally:
        if before:
            tape.handle_died(before)
        tape.interner.frozen -= 1
        busy -= 1
    counted_whole()
    limit()
    return out


# ---- what calls come to ----------------------------------------------------------------------------------------------
cdef int64_t version_of(PyObject *o) except? -1:
    return version(o) if handle_of(<object>o) is not None else -1


cdef int remember(OpInfo info, tuple args, dict kwargs, uint64_t since, int64_t before, object out) except -1:
    """Torch has seen the call: keep what it came to, or that it has to see the next one, too."""
    global held
    cdef Way made
    cdef View views[MAX_VIEWS]
    cdef Way *w
    cdef Way **place
    cdef int k
    cdef uint64_t n = tape.tail - since
    cdef bint gradless
    made.kind, made.n_views = TORCHS, 0
    if busy or n > MAX_VIEWS:
        return 0
    tape.interner.frozen += 1                  # what looks at the records makes objects
    try:
        if not is_encoded(info, args, kwargs):
            return 0
        grad_is_off()
        gradless = not (grad_mode() and K.uncertain)
        if n == 0:
            if K.n_ins != 1 or K.objs[0] != <PyObject *>out or version(K.objs[0]) != before or not info.copies:
                return 0
            made.kind = SAME
        elif info.view and are_views(&made, views, since, <int>n, out):
            made.kind, made.n_views = VIEWS, <uint8_t>n
        elif n == 1 and gradless and is_write(&made, since, before, out):
            made.kind = WRITE
        elif n == 1 and gradless and info.copies and is_new(&made, since, out):
            made.kind = NEW
        elif not gradless:
            return 0
        if not is_encoded(info, args, kwargs):
            return 0
        if tape.interner.evictions != evictions:
            clear()
        made.hash = hash_key(K.buf, <uint32_t>K.n)
        made.keylen = <uint32_t>K.n
        w = <Way *>malloc(size_of(&made))
        if w == NULL:
            return 0
        w[0] = made
        memcpy(views_of(w), views, made.n_views * sizeof(View))
        memcpy(key_of(w), K.buf, K.n)
        place = places_of(made.hash)
        k = 0 if find(made.hash) != NULL else ALIKE - 1      # of the same call, or used least recently
        drop(place + k)
        memmove(place + 1, place, k * sizeof(Way *))
        place[0] = w
        held += size_of(w)
    finally:
        tape.interner.frozen -= 1
    return 0


cdef SigS *sig_of(Record *r) noexcept:
    """Its call; NULL where the record is gone, or its call is described anew."""
    cdef SigS *s = NULL if r == NULL else tape.interner.sigs[r.sig]
    return NULL if s == NULL or s.flags & (SIG_FORGOTTEN | SIG_RANDOM) else s


cdef bint has_the_calls_inputs(Record *r, SigS *s) noexcept:
    """Are the record's tensors and floats those of the encoded call, in its order?"""
    cdef uint32_t i
    if s.n_in != K.n_ins or sig_floats(s) != n_floats(K.buf):
        return False
    for i in range(s.n_in):
        if rec_ins(r)[i] != K.ins[i]:
            return False
    return not memcmp(rec_floats(r, s), K.floats, sig_floats(s) * sizeof(double))


cdef bint is_write(Way *made, uint64_t since, int64_t before, object out) except -1:
    """Is the record a write to the call's first tensor, which it gives?"""
    cdef Record *r = tape.record(since)
    cdef SigS *s = sig_of(r)
    cdef uint32_t i
    if s == NULL or not s.flags & SIG_WRITES or s.n_out or (<OpInfo>s.info).bumps:
        return False
    if <object>s.ret != (RETURNS_TENSOR, -1) or K.objs[0] != <PyObject *>out or version(K.objs[0]) != before + 1:
        return False
    if not has_the_calls_inputs(r, s):
        return False
    for i in range(s.n_in):
        if sig_written(s)[i] != (i == 0):
            return False
    made.sids[0] = r.sig
    return True


cdef bint is_new(Way *made, uint64_t since, object out) except -1:
    """Does the record make the tensor that the call gives, in memory of its own?"""
    cdef Record *r = tape.record(since)
    cdef SigS *s = sig_of(r)
    cdef Handle h = handle_of(out)
    if s == NULL or s.n_out != 1 or s.ret or not has_the_calls_inputs(r, s):
        return False
    if h is None or h.slot != rec_outs(r, s)[0] or h.meta != sig_out_meta(s)[0] or sig_alias(s)[0] != NO_ALIAS:
        return False
    made.sids[0] = r.sig
    return True


cdef bint are_views(Way *made, View *views, uint64_t since, int n, object out) except -1:
    """Are the records views, each of the one before, from the call's tensor to what it gave? Can torch make them?"""
    cdef uint32_t slot = K.ins[0], meta = K.metas[0], first = meta
    cdef Handle h = handle_of(out)
    cdef Record *r
    cdef SigS *s
    cdef int i
    if K.n_ins != 1 or h is None or type_of(<PyObject *>out) != class_of_results() or tape.interner.metas[meta].bits:
        return False
    for i in range(n):
        r = tape.record(since + i)
        s = sig_of(r)
        if s == NULL or not s.flags & SIG_VIEW or s.n_in != 1 or s.n_out != 1 or s.ret or rec_ins(r)[0] != slot:
            return False
        slot = rec_outs(r, s)[0]
        meta = sig_out_meta(s)[0]
        made.sids[i] = r.sig
        if tape.interner.metas[meta].bits:
            return False
    if slot != h.slot or meta != h.meta:
        return False
    for i in range(n):
        s = tape.interner.sigs[made.sids[i]]
        given, names = decode_call(sig_key(s), &NOTHING, NULL, None)
        if names or not describe(&views[i], (<OpInfo>s.info).func.name(), given[1:]):
            return False
    return is_the_same(views, n, tape.interner.meta(first), tape.interner.meta(meta))


cdef bint is_the_same(View *views, int n, tuple before, tuple after) except -1:
    """Does torch make what the records say, of a tensor like that?"""
    dtype, size, stride, offset, _ = before
    stride = contiguous(size) if stride is None else stride
    length = offset + 1 + sum((many - 1) * step for many, step in zip(size, stride, strict=True) if many)
    base = empty_strided((length,), (1,), dtype=dtype, device=meta_device).as_strided_(size, stride, offset)
    view = make(<PyObject *>base, views, n, <PyObject *>plain_class, True)
    if view is None or view.dtype is not after[0]:
        return False
    stride = contiguous(after[1]) if after[2] is None else after[2]
    return view.shape == after[1] and view.stride() == stride and view.storage_offset() == after[3]
