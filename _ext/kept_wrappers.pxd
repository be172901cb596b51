from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from .tape cimport Tape

# For tensors of this metadata: may wrappers be kept, and is inference mode on? 0: no wrapper is kept.
cdef bint keeping

# One that died and is as new, or None; it has no handle.
cdef object take(Tape tape, uint32_t meta, bint inference)

# The wrapper, of the class that calls return and just made, is what others of this metadata have to be like.
cdef void learn(Tape tape, uint32_t meta, bint inference, object wrapper) noexcept

# What torch counts of the writes to a tensor; -1 where it counts nothing, or its tensors are laid out in another way.
cdef int64_t version(PyObject *o) noexcept
cdef void advance(PyObject *o) noexcept        # one more; not where there is none
cdef uint64_t *keys_of(PyObject *o) noexcept   # where its dispatch keys are; NULL in the second case
