"""Autograd's sequence numbers by module: one log for each thread."""
from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef MT_NODE_LOG
    #define MT_NODE_LOG
    /* One entry per change of module, in order of autograd sequence numbers. Owned by the list of logs. */
    typedef struct mt_log { uint64_t *seq; uint32_t *module; uint32_t n, cap; volatile int dead; } mt_log;
    #endif
    """
    ctypedef struct mt_log:
        uint64_t *seq
        uint32_t *module
        uint32_t n
        uint32_t cap
        int dead

cdef mt_log *new_log() noexcept                # for the calling thread; NULL when there is no memory for one
cdef void log_from(mt_log *log, uint64_t seq, uint32_t module) noexcept    # nodes from that number on are the module's
cdef uint32_t log_find(mt_log *log, uint64_t seq) noexcept     # the module of a node; 0: none is known
