"""What a program would do with memory: see ledger.pyx. Costs one test of `listening` when nobody does."""
from libc.stdint cimport uint32_t

from .structs cimport Record, SigS

cdef void note_call(Record* r, SigS* s, const uint32_t* outs) noexcept    # a call on tensors without data was recorded
cdef void note_memory(uint32_t slot, uint32_t meta) noexcept              # a tensor without data with memory of its own
cdef void note_name(uint32_t name) noexcept                               # a call that makes no tensor
cdef bint listening

cdef enum:
    NAME_DETACH = 0
