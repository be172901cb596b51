from libc.stdint cimport uint32_t

from .tape cimport Tape

# For tensors of this metadata: may wrappers be kept, and is inference mode on? 0: no wrapper is kept.
cdef bint keeping

# One that died and is as new, or None; it has no handle.
cdef object take(Tape tape, uint32_t meta, bint inference)

# The wrapper, of the class that calls return and just made, is what others of this metadata have to be like.
cdef void learn(Tape tape, uint32_t meta, bint inference, object wrapper) noexcept
