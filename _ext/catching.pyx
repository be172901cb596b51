"""Calls of C++ functions whose exceptions end here. The one module that is compiled as C++, which catches them.

Where there was no C++ compiler, or the processor's calling convention is another, recorded calls are made by Python.
"""
from libc.stdint cimport int64_t

from .native_calls cimport mt_caller, mt_releaser
from .native_views cimport mt_viewer

cdef extern from *:
    """
    #include <cstring>
    #include <new>
    #include <cxxabi.h>
    #if defined(__x86_64__) && !defined(_WIN32)
    #define MT_CAN 1
    #else
    #define MT_CAN 0
    #endif

    typedef int (*mt_delete)(void **cell);
    static mt_delete mt_delete_cell;

    /* Torch frees a tensor on the heap: let this one be there. */
    static void mt_give_up(void *tensor) {
        void **cell = static_cast<void **>(::operator new(sizeof(void *)));
        *cell = tensor;
        mt_delete_cell(cell);
    }

    #define MT_REGISTERS w[0], w[1], w[2], w[3], w[4], w[5], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]
    #define MT_TYPES uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, \
                     double, double, double, double, double, double, double, double
    #define MT_FOUR uint64_t, uint64_t, uint64_t, uint64_t

    static void mt_jump(void *function, const uint64_t *w, const double *d, int n) {
        if (n <= 6)
            reinterpret_cast<uint64_t (*)(MT_TYPES)>(function)(MT_REGISTERS);
        else if (n <= 10)
            reinterpret_cast<uint64_t (*)(MT_TYPES, MT_FOUR)>(function)(MT_REGISTERS, w[6], w[7], w[8], w[9]);
        else
            reinterpret_cast<uint64_t (*)(MT_TYPES, MT_FOUR, MT_FOUR, MT_FOUR, MT_FOUR)>(function)(
                MT_REGISTERS, w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
                w[14], w[15], w[16], w[17], w[18], w[19], w[20], w[21]);
    }

    static int mt_view(const void *on, void *call, int how, const int64_t *a, int n, const int64_t *b, int m,
                       int set_a, int set_b, void **made) {
        try {
            *made = mt_make(on, call, how, a, n, b, m, set_a, set_b).impl;
        } catch (abi::__forced_unwind &) {
            throw;
        } catch (...) {
            return 1;
        }
        return 0;
    }

    static int mt_call(const mt_native *c, void **tensors, const double *floats, void **results) {
        uint64_t w[MT_MOST_WORDS];
        double d[MT_MOST_DOUBLES];
        alignas(16) uint8_t bytes[MT_MOST_BYTES];
        void *made[MT_MOST_RESULTS] = {};      /* a tensor, a std::tuple of them or a std::vector's three addresses */
        std::memcpy(w, c->words, c->n_words * sizeof(uint64_t));
        std::memcpy(d, c->doubles, c->n_doubles * sizeof(double));
        std::memcpy(bytes, c->bytes, c->n_bytes);
        for (int i = 0; i < c->n_patches; i++) {
            const mt_patch p = c->patches[i];
            switch (p.kind) {
                case MT_POINTS: w[p.at] = reinterpret_cast<uint64_t>(bytes + p.value); break;
                case MT_TAKES: w[p.at] = reinterpret_cast<uint64_t>(tensors + p.value); break;
                case MT_HOLDS: std::memcpy(bytes + p.at, tensors + p.value, sizeof(void *)); break;
                case MT_NUMBER: std::memcpy(bytes + p.at, floats + p.value, sizeof(double)); break;
                case MT_ADDRESS: {
                    const void *there = bytes + p.value;
                    std::memcpy(bytes + p.at, &there, sizeof there);
                    break;
                }
                default: std::memcpy(d + p.at, floats + p.value, sizeof(double));
            }
        }
        if (c->returns != MT_NOTHING) w[0] = reinterpret_cast<uint64_t>(made);
        try {
            mt_jump(c->function, w, d, c->n_words);
        } catch (abi::__forced_unwind &) {     /* the thread ends */
            throw;
        } catch (...) {
            return 1;
        }
        if (c->returns == MT_TENSOR) {
            results[0] = made[0];
        } else if (c->returns == MT_TUPLE) {   /* its last member comes first */
            for (int i = 0; i < c->n_results; i++) results[i] = made[c->n_results - 1 - i];
        } else if (c->returns == MT_LIST) {
            void **begin = static_cast<void **>(made[0]), **end = static_cast<void **>(made[1]);
            const bool fits = end - begin == c->n_results;
            for (void **at = begin; at != end; at++) {
                if (fits) results[at - begin] = *at;
                else mt_give_up(*at);
            }
            ::operator delete(begin);
            return !fits;
        }
        return 0;
    }
    """
    bint MT_CAN
    ctypedef int (*mt_delete)(void **cell) noexcept
    mt_delete mt_delete_cell
    int mt_call "mt_call"(const void *c, void **tensors, const double *floats, void **results) noexcept nogil
    void mt_give_up(void *tensor) noexcept
    int mt_view "mt_view"(const void *on, void *call, int how, const int64_t *a, int n, const int64_t *b, int m,
                          int set_a, int set_b, void **made) noexcept


def start(size_t delete_cell):
    """(address of the function that makes a native call, of the one that gives up a C++ tensor); None: not here.

    delete_cell: torch's `aoti_torch_delete_tensor_object`.
    """
    global mt_delete_cell
    if not MT_CAN or not delete_cell:
        return None
    mt_delete_cell = <mt_delete>delete_cell
    return <size_t><mt_caller>mt_call, <size_t><mt_releaser>mt_give_up


def viewer():
    """Address of the function that makes a view, and says whether torch has thrown an exception instead."""
    return <size_t><mt_viewer>mt_view
