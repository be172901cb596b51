"""Source line of the calling thread, as a small number."""
from libc.stdint cimport uint32_t

# Interned (code object, instruction) of the innermost frame outside torch, mindtorch and the import system;
# 0 = none. Needs the GIL, never raises, runs no user code. Where a table of lines is wanted, with the lines of the
# program's own files that led there: see "chains" in location.pyx.
cdef uint32_t current_location() noexcept
# The same of the innermost frame of the program's own files, if there is one: see `is_own`.
cdef uint32_t own_location() noexcept
