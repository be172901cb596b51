"""Interning of tensor metadata and of calls.

Programs repeat themselves: layers share shapes, steps share calls. A record therefore names its call by one 32-bit
id. The entry behind the id (SigS) holds the function, the constants, the metadata of the inputs and the inferred
metadata of the outputs, so recording a known call is one hash probe and no inference.

Ownership: the Interner owns every struct and every Python object referenced from one, until the entry is evicted.
Objects a key points to (dtypes, layouts, memory formats, interned names) are immortal.

An id is good as long as a handle or a pending record names it, or the table is `frozen`. When a program's shapes keep
changing and the tables reach their limit, what nothing names is freed and its id used again (Tape.evict).
"""
cimport cython
from cpython.object cimport PyObject_Hash, PyObject_RichCompareBool, Py_EQ
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from .structs cimport (
    MAX_INPUTS, MAX_SIGS, SIG_BLIND, SIG_FOLDS, SIG_FORGOTTEN, SIG_HIT, SIG_RANDOM, SIG_SMALL, SIG_VERIFIED, SIG_VIEW,
    SIG_WRITES, MetaS, SigS,
)
from .native_calls cimport NativeCall
from .template cimport hole_metas

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object o, int *overflow) except? -1

cdef enum:
    LIMIT = 64 << 20           # bytes; some 150,000 distinct calls
    AT_ONCE = 16 << 20         # bytes of new calls at which to look first: most of them may be made only once


cdef enum:
    SHARED = 64                # entries back that a size or stride is looked for, to be held once
    LEAST_CAP = 1024           # entries that there stays room for


cdef uint32_t world = 0        # state of torch's settings under which calls are looked up and added; see set_world


cdef void set_world(uint32_t number) noexcept:
    # An odd factor: the same key has another hash in each world, so that entries of one are not found in another.
    global world
    world = number * <uint32_t>0x9E3779B1


cdef uint32_t hash_key(const uint8_t *key, uint32_t n) noexcept:
    # 8 bytes at a time, multiply-xorshift (the finalizer of splitmix64); the key is short and trusted.
    cdef uint64_t h = 0x9E3779B97F4A7C15ULL ^ n
    cdef uint64_t w
    cdef uint32_t i = 0
    while i + 8 <= n:
        memcpy(&w, key + i, 8)
        h = (h ^ w) * 0xBF58476D1CE4E5B9ULL
        h ^= h >> 29
        i += 8
    w = 0
    if i < n:
        memcpy(&w, key + i, n - i)
        h = (h ^ w) * 0xBF58476D1CE4E5B9ULL
        h ^= h >> 29
    h *= 0x94D049BB133111EBULL
    h ^= h >> 32
    return <uint32_t>h ^ world


cdef uint32_t hash_meta(PyObject *dtype, object size, object stride, int64_t offset, int16_t device,
                        uint16_t bits) except? 0:
    cdef uint64_t h = <uint64_t>PyObject_Hash(size) ^ (<uint64_t>dtype >> 4)
    if stride is not None:
        h = h * 31 + <uint64_t>PyObject_Hash(stride)
    h = (h ^ <uint64_t>offset * 0x9E3779B97F4A7C15ULL) + <uint64_t>device * 0x51ED27 + <uint64_t>bits * 0xA511E9
    return <uint32_t>(h * 0xBF58476D1CE4E5B9ULL >> 32)


cdef uint32_t _mask_for(uint32_t cap) noexcept:
    """Of an index for so many entries, with a quarter of it empty."""
    cdef uint32_t mask = 31
    while <uint64_t>cap * 4 > (<uint64_t>mask + 1) * 3:
        mask = mask * 2 + 1
    return mask


@cython.final
cdef class Interner:
    def __cinit__(self, size_type):
        self.size_type = size_type
        self.cap_metas = self.cap_sigs = 16
        self.meta_mask = self.sig_mask = _mask_for(16)
        self.metas = <MetaS *>calloc(self.cap_metas, sizeof(MetaS))
        self.sigs = <SigS **>calloc(self.cap_sigs, sizeof(SigS *))
        self.meta_index = <uint32_t *>calloc(self.meta_mask + 1, 4)
        self.sig_index = <uint32_t *>calloc(self.sig_mask + 1, 4)
        if not self.metas or not self.sigs or not self.meta_index or not self.sig_index:
            raise MemoryError()
        self.n_metas = 1       # id 0 means "none"
        self.n_sigs = 1
        self.meta_hole = 1
        self.sig_hole = 1
        self._measure(set())
        self.set_limit(LIMIT)

    def __dealloc__(self):
        cdef uint32_t i
        if self.metas:
            for i in range(1, self.n_metas):
                if self.metas[i].size:
                    self._free_meta(i)
        if self.sigs:
            for i in range(1, self.n_sigs):
                if self.sigs[i]:
                    self._free_sig(i)
        free(self.metas)
        free(self.sigs)
        free(self.meta_index)
        free(self.sig_index)

    cdef void _free_sig(self, uint32_t sid) noexcept:
        cdef SigS *s = self.sigs[sid]
        if s.ret:
            Py_DECREF(<object>s.ret)
        self.bytes -= self.sig_bytes(s)
        if has_native(s):
            Py_DECREF(<object>s.native)
        free(s)
        self.sigs[sid] = NULL
        self.used_sigs -= 1

    cdef void _free_meta(self, uint32_t mid) noexcept:
        cdef MetaS *m = &self.metas[mid]
        Py_DECREF(<object>m.size)
        m.size = NULL
        if m.stride:
            Py_DECREF(<object>m.stride)
            m.stride = NULL
        self.used_metas -= 1

    cdef uint32_t sig_bytes(self, SigS *s) noexcept:
        return <uint32_t>(sig_size(s) + ((<NativeCall>s.native).nbytes if has_native(s) else 0))

    # ---- metadata ----------------------------------------------------------------------------------------------
    cdef uint32_t meta_id(self, object dtype, object size, object stride, int64_t offset, int16_t device,
                          uint16_t bits) except 0:
        """Id of this metadata; `stride` is None for a contiguous tensor. The size is kept as torch.Size."""
        if type(size) is not self.size_type:
            size = self.size_type(size)      # first: making an object may run a finalizer that interns, too
        cdef uint32_t h = hash_meta(<PyObject *>dtype, size, stride, offset, device, bits)
        cdef uint32_t i = h & self.meta_mask
        cdef uint32_t mid
        cdef MetaS *m
        while True:
            mid = self.meta_index[i]
            if mid == 0:
                break
            m = &self.metas[mid]
            if (m.hash == h and m.dtype == <PyObject *>dtype and m.offset == offset and m.device == device
                    and m.bits == bits
                    and (m.stride != NULL) == (stride is not None)
                    and PyObject_RichCompareBool(<object>m.size, size, Py_EQ)
                    and (stride is None or PyObject_RichCompareBool(<object>m.stride, stride, Py_EQ))):
                return mid
            i = (i + 1) & self.meta_mask
        size = self._share(size, False)
        if stride is not None:
            stride = self._share(stride, True)
        nbytes = getattr(dtype, "itemsize", 1)
        for n in size:
            nbytes *= n
        mid = self._free_id(False)
        m = &self.metas[mid]
        m.nbytes = min(nbytes, <uint64_t>0xFFFFFFFFFFFFFFFF)
        m.dtype = <PyObject *>dtype
        Py_INCREF(size)
        m.size = <PyObject *>size
        m.stride = NULL
        if stride is not None:
            Py_INCREF(stride)
            m.stride = <PyObject *>stride
        m.offset = offset
        m.device = device
        m.bits = bits
        m.hash = h
        m.refs = 0
        self.used_metas += 1
        i = h & self.meta_mask
        while self.meta_index[i]:
            i = (i + 1) & self.meta_mask
        self.meta_index[i] = mid
        return mid

    cdef object _share(self, object tup, bint stride):
        """An equal tuple that recent metadata holds, or this one: views of a size differ in strides or offset only."""
        cdef uint32_t mid
        cdef PyObject *held
        for mid in range(self.n_metas - 1, max(<int64_t>self.n_metas - SHARED, 1) - 1, -1):
            held = self.metas[mid].stride if stride else self.metas[mid].size
            if held and PyObject_RichCompareBool(<object>held, tup, Py_EQ):
                return <object>held
        self.bytes += _object_bytes(tup)
        return tup

    cdef uint32_t _free_id(self, bint sig) except 0:
        """An id without an entry, of a call or of metadata. The caller fills it at once, and counts it."""
        cdef uint32_t i
        if sig:
            if self.used_sigs + 1 == self.n_sigs:
                if self.n_sigs == self.cap_sigs:
                    self._grow_sigs()
                i = self.n_sigs
                self.n_sigs += 1
                return i
            i = self.sig_hole
            while self.sigs[i]:
                i += 1
            self.sig_hole = i
            return i
        if self.used_metas + 1 == self.n_metas:
            if self.n_metas == self.cap_metas:
                self._grow_metas()
            i = self.n_metas
            self.n_metas += 1
            return i
        i = self.meta_hole
        while self.metas[i].size:
            i += 1
        self.meta_hole = i
        return i

    cdef int _grow_metas(self) except -1:
        # The index first: when only that fails, the table must not be able to outgrow it.
        cdef uint32_t cap = self.cap_metas + self.cap_metas // 2
        cdef uint32_t mask = _mask_for(cap)
        cdef MetaS *p
        cdef uint32_t *index
        if mask > self.meta_mask:
            index = <uint32_t *>malloc((<size_t>mask + 1) * 4)
            if not index:
                raise MemoryError()
            free(self.meta_index)
            self.meta_index = index
            self.bytes += (mask - self.meta_mask) * 4
            self.meta_mask = mask
            self._index_metas()
        p = <MetaS *>realloc(self.metas, cap * sizeof(MetaS))
        if not p:
            raise MemoryError()
        memset(p + self.cap_metas, 0, (cap - self.cap_metas) * sizeof(MetaS))
        self.bytes += (cap - self.cap_metas) * sizeof(MetaS)
        self.metas = p
        self.cap_metas = cap
        return 0

    cdef void _index_metas(self) noexcept:
        cdef uint32_t i, j
        memset(self.meta_index, 0, (<size_t>self.meta_mask + 1) * 4)
        for i in range(1, self.n_metas):
            if self.metas[i].size:
                j = self.metas[i].hash & self.meta_mask
                while self.meta_index[j]:
                    j = (j + 1) & self.meta_mask
                self.meta_index[j] = i

    def meta(self, uint32_t mid):
        """(dtype, size, stride or None when contiguous, storage offset, device index) of metadata `mid`."""
        if mid == 0 or mid >= self.n_metas or not self.metas[mid].size:
            raise IndexError(f"[meta] expected an id in 1..{self.n_metas - 1}, got {mid}")
        # Everything is read before the tuple is made: that may run a finalizer, which may move the table.
        cdef MetaS *m = &self.metas[mid]
        cdef object dtype = <object>m.dtype
        cdef object size = <object>m.size
        cdef object stride = <object>m.stride if m.stride else None
        cdef int64_t offset = m.offset
        cdef int16_t device = m.device
        return (dtype, size, stride, offset, device)

    # ---- calls -------------------------------------------------------------------------------------------------
    cdef uint32_t find_sig(self, const uint8_t *key, uint32_t keylen, uint32_t hash) noexcept:
        cdef uint32_t i = hash & self.sig_mask
        cdef uint32_t sid
        cdef SigS *s
        while True:
            sid = self.sig_index[i]
            if sid == 0:
                return 0
            s = self.sigs[sid]
            if s.hash == hash and s.keylen == keylen and memcmp(sig_key(s), key, keylen) == 0:
                s.flags |= SIG_HIT
                return sid
            i = (i + 1) & self.sig_mask

    cdef uint32_t add_sig(self, const uint8_t *key, uint32_t keylen, uint32_t hash, object info, object ret,
                          list out_metas, list alias, bytes written, uint8_t flags, uint8_t device) except 0:
        """Add the call `key`; `alias[i]` is the input hole whose storage output i shares, or -1.

        With SIG_FORGOTTEN it is not found again: the next call of this kind is another.
        """
        cdef uint32_t n_in = <uint32_t>len(written)
        cdef uint32_t n_out = <uint32_t>len(out_metas)
        cdef uint32_t sid
        if n_in > MAX_INPUTS or n_out > MAX_INPUTS:
            raise MemoryError(f"a call with {n_in} input and {n_out} output tensors")
        if self.used_sigs + 1 >= MAX_SIGS:
            raise MemoryError(f"{MAX_SIGS} distinct calls in use")
        cdef SigS *s = <SigS *>malloc(sizeof(SigS) + 6 * n_out + n_in + keylen)
        if not s:
            raise MemoryError()
        try:
            sid = self._free_id(True)
        except MemoryError:
            free(s)
            raise
        cdef uint32_t i
        if not (<OpInfo>info).named:
            (<OpInfo>info).named = True
            Py_INCREF(info)            # for good: keys and records name it by its address
        s.info = <PyObject *>info
        s.native = s.ret = NULL
        if ret is not None:
            Py_INCREF(ret)
            s.ret = <PyObject *>ret
        s.hash = hash
        s.keylen = keylen
        s.n_in = <uint16_t>n_in
        s.n_out = <uint16_t>n_out
        s.refs = 0
        s.flags = flags
        s.device = device
        for i in range(n_out):
            sig_out_meta(s)[i] = <uint32_t>out_metas[i]
            sig_alias(s)[i] = <uint16_t>(<int>alias[i] & 0xFFFF)
        memcpy(sig_written(s), <const char *>written, n_in)
        memcpy(sig_key(s), key, keylen)
        self.bytes += self.sig_bytes(s)
        self.sigs[sid] = s
        self.used_sigs += 1
        if flags & SIG_FORGOTTEN:
            return sid
        i = hash & self.sig_mask
        while self.sig_index[i]:
            i = (i + 1) & self.sig_mask
        self.sig_index[i] = sid
        return sid

    cdef uint32_t replacement(self, uint32_t old) except 0:
        """The entry that is found under the key of `old` from now on: a copy, made when `old` itself is still found."""
        cdef SigS *s = self.sigs[old]
        cdef uint32_t sid = self.find_sig(sig_key(s), s.keylen, s.hash)
        cdef SigS *copy
        cdef size_t size = sig_size(s)
        if sid and sid != old:
            return sid
        copy = <SigS *>malloc(size)
        if not copy:
            raise MemoryError()
        try:
            sid = self._free_id(True)
        except MemoryError:
            free(copy)
            raise
        memcpy(copy, s, size)
        if copy.ret:
            Py_INCREF(<object>copy.ret)
        copy.native = NULL
        copy.refs = 0
        copy.flags &= ~(SIG_VERIFIED | SIG_FORGOTTEN)
        s.flags |= SIG_FORGOTTEN
        self.sigs[sid] = copy
        self.used_sigs += 1
        self.bytes += size
        self._index_sigs()
        return sid

    cdef int _grow_sigs(self) except -1:
        cdef uint32_t cap = self.cap_sigs + self.cap_sigs // 2
        cdef uint32_t mask = _mask_for(cap)
        cdef SigS **p
        cdef uint32_t *index
        if mask > self.sig_mask:
            index = <uint32_t *>malloc((<size_t>mask + 1) * 4)
            if not index:
                raise MemoryError()
            free(self.sig_index)
            self.sig_index = index
            self.bytes += (mask - self.sig_mask) * 4
            self.sig_mask = mask
            self._index_sigs()
        p = <SigS **>realloc(self.sigs, cap * sizeof(SigS *))
        if not p:
            raise MemoryError()
        memset(p + self.cap_sigs, 0, (cap - self.cap_sigs) * sizeof(SigS *))
        self.bytes += (cap - self.cap_sigs) * sizeof(SigS *)
        self.sigs = p
        self.cap_sigs = cap
        return 0

    cdef void _index_sigs(self) noexcept:
        cdef uint32_t i, j
        memset(self.sig_index, 0, (<size_t>self.sig_mask + 1) * 4)
        for i in range(1, self.n_sigs):
            if self.sigs[i] and not self.sigs[i].flags & SIG_FORGOTTEN:
                j = self.sigs[i].hash & self.sig_mask
                while self.sig_index[j]:
                    j = (j + 1) & self.sig_mask
                self.sig_index[j] = i

    def forget_calls(self):
        """Calls recorded so far keep their ids but are found no more: the next recording infers afresh."""
        cdef uint32_t i
        for i in range(1, self.n_sigs):
            if self.sigs[i]:
                self.sigs[i].flags |= SIG_FORGOTTEN
        self._index_sigs()

    # ---- eviction ----------------------------------------------------------------------------------------------
    def set_limit(self, size_t limit, size_t at_once=AT_ONCE):
        """Let the tables hold `limit` bytes, besides what is named.

        Entries that nothing names, and that were not found since the last look, go whenever there are `at_once` bytes,
        and half as much again as the last look has left.
        """
        self.limit = limit
        self.at_once = min(at_once, limit)
        self.evict_at = self.at_once

    cdef int evict(self, uint8_t *pinned, set seen) except -1:
        """Free calls that no handle and, by pinned[id], no record names, and metadata that is used by none that stays.

        Calls found since the last time get a second chance, unless that leaves the tables near their limit.
        A call that went is inferred afresh when it comes again. `seen` is an empty set to work with: nothing here may
        make a container, since that can run a finalizer that records.
        """
        cdef uint32_t i, k
        cdef SigS *s
        cdef uint8_t *used = <uint8_t *>malloc(self.n_metas)
        cdef uint32_t *holes = <uint32_t *>malloc((MAX_INPUTS + 1) * sizeof(uint32_t))
        cdef bint all_calls = False
        if not used or not holes:
            free(used)
            free(holes)
            raise MemoryError()
        self.evictions += 1
        try:
            while True:
                memset(used, 0, self.n_metas)
                for i in range(1, self.n_sigs):
                    s = self.sigs[i]
                    if not s:
                        continue
                    if not (pinned[i] or s.refs or (s.flags & (SIG_HIT | SIG_FORGOTTEN) == SIG_HIT and not all_calls)):
                        self._free_sig(i)
                        continue
                    for k in range(s.n_out):
                        used[sig_out_meta(s)[k]] = 1
                    hole_metas(sig_key(s), holes)
                    for k in range(s.n_in):
                        used[holes[k]] = 1
                for i in range(1, self.n_metas):
                    if self.metas[i].size and not used[i] and not self.metas[i].refs:
                        self._free_meta(i)
                self.meta_hole = self.sig_hole = 1
                self._shrink()
                self._index_sigs()
                self._index_metas()
                self._measure(seen)
                if all_calls or self.bytes <= self.limit // 4 * 3:
                    break
                all_calls = True
        finally:
            free(used)
            free(holes)
        for i in range(1, self.n_sigs):
            if self.sigs[i]:
                self.sigs[i].flags &= ~SIG_HIT
        self.evict_at = max(self.at_once, self.bytes + self.bytes // 2)    # so that looking stays O(1) per new entry
        return 0

    cdef void _shrink(self) noexcept:
        """Give back what the tables took when much more was in them. The caller makes the indices anew."""
        cdef uint32_t cap, mask
        cdef void *p
        while not self.sigs[self.n_sigs - 1] and self.n_sigs > 1:
            self.n_sigs -= 1
        while not self.metas[self.n_metas - 1].size and self.n_metas > 1:
            self.n_metas -= 1
        cap = max(LEAST_CAP, 2 * self.n_sigs)
        if cap < self.cap_sigs // 2:
            p = realloc(self.sigs, cap * sizeof(SigS *))
            if p:
                self.sigs = <SigS **>p
                self.cap_sigs = cap
        mask = _mask_for(self.cap_sigs)
        if mask < self.sig_mask:
            p = realloc(self.sig_index, (<size_t>mask + 1) * 4)
            if p:
                self.sig_index = <uint32_t *>p
                self.sig_mask = mask
        cap = max(LEAST_CAP, 2 * self.n_metas)
        if cap < self.cap_metas // 2:
            p = realloc(self.metas, cap * sizeof(MetaS))
            if p:
                self.metas = <MetaS *>p
                self.cap_metas = cap
        mask = _mask_for(self.cap_metas)
        if mask < self.meta_mask:
            p = realloc(self.meta_index, (<size_t>mask + 1) * 4)
            if p:
                self.meta_index = <uint32_t *>p
                self.meta_mask = mask

    cdef int _measure(self, set seen) except -1:
        cdef size_t n = (self.cap_metas * sizeof(MetaS) + self.cap_sigs * sizeof(SigS *)
                         + (<size_t>self.meta_mask + self.sig_mask + 2) * 4)
        cdef uint32_t i
        for i in range(1, self.n_sigs):
            if self.sigs[i]:
                n += self.sig_bytes(self.sigs[i])
        seen.clear()
        for i in range(1, self.n_metas):
            n += _once(self.metas[i].size, seen) + _once(self.metas[i].stride, seen)
        self.bytes = n
        return 0

    def counts(self):
        """(number of interned metadata entries, number of interned calls)."""
        return self.used_metas, self.used_sigs


cdef size_t _once(PyObject *tup, set seen) except? 1:
    # Entries may share their tuples.
    if not tup or <size_t>tup in seen:
        return 0
    seen.add(<size_t>tup)
    return _object_bytes(<object>tup)


cdef size_t _object_bytes(object tup) noexcept:
    # As sys.getsizeof of a tuple of ints says (with the collector's header), without running Python code. CPython
    # caches small ints; larger ones are objects of their own.
    cdef Py_ssize_t n = PyTuple_GET_SIZE(tup)
    cdef Py_ssize_t k
    cdef size_t total = 40 + 8 * n
    cdef int overflow = 0
    cdef int64_t v
    for k in range(n):
        v = PyLong_AsLongLongAndOverflow(<object>PyTuple_GET_ITEM(tup, k), &overflow)
        if not -5 <= v <= 256:
            total += 28 if -(1 << 30) < v < (1 << 30) else 32
    return total


@cython.final
cdef class OpInfo:
    def __init__(self, func, str name, int kind, *, call=None, handler=None, random=False, writes=(),
                 view=False, pointwise=False, bumps=False, whole=False, copies=False, at_dispatch=None):
        self.func = func
        self.call = self.replay = func if call is None else call
        self.name = name
        self.kind = kind
        self.handler = handler
        self.at_dispatch = handler if kind == KIND_HANDLER else at_dispatch
        self.at_function = None
        self.random = random
        self.writes = writes
        self.view = view
        self.pointwise = pointwise
        self.bumps = bumps
        self.whole = whole
        self.copies = copies

    def __repr__(self):
        return f"OpInfo({self.name}, kind={self.kind})"


PASS, RECORD, HANDLER, EAGER = KIND_PASS, KIND_RECORD, KIND_HANDLER, KIND_EAGER
WRITES, RANDOM, VIEW, FORGOTTEN = SIG_WRITES, SIG_RANDOM, SIG_VIEW, SIG_FORGOTTEN
SMALL, BLIND, FOLDS = SIG_SMALL, SIG_BLIND, SIG_FOLDS
TENSOR, TUPLE, LIST, NOTHING = RETURNS_TENSOR, RETURNS_TUPLE, RETURNS_LIST, RETURNS_NOTHING
