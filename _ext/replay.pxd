from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .forms cimport Form, Step
from .intern cimport OpInfo, SigS
from .structs cimport Record
from .tape cimport Tape, Vec

cdef size_t often                     # times that a call has run when one is made that does without Python


cdef class Segment:
    """Pending records, in program order, that one materialization runs."""
    cdef readonly Tape tape
    cdef Vec seqs
    cdef uint32_t *targets            # what was asked for, then what is about to be written; owned. NULL: everything
    cdef size_t n_targets, n_written
    cdef uint64_t tail, pending       # of the tape, when the records were looked for
    cdef bint whole                   # all pending writes to the targets' storages are among them
    cdef size_t done
    cdef uint8_t *fresh               # a bit for each slot: this run has put it on memory of its own
    cdef uint32_t n_fresh
    cdef Vec slots                    # by number of the value in its form, where that is known
    cdef size_t let_go                # shared values that are not kept any more
    cdef bint fixed                   # its records are what they are: part of another segment
    cdef bint claimed                 # its records are taken from the tape: they stay the same ones
    cdef bint closed                  # the rest is back on the tape
    cdef bint undone                  # the record at `done` gave its outputs up for want of memory
    cdef readonly bint lost_write     # some record failed that should have written into a storage
    cdef readonly bint random         # some record draws from the device's generator
    cdef public dict wanted           # slot -> None: gets the value as soon as the record has run; or None
    cdef int _plan(self) except -1
    cdef int look_again(self) except -1
    cdef int _claim(self) except -1
    cdef int take(self) except -1
    cdef Segment _part(self)
    cdef object _call(self, Record *r, SigS *s)
    cdef void _note_fresh(self, Record *r, SigS *s) noexcept
    cdef bint _overwrites(self, Record *r, SigS *s, OpInfo info) noexcept
    cdef bint _run_native(self, Record *r, SigS *s, PyObject **inputs)
    cdef void _put_value(self, uint32_t number, PyObject *value) noexcept
    cdef int _look_for_native(self, Record *r, SigS *s, PyObject **inputs, native) except -1
    cdef PyObject *_step(self, Form form, Record *r, SigS *s) noexcept
    cdef object _share(self, Step step, Record *r, SigS *s)
    cdef void _keep(self, Form form) noexcept
    cdef void _let_go(self, Form form, size_t until) noexcept
    cdef void _finish(self, uint64_t seq, Record *r) noexcept
    cdef void _collect(self, Record *r) noexcept
    cdef bint _gather(self, Record *r, SigS *s, PyObject **inputs) noexcept
    cdef object _failed_input(self, Record *r, SigS *s)
    cdef int _store(self, Record *r, SigS *s, object result) except -1
    cdef object _verify(self, uint64_t seq, Record *r, SigS *s, object verify, object on_error)
    cdef int _put(self, uint32_t slot_id, object tensor) except -1
    cdef void _undo(self, uint64_t seq, uint32_t *outs, SigS *s) noexcept
    cdef bint _fail(self, uint64_t seq, object failure) noexcept
    cdef bint _fail_one(self, uint64_t seq, Record *r, object failure) noexcept
    cdef bint _takes(self, Record *r) noexcept
    cdef void _give_back(self) noexcept

cdef Segment plan_segment(Tape tape, const uint32_t *targets, size_t n, const uint32_t *written, size_t n_written)
cdef object again(object failure)
cdef int place_of(Tape tape, Record *r, bint *mixed) except -2
