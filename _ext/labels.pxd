"""Named stretches of a program (see labels.pyx)."""
from libc.stdint cimport int64_t, uint64_t

from mindtorch._ext.timeline cimport Timeline


cdef class Labels:
    cdef readonly list names                   # by number
    cdef dict numbers
    cdef dict sums                             # number -> (calls, ns, least, most)

    # Begin and end a stretch of the thread `here`; `elsewhere`: ns so far that are no part of any. `end` gives its
    # number and sets `start`; -1: none had begun.
    cdef int begin(self, Timeline here, str name, uint64_t now, uint64_t elsewhere) except -1
    # A stage of the run begins, in which `elsewhere` is counted anew.
    cdef int stage(self, Timeline here, uint64_t at, uint64_t elsewhere) except -1
    # A module is entered or left in backward: checkpointing calls it again. False when memory is short. Called before
    # the depth of `here` changes.
    cdef bint recompute(self, Timeline here, bint enters, uint64_t now, uint64_t elsewhere) noexcept
    cdef int64_t end(self, Timeline here, uint64_t now, uint64_t elsewhere, uint64_t *start) except -2
