"""Sums by signature, module, line and phase (see rowtable.pyx)."""
from libc.stdint cimport uint32_t, uint64_t

cdef struct Row:                               # one (signature, module, line, phase); open addressing
    uint64_t ns                                # self time, interception subtracted
    uint64_t nbytes                            # bytes written by the calls
    uint64_t calls                             # 0 = empty slot
    uint32_t sig                               # 0 = between ops ("(python)")
    uint32_t module
    uint32_t location
    uint32_t phase


cdef class RowTable:
    cdef Row *rows                             # owned
    cdef Row spare                             # written by what finds no room in the table
    cdef uint32_t mask, n
    cdef readonly uint64_t failed              # how often that was

    # The row of these four, made if need be. The caller counts a call in it before it asks for another one.
    cdef Row *row(self, uint32_t sig, uint32_t module, uint32_t location, uint32_t phase) noexcept
    cdef int grow(self) noexcept
    cdef void settle(self, uint32_t was, uint32_t phase) noexcept
    cdef list take(self, list sig_ops)


cdef class ModuleCalls:
    cdef uint64_t *calls[4]                    # owned, by `kind_of` their phase, then by module id
    cdef uint32_t[4] cap

    # Count a call that enters a module. Is it the module's first since the last `take`?
    cdef bint add(self, uint32_t module, uint32_t phase) noexcept
    cdef void settle(self, uint32_t was, uint32_t phase) noexcept
    cdef tuple take(self)
