"""The clock of every time in a profile."""
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(_WIN32)
    #include <windows.h>
    static inline uint64_t mt_now(void) {
        LARGE_INTEGER c, f;
        QueryPerformanceCounter(&c); QueryPerformanceFrequency(&f);
        return (uint64_t)((double)c.QuadPart * 1e9 / (double)f.QuadPart);
    }
    #else
    #include <time.h>
    static inline uint64_t mt_now(void) {      /* the clock of time.perf_counter_ns */
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    #endif
    """
    uint64_t mt_now() noexcept nogil
