"""Collection of op times, sizes and memory (see collect.pyx); nothing here is cimported elsewhere yet."""
from libc.stdint cimport uint32_t, uint64_t

cdef struct Row:                               # one (signature, module, line, phase); open addressing
    uint64_t ns                                # self time, interception subtracted
    uint64_t nbytes                            # bytes written by the calls
    uint64_t calls                             # 0 = empty slot
    uint32_t sig                               # 0 = between ops ("(python)")
    uint32_t module
    uint32_t location
    uint32_t phase
