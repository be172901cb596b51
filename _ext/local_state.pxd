"""What torch keeps for each thread of how calls are dispatched, read where torch keeps it: see local_state.pyx."""
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <dlfcn.h>
    #include <stdint.h>
    typedef struct { uint64_t included, excluded; } mt_key_sets;       /* c10::impl::PODLocalDispatchKeySet */
    """
    ctypedef struct mt_key_sets:
        uint64_t included, excluded

# This thread's dispatch keys, each bit the other way round where it is another than by default. NULL: they cannot be
# read, and no_keys() is False.
cdef mt_key_sets *keys() noexcept
cdef bint no_keys() noexcept                   # all as by default: no dispatch mode, autocast, transform, tracer …

# As torch's own functions say; these run no Python code.
cdef bint grad_mode() except -1
cdef bint function_modes() except -1
# From now on no class is asked about functions in this thread. 1: show_functions() has to follow; 0: none was before;
# -1: torch has to be told in Python, where there are any.
cdef int hide_functions() except -2
cdef void show_functions() noexcept
cdef bint undisturbed() except -1              # no dispatch mode, no autocast
