from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t

from .intern cimport OpInfo

cdef enum:
    OK = 0
    FOREIGN = 1            # holds something that is not a constant or a lazy tensor: the slow path decides
    MIXED = 2              # tensors of ours in two places
    MAX_FLOATS = 255       # of a call that stand beside its key

cdef struct Key:
    uint8_t *buf           # the key: buf[0:n]
    size_t n, cap
    uint32_t *ins          # slots of the tensors in it, in order
    uint32_t *metas        # their metadata
    PyObject **objs        # borrowed: the tensors themselves
    size_t n_ins, cap_ins
    int device             # their place (MetaS.device); NO_PLACE without tensors
    bint uncertain         # some tensor may require grad
    bint exact             # floats are part of all keys
    int apart              # FloatsApart: which floats of this call stand beside the key
    double floats[MAX_FLOATS]  # those, in order
    uint32_t serial        # of the key: another number, another key
    bint strangers         # any_foreign has seen what is neither a tensor nor a constant
    int first              # the place of the first tensor without data that any_foreign has seen
    bint places            # it has seen such tensors in two places

cdef Key *current_key() noexcept
cdef int room(size_t extra) except -1
cdef void start(OpInfo info, uint8_t nargs, uint8_t nkw) noexcept
cdef int encode(PyObject *o) except -1
cdef int encode_call(OpInfo info, tuple args, dict kwargs) except -1
cdef int encode_vector(OpInfo info, PyObject **given, Py_ssize_t n, PyObject *names) except -1
cdef bint is_ours(PyObject *o) noexcept            # is it of a class that calls return?
cdef bint any_foreign(tuple args, dict kwargs) except -1

# Classes of the program's that have a say in calls: see keys.pyx.
cdef object NOBODY
cdef bint asks_first(PyObject *ty) except -1
cdef bint somebody_asks_first() noexcept
cdef object give_way(object func, tuple args, object kwargs)
cdef object others_first(object func, object types, tuple args, object kwargs)
