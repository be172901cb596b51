cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from .tape cimport Tape, Vec


cdef struct Mark:                # of a slot
    uint32_t round               # the search in which it was numbered
    uint32_t number


cdef struct Seen:                # a float of the segment
    uint64_t bits
    uint32_t round               # the search in which it was met; another: there is none here
    uint32_t number


cdef class Step:
    """A call made ready: what a record of a repeated segment runs in place of what its template says."""
    cdef readonly object call    # None: nothing is called, the result is `value`, or value `same`, or not needed
    cdef object names            # of its keywords, None without any
    cdef readonly tuple inputs   # (position, number of the input) for each that it takes
    cdef list held
    cdef PyObject **argv         # in `held`; NULL where an input goes
    cdef uint32_t *places        # position, input; for each input that it takes
    cdef uint32_t n_args, n_keywords, n_places
    cdef readonly uint32_t same
    cdef readonly object value   # a tensor; None: none is known
    cdef readonly bint skips     # the record does not run, and is dropped when what names its result has run
    cdef object run(self, PyObject **inputs)


cdef class Form:
    """What segments have in common that make the same calls of the same values, and leave the same ones behind."""
    cdef readonly Tape tape
    cdef uint32_t *words         # see Forms._describe
    cdef size_t n_words
    cdef readonly size_t n, n_values
    cdef PyObject **steps        # owned Steps, by record; NULL: as it was recorded
    cdef Vec shared              # records whose results are other values of the form, in order
    cdef Vec stepped             # calls of the records with Steps
    cdef bint skips              # is a record skipped?
    cdef bint changed            # is there any Step?
    cdef Step step(self, size_t k)
    cdef bint is_ready(self) noexcept
    cdef void _count(self, bint more) noexcept
    cdef readonly uint64_t runs
    cdef public object notes     # name -> two numbers to be summed up, see Forms.totals


cdef class Forms:
    """Forms of segments that came several times."""
    cdef object improve
    cdef public uint32_t after   # times that a form has to come before it is improved
    cdef public size_t fewest    # records of a segment that is worth a look
    cdef size_t most
    cdef dict times, known, counted
    cdef size_t records          # of all forms
    cdef Mark *marks
    cdef size_t n_marks
    cdef uint32_t round
    cdef Vec uses                # of values, within the segment
    cdef Seen *seen              # open addressing
    cdef size_t n_seen, cap_seen
    cdef uint32_t *words
    cdef size_t n_words, cap_words

    cdef Form find(self, Tape tape, Vec *seqs, Vec *slots)
    cdef int _describe(self, Tape tape, Vec *seqs, Vec *slots) except -1
    cdef uint32_t _number(self, Tape tape, uint32_t slot, Vec *slots) except 0
    cdef int _float(self, uint64_t bits) except -1
    cdef Seen *_place(self, uint64_t bits) noexcept
    cdef int _word(self, uint32_t word) except -1
    cdef Form _form(self, Tape tape, size_t n, size_t n_values)
