"""What a program would do with memory: see ledger.pyx. Costs one test of `listening` when nobody does."""
from libc.stdint cimport uint32_t, uint64_t

from .structs cimport Record, SigS

cdef void note_call(Record *r, SigS *s, const uint32_t *outs) noexcept    # a call on tensors without data was recorded
cdef void note_memory(uint32_t slot, uint32_t meta) noexcept              # a tensor without data with memory of its own
cdef void note_name(uint32_t name) noexcept                               # a call that makes no tensor
cdef bint listening
cdef int settle() except -1    # raises if a call has made more than there is room for
cdef bint stopped              # no new calls are noted

# What a call at the function level comes to, as the dispatch level logs it: learnt from one run, repeated from then on.
cdef struct Script
cdef struct Place:             # where the logs stand, and where the program is
    uint32_t call, block, module, location, phase

cdef void here(Place *at) noexcept
cdef Script *learn(const Place *since, uint32_t root, uint32_t meta) noexcept   # NULL: it cannot be repeated
cdef bint keep_script(uint32_t sig, Script *script) noexcept                    # takes it
cdef bint has_script(uint32_t sig) noexcept

cdef enum:
    NAME_DETACH = 0
