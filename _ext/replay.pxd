from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from .intern cimport SigS
from .structs cimport Record
from .tape cimport Tape, Vec


cdef class Segment:
    """Pending records, in program order, that one materialization runs."""
    cdef readonly Tape tape
    cdef Vec seqs
    cdef size_t done
    cdef readonly bint random         # some record draws from the device's generator
    cdef int _store(self, uint64_t seq, Record* r, SigS* s, object result, object verify) except -1
    cdef int _put(self, uint32_t slot_id, object tensor) except -1
    cdef int _fail(self, uint64_t seq, object failure) except -1
    cdef void _give_back(self) noexcept

cdef Segment plan_segment(Tape tape, const uint32_t* targets, size_t n, const uint32_t* written, size_t n_written)
cdef tuple decode_call(SigS* s, PyObject** inputs, object device)
cdef list hole_metas(SigS* s)
