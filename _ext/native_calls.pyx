"""Recorded calls made without Python: arguments laid out once, operators called by the names that torch exports.

`at::_ops::add_Tensor::call` is what torch's own Python binding of `add` comes to, once it has parsed its arguments and
before it makes a Python object of the result. A `NativeCall` holds the arguments as C++ functions take them; what
differs from call to call (tensors, and floats that the key of a recorded call leaves open) is put in. Results stay C++
tensors until Python asks for them.

`mindtorch.engine.passes.native` lays the arguments out, and proves each call against Python's before it is used.
"""
cimport cython
from cpython.ref cimport Py_DECREF, PyObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from .local_state cimport keys, no_keys

# For those that lay calls out.
POINTS, TAKES, HOLDS, NUMBER, ADDRESS, FLOAT = MT_POINTS, MT_TAKES, MT_HOLDS, MT_NUMBER, MT_ADDRESS, MT_FLOAT
TENSOR, NOTHING, TUPLE, LIST = MT_TENSOR, MT_NOTHING, MT_TUPLE, MT_LIST
MOST_WORDS, MOST_DOUBLES, MOST_BYTES = MT_MOST_WORDS, MT_MOST_DOUBLES, MT_MOST_BYTES
MOST_TENSORS, MOST_RESULTS = MT_MOST_TENSORS, MT_MOST_RESULTS

cdef Wrap wrap_ = NULL
cdef mt_caller caller = NULL
cdef mt_releaser releaser = NULL
cdef uint64_t plain_keys = 0               # dispatch keys of a tensor with its numbers in the CPU's memory
cdef uint64_t to_autograd = 0              # those by which operators come to autograd's part that makes nodes
cdef long keys_at = 0                      # where a C++ tensor has them, in words
cdef object tensor_class = None


def start(size_t call, size_t give_up, size_t wrap, long at, uint64_t plain, uint64_t autograd, cls):
    """Make calls by the functions of `catching`; the rest is what `native_views.facts` says, and torch.Tensor."""
    global caller, releaser, wrap_, keys_at, plain_keys, to_autograd, tensor_class
    wrap_, keys_at, plain_keys, to_autograd, tensor_class = <Wrap>wrap, at, plain, autograd, cls
    caller, releaser = <mt_caller>call, <mt_releaser>give_up


cdef object object_for(PyObject **where):
    cdef PyObject *held = where[0]
    cdef void *tensor
    cdef PyObject *made
    if not is_bare(held):
        return <object>held
    tensor = tensor_in(held)
    made = wrap_(&tensor, <PyObject *>tensor_class)
    result = <object>made
    if where[0] == held:               # else a finalizer that ran meanwhile has asked for it, too: torch makes one
        where[0] = made
        releaser(tensor)
    else:
        Py_DECREF(result)
    return result


cdef void release(PyObject *value) noexcept:
    if is_bare(value):
        releaser(tensor_in(value))
    else:
        Py_DECREF(<object>value)


@cython.final
cdef class NativeCall:
    def __cinit__(self, size_t function, int returns, int n_results, int n_tensors, int n_floats, list words,
                  list doubles, bytes constants, list patches, bint brief, in_place=None):
        """`words`, `doubles`: constants. `patches`: (kind, at, value): see MT_POINTS … in native_calls.pxd."""
        cdef int i
        self.c.function = <void *>function
        self.c.returns, self.c.n_results = returns, n_results
        self.c.n_tensors, self.c.n_floats = n_tensors, n_floats
        self.c.n_words, self.c.n_doubles = len(words), len(doubles)
        self.c.n_bytes, self.c.n_patches = len(constants), len(patches)
        self.c.words = <uint64_t *>calloc(len(words) + 1, sizeof(uint64_t))
        self.c.doubles = <double *>calloc(len(doubles) + 1, sizeof(double))
        self.c.bytes = <unsigned char *>malloc(len(constants) + 1)
        self.c.patches = <mt_patch *>calloc(len(patches) + 1, sizeof(mt_patch))
        if not (self.c.words and self.c.doubles and self.c.bytes and self.c.patches):
            raise MemoryError()
        for i in range(len(words)):
            self.c.words[i] = words[i]
        for i in range(len(doubles)):
            self.c.doubles[i] = doubles[i]
        memcpy(self.c.bytes, <const char *>constants, len(constants))
        for i in range(len(patches)):
            self.c.patches[i].kind, self.c.patches[i].at, self.c.patches[i].value = patches[i]
        self.brief, self.in_place = brief, in_place
        self.nbytes = 8 * (len(words) + len(doubles) + len(patches)) + len(constants) + sizeof(mt_native)
        if in_place is not None:
            self.nbytes += (<NativeCall>in_place).nbytes

    def __dealloc__(self):
        free(self.c.words)
        free(self.c.doubles)
        free(self.c.bytes)
        free(self.c.patches)

    cdef int run(self, PyObject **inputs, const double *floats, void **results):
        cdef void *tensors[MT_MOST_TENSORS]
        cdef int i, failed
        if not no_keys():
            return 1
        for i in range(self.c.n_tensors):
            tensors[i] = tensor_in(inputs[i])
            if (<uint64_t *>tensors[i])[keys_at] != plain_keys:
                return 1
        keys().excluded = to_autograd
        if self.brief:
            failed = caller(&self.c, tensors, floats, results)
        else:
            with nogil:
                failed = caller(&self.c, tensors, floats, results)
        keys().excluded = 0
        return failed

    def __call__(self, tuple tensors, tuple floats=()):
        """Its results, in a list; None where it failed. For tests, and for those that prove it."""
        cdef PyObject *inputs[MT_MOST_TENSORS]
        cdef void *results[MT_MOST_RESULTS]
        cdef double numbers[MT_MOST_TENSORS]
        cdef int i
        if len(tensors) != self.c.n_tensors or len(floats) != self.c.n_floats:
            raise ValueError(f"[NativeCall] expected {self.c.n_tensors} tensors and {self.c.n_floats} floats, "
                             f"got {len(tensors)} and {len(floats)}")
        for i in range(len(tensors)):
            inputs[i] = <PyObject *>tensors[i]
        for i in range(len(floats)):
            numbers[i] = floats[i]
        if caller == NULL or self.run(inputs, numbers, results):
            return None
        found = []
        for i in range(self.c.n_results):
            found.append(<object>wrap_(&results[i], <PyObject *>tensor_class))
            Py_DECREF(found[i])
            releaser(results[i])
        return found
