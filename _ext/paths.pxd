"""Module paths as small numbers. All functions need the GIL."""
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

cdef enum:
    NO_PATH = 0xFFFFFFFE       # with an error set

# Path of `child`, called by the innermost of the `depth` running modules (depth > 0); ids are their paths. NO_PATH
# with the error set when looking it up raised (a module's own named_modules may). No frame of ours enters it.
cdef uint32_t path_of_child(PyObject *child, PyObject **stack, const uint32_t *ids, uint32_t depth) noexcept
# Path of a module called while none runs; `node` is the path of the autograd node that calls it again, 0 for none.
cdef uint32_t path_of_outermost(PyObject *child, uint32_t node) noexcept
