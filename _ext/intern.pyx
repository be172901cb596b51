"""Interning of tensor metadata and of calls.

Programs repeat themselves: layers share shapes, steps share calls. A record therefore names its call by one 32-bit
id. The entry behind the id (SigS) holds the function, the constants, the metadata of the inputs and the inferred
metadata of the outputs, so recording a known call is one hash probe and no inference.

Ownership: the Interner owns every struct and every Python object referenced from one, until its
deallocation. Objects a key points to (dtypes, layouts, memory formats, interned names) are immortal.
"""
import sys

cimport cython
from cpython.object cimport PyObject_Hash, PyObject_RichCompareBool, Py_EQ
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from .structs cimport MAX_SIGS, MetaS, SigS


cdef enum:
    SHARED = 64                # entries back that a size or stride is looked for, to be held once


cdef uint32_t hash_key(const uint8_t* key, uint32_t n) noexcept:
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
    return <uint32_t>h


@cython.final
cdef class Interner:
    def __cinit__(self, size_type):
        self.size_type = size_type
        self.cap_metas = 16
        self.cap_sigs = 16
        self.meta_mask = 31
        self.sig_mask = 31
        self.metas = <MetaS*>calloc(self.cap_metas, sizeof(MetaS))
        self.sigs = <SigS**>calloc(self.cap_sigs, sizeof(SigS*))
        self.meta_index = <uint32_t*>calloc(self.meta_mask + 1, 4)
        self.sig_index = <uint32_t*>calloc(self.sig_mask + 1, 4)
        if not self.metas or not self.sigs or not self.meta_index or not self.sig_index:
            raise MemoryError()
        self.n_metas = 1       # id 0 means "none"
        self.n_sigs = 1
        self.first_sig = 1
        self.bytes = 16 * sizeof(MetaS) + 16 * sizeof(SigS*) + 2 * 32 * 4

    def __dealloc__(self):
        self._free_entries()
        free(self.metas)
        free(self.sigs)
        free(self.meta_index)
        free(self.sig_index)

    cdef void _free_entries(self) noexcept:
        cdef uint32_t i
        if self.metas:
            for i in range(1, self.n_metas):
                if self.metas[i].size:
                    Py_DECREF(<object>self.metas[i].size)
                if self.metas[i].stride:
                    Py_DECREF(<object>self.metas[i].stride)
        if self.sigs:
            for i in range(1, self.n_sigs):
                self._free_sig(self.sigs[i])

    cdef void _free_sig(self, SigS* s) noexcept:
        if s.ret:
            Py_DECREF(<object>s.ret)
        self.bytes -= self.sig_bytes(s)
        free(s)

    cdef uint32_t sig_bytes(self, SigS* s) noexcept:
        return <uint32_t>(sizeof(SigS) + 6 * <uint32_t>s.n_out + s.n_in + s.keylen)

    # ---- metadata ----------------------------------------------------------------------------------------------
    cdef uint32_t meta_id(self, object dtype, object size, object stride, int64_t offset, int16_t device,
                          uint16_t bits) except 0:
        """Id of this metadata; `stride` is None for a contiguous tensor. The size is kept as torch.Size."""
        cdef uint64_t h64 = <uint64_t>PyObject_Hash(size) ^ (<uint64_t><size_t><PyObject*>dtype >> 4)
        if stride is not None:
            h64 = h64 * 31 + <uint64_t>PyObject_Hash(stride)
        h64 = (h64 ^ <uint64_t>offset * 0x9E3779B97F4A7C15ULL) + <uint64_t>device * 0x51ED27 + <uint64_t>bits * 0xA511E9
        h64 *= 0xBF58476D1CE4E5B9ULL
        cdef uint32_t h = <uint32_t>(h64 >> 32)
        cdef uint32_t i = h & self.meta_mask
        cdef uint32_t mid
        cdef MetaS* m
        while True:
            mid = self.meta_index[i]
            if mid == 0:
                break
            m = &self.metas[mid]
            if (m.hash == h and m.dtype == <PyObject*>dtype and m.offset == offset and m.device == device
                    and m.bits == bits
                    and (m.stride != NULL) == (stride is not None)
                    and PyObject_RichCompareBool(<object>m.size, size, Py_EQ)
                    and (stride is None or PyObject_RichCompareBool(<object>m.stride, stride, Py_EQ))):
                return mid
            i = (i + 1) & self.meta_mask
        if self.n_metas == self.cap_metas:
            self._grow_metas()
            return self.meta_id(dtype, size, stride, offset, device, bits)
        if type(size) is not self.size_type:
            size = self.size_type(size)
        size = self._share(size, False)
        if stride is not None:
            stride = self._share(stride, True)
        mid = self.n_metas
        m = &self.metas[mid]
        m.dtype = <PyObject*>dtype
        Py_INCREF(size)
        m.size = <PyObject*>size
        m.stride = NULL
        if stride is not None:
            Py_INCREF(stride)
            m.stride = <PyObject*>stride
        m.offset = offset
        m.device = device
        m.bits = bits
        m.hash = h
        self.meta_index[i] = mid
        self.n_metas += 1
        return mid

    cdef object _share(self, object tup, bint stride):
        """An equal tuple that recent metadata holds, or this one: views of a size differ in strides or offset only."""
        cdef uint32_t mid
        cdef PyObject* held
        for mid in range(self.n_metas - 1, max(<int64_t>self.n_metas - SHARED, 1) - 1, -1):
            held = self.metas[mid].stride if stride else self.metas[mid].size
            if held and PyObject_RichCompareBool(<object>held, tup, Py_EQ):
                return <object>held
        self.bytes += _object_bytes(tup)
        return tup

    cdef int _grow_metas(self) except -1:
        cdef uint32_t cap = self.cap_metas + self.cap_metas // 2
        cdef MetaS* p = <MetaS*>realloc(self.metas, cap * sizeof(MetaS))
        if not p:
            raise MemoryError()
        self.bytes += (cap - self.cap_metas) * sizeof(MetaS)
        self.metas = p
        self.cap_metas = cap
        cdef uint32_t i, j, mask
        cdef uint32_t* index
        if cap * 4 > (self.meta_mask + 1) * 3:
            mask = self.meta_mask * 2 + 1
            index = <uint32_t*>calloc(mask + 1, 4)
            if not index:
                raise MemoryError()
            for i in range(1, self.n_metas):
                j = self.metas[i].hash & mask
                while index[j]:
                    j = (j + 1) & mask
                index[j] = i
            free(self.meta_index)
            self.meta_index = index
            self.bytes += (mask - self.meta_mask) * 4
            self.meta_mask = mask
        return 0

    def meta(self, uint32_t mid):
        """(dtype, size, stride or None when contiguous, storage offset, device index) of metadata `mid`."""
        if mid == 0 or mid >= self.n_metas:
            raise IndexError(f"[meta] expected an id in 1..{self.n_metas - 1}, got {mid}")
        cdef MetaS* m = &self.metas[mid]
        return (<object>m.dtype, <object>m.size, <object>m.stride if m.stride else None, m.offset, m.device)

    # ---- calls -------------------------------------------------------------------------------------------------
    cdef uint32_t find_sig(self, const uint8_t* key, uint32_t keylen, uint32_t hash) noexcept:
        cdef uint32_t i = hash & self.sig_mask
        cdef uint32_t sid
        cdef SigS* s
        while True:
            sid = self.sig_index[i]
            if sid == 0:
                return 0
            s = self.sigs[sid]
            if s.hash == hash and s.keylen == keylen and memcmp(sig_key(s), key, keylen) == 0:
                return sid
            i = (i + 1) & self.sig_mask

    cdef uint32_t add_sig(self, const uint8_t* key, uint32_t keylen, uint32_t hash, object info, object ret,
                          list out_metas, list alias, bytes written, uint16_t flags) except 0:
        """Add the call `key`; `alias[i]` is the input hole whose storage output i shares, or -1."""
        cdef uint32_t n_in = <uint32_t>len(written)
        cdef uint32_t n_out = <uint32_t>len(out_metas)
        if self.n_sigs == self.cap_sigs:
            self._grow_sigs()
        cdef SigS* s = <SigS*>malloc(sizeof(SigS) + 6 * n_out + n_in + keylen)
        if not s:
            raise MemoryError()
        if self.n_sigs >= MAX_SIGS:
            free(s)
            raise MemoryError(f"{MAX_SIGS} distinct calls interned")
        cdef uint32_t i
        s.info = <PyObject*>info
        s.ret = NULL
        if ret is not None:
            Py_INCREF(ret)
            s.ret = <PyObject*>ret
        s.hash = hash
        s.keylen = keylen
        s.n_in = n_in
        s.n_out = <uint16_t>n_out
        s.flags = flags
        for i in range(n_out):
            sig_out_meta(s)[i] = <uint32_t>out_metas[i]
            sig_alias(s)[i] = <uint16_t>(<int>alias[i] & 0xFFFF)
        memcpy(sig_written(s), <const char*>written, n_in)
        memcpy(sig_key(s), key, keylen)
        self.bytes += self.sig_bytes(s)
        cdef uint32_t sid = self.n_sigs
        self.sigs[sid] = s
        self.n_sigs += 1
        i = hash & self.sig_mask
        while self.sig_index[i]:
            i = (i + 1) & self.sig_mask
        self.sig_index[i] = sid
        return sid

    cdef int _grow_sigs(self) except -1:
        cdef uint32_t cap = self.cap_sigs + self.cap_sigs // 2
        cdef SigS** p = <SigS**>realloc(self.sigs, cap * sizeof(SigS*))
        if not p:
            raise MemoryError()
        self.bytes += (cap - self.cap_sigs) * sizeof(SigS*)
        self.sigs = p
        self.cap_sigs = cap
        cdef uint32_t i, j, mask
        cdef uint32_t* index
        if cap * 4 > (self.sig_mask + 1) * 3:
            mask = self.sig_mask * 2 + 1
            index = <uint32_t*>calloc(mask + 1, 4)
            if not index:
                raise MemoryError()
            for i in range(self.first_sig, self.n_sigs):
                j = self.sigs[i].hash & mask
                while index[j]:
                    j = (j + 1) & mask
                index[j] = i
            free(self.sig_index)
            self.sig_index = index
            self.bytes += (mask - self.sig_mask) * 4
            self.sig_mask = mask
        return 0

    def forget_calls(self):
        """Calls recorded so far keep their ids but are found no more: the next recording infers afresh."""
        memset(self.sig_index, 0, (<size_t>self.sig_mask + 1) * 4)
        self.first_sig = self.n_sigs

    def counts(self):
        """(number of interned metadata entries, number of interned calls)."""
        return self.n_metas - 1, self.n_sigs - 1


cdef size_t _object_bytes(object tup):
    # CPython caches small ints; larger ones are objects of their own.
    cdef size_t n = sys.getsizeof(tup)
    for v in tup:
        if not -5 <= v <= 256:
            n += sys.getsizeof(v)
    return n


@cython.final
cdef class OpInfo:
    def __init__(self, func, str name, int kind, *, call=None, handler=None, random=False, writes=(),
                 view=False, pointwise=False, bumps=False):
        self.func = func
        self.call = func if call is None else call
        self.name = name
        self.kind = kind
        self.handler = handler
        self.random = random
        self.writes = writes
        self.view = view
        self.pointwise = pointwise
        self.bumps = bumps

    def __repr__(self):
        return f"OpInfo({self.name}, kind={self.kind})"


PASS, RECORD, HANDLER, EAGER = KIND_PASS, KIND_RECORD, KIND_HANDLER, KIND_EAGER
