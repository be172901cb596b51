cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from .structs cimport Slot

cdef extern from *:
    """
    #ifndef MT_NATIVE
    #define MT_NATIVE
    #include <stdint.h>
    #define MT_ON(base) ((void **)((char *)(base) + 2 * sizeof(void *)))      /* the at::Tensor in the Python object */
    enum {
        MT_MOST_WORDS = 22, MT_MOST_DOUBLES = 8, MT_MOST_TENSORS = 16, MT_MOST_RESULTS = 8, MT_MOST_BYTES = 1024,
        MT_TENSOR = 0, MT_NOTHING = 1, MT_TUPLE = 2, MT_LIST = 3,      /* what it returns */
        MT_POINTS = 0, MT_TAKES = 1, MT_HOLDS = 2, MT_NUMBER = 3, MT_ADDRESS = 4, MT_FLOAT = 5
    };
    typedef struct { uint16_t kind, at; uint32_t value; } mt_patch;
    /* A call by the C++ calling convention of x86-64: integers and addresses by word, those beyond six on the stack;
       floating-point numbers; bytes that words point into. Patches say what is put in at each call. */
    typedef struct {
        void *function;
        uint64_t *words;
        double *doubles;
        uint8_t *bytes;
        mt_patch *patches;
        uint16_t n_words, n_doubles, n_bytes, n_patches, n_tensors, n_floats, n_results, returns;
    } mt_native;
    typedef int (*mt_caller)(const mt_native *c, void **tensors, const double *floats, void **results);
    typedef void (*mt_releaser)(void *tensor);
    #endif
    """
    enum:
        MT_MOST_WORDS, MT_MOST_DOUBLES, MT_MOST_TENSORS, MT_MOST_RESULTS, MT_MOST_BYTES
        MT_TENSOR, MT_NOTHING, MT_TUPLE, MT_LIST
        MT_POINTS, MT_TAKES, MT_HOLDS, MT_NUMBER, MT_ADDRESS, MT_FLOAT
    ctypedef struct mt_patch:
        uint16_t kind, at
        uint32_t value
    ctypedef struct mt_native:
        void *function
        uint64_t *words
        double *doubles
        uint8_t *bytes
        mt_patch *patches
        uint16_t n_words, n_doubles, n_bytes, n_patches, n_tensors, n_floats, n_results, returns
    ctypedef int (*mt_caller)(const mt_native *c, void **tensors, const double *floats, void **results) noexcept nogil
    ctypedef void (*mt_releaser)(void *tensor) noexcept
    void **MT_ON(PyObject *base) noexcept

ctypedef PyObject *(*Wrap)(const void *tensor, PyObject *cls)      # makes a Python object of a C++ tensor


# A value that no Python object stands for: the address of the C++ tensor, with the lowest bit set.
cdef inline bint is_bare(PyObject *value) noexcept:
    return <size_t>value & 1

cdef inline PyObject *bare(void *tensor) noexcept:
    return <PyObject *>(<size_t>tensor | 1)

cdef inline void *tensor_in(PyObject *value) noexcept:
    return <void *>(<size_t>value & ~<size_t>1) if is_bare(value) else MT_ON(value)[0]


# The Python object that stands from now on for a value, which is held there; for a slot's.
cdef object object_for(PyObject **where)

cdef inline object object_of(Slot *slot):
    return object_for(&slot.concrete)

# Give up a value.
cdef void release(PyObject *value) noexcept


@cython.final
cdef class NativeCall:
    cdef mt_native c
    cdef readonly uint32_t nbytes      # of this description
    cdef readonly bint brief           # too short for other threads to take a turn
    cdef readonly object in_place      # the call that writes its result over its first argument; None: there is none

    # Make it. 0: done, and `results` are the caller's; else it has had no effect but those of a call that failed.
    cdef int run(self, PyObject **inputs, const double *floats, void **results)
