"""A look at the program where nothing else gives one (see sampler.pyx)."""
from libc.stdint cimport uint64_t


cdef extern from *:
    """
    #include <stdint.h>
    /* When something was accounted for last, ns; BUSY while an op runs. Written with the GIL, read without. */
    #define MT_BUSY UINT64_MAX
    static inline void mt_beat(uint64_t *beat, uint64_t at) { __atomic_store_n(beat, at, __ATOMIC_RELAXED); }
    """
    uint64_t BUSY "MT_BUSY"
    void mt_beat(uint64_t *beat, uint64_t at) noexcept nogil


cdef class Sampler:
    cdef uint64_t beat
    cdef void *thread                          # owned; NULL when none runs
    cdef object look
    cdef readonly object error
    cdef readonly uint64_t looks
    cdef bint due                              # it starts as soon as a fork is done
    cdef object pid
