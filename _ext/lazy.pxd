from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t

from .structs cimport Record
from .tape cimport Handle, Tape

cdef extern from *:
    """
    #define MT_TYPE(obj) ((PyObject *)Py_TYPE(obj))
    #define MT_SUBTYPE(a, b) PyType_IsSubtype((PyTypeObject *)(a), (PyTypeObject *)(b))
    """
    PyObject* type_of "MT_TYPE"(PyObject* o) noexcept
    bint is_subtype "MT_SUBTYPE"(PyObject* a, PyObject* b) noexcept

cdef Tape get_tape()
cdef Handle handle_of(object t)
cdef PyObject *class_of_results() noexcept     # what calls on recorded tensors return
cdef void give_handle(object t, Handle h) noexcept     # to an object of that class which has none
cdef tuple contiguous(object size)             # the strides of a new tensor of this size
cdef bint is_ours(object cls) noexcept
cpdef int device_index(t) except? -1
cdef PyObject *handle_beside(PyObject *o) except? NULL
cdef object wrap(uint32_t slot, uint32_t meta, bint no_grad, Record *r, const void *floats)
cdef object rename(Handle h, bint no_grad)

# Of a slot in a place without data: does its storage have real memory, kept by an estimate? And: let go of it.
cdef bint has_kept(uint32_t slot) noexcept
cdef bint has_noted(uint32_t slot) noexcept    # or is it known what was decided of it?
cdef void forget_kept(uint32_t slot) noexcept
