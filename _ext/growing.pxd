"""Numbers by index, in memory that grows with the largest one. Here for the compiler to inline."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport realloc


cdef inline uint64_t *number_at(uint64_t **numbers, uint32_t *cap, uint32_t index) noexcept:
    """The number at `index`, 0 at first; NULL when there is no memory for so many. `cap`: how many there are, not 0."""
    cdef uint64_t *bigger
    cdef uint32_t more = cap[0], i
    if index >= more:
        while more <= index:
            more *= 2
        bigger = <uint64_t *> realloc(numbers[0], more * sizeof(uint64_t))
        if bigger == NULL:
            return NULL
        for i in range(cap[0], more):
            bigger[i] = 0
        numbers[0] = bigger
        cap[0] = more
    return &numbers[0][index]
