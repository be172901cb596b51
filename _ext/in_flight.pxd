"""When NPUs ran what was put on them: an event before each launch and one after it, read later; see `in_flight.pyx`."""
from libc.stdint cimport uint32_t, uint64_t

from mindtorch._ext.pool cimport Lane, Mark

# A launch on its way, on the caller's stack.
cdef struct Launch:
    Mark *before                  # NULL: it is not traced
    uint64_t at                   # ns of the host
    uint32_t turn

# Around whatever puts work on a lane, between enter and leave, without a lock. They never fail the launch.
cdef void begins(Lane *lane, Launch *launch) noexcept nogil
cdef void ends(Lane *lane, Launch *launch, bint copy, int code) noexcept nogil
# The same for work that the host waited for. `at`: of `hosts_clock`; nothing is noted for 0.
cdef uint64_t hosts_clock() noexcept nogil
cdef void waited(Lane *lane, uint64_t at, int code) noexcept nogil
