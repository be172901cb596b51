"""Collection of op times, sizes and memory (see collect.pyx); nothing here is cimported elsewhere yet."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef struct Row:                               # one (signature, module, line, phase); open addressing
    uint64_t ns                                # self time, interception subtracted
    uint64_t nbytes                            # bytes written by the calls
    uint64_t calls                             # 0 = empty slot
    uint32_t sig                               # 0 = between ops ("(python)")
    uint32_t module
    uint32_t location
    uint32_t phase

cdef struct Event:                             # one op, or one change of module or phase, for the trace
    uint64_t start                             # ns
    uint64_t ns                                # duration of an op; 0 for a change
    uint64_t live                              # live bytes after it
    uint32_t sig                               # signature of an op
    uint32_t module
    uint32_t location
    uint8_t kind                               # EVENT_OP or 1 + Transition
    uint8_t phase
