"""Blocks of device memory as Python objects."""
from mindtorch._ext.allocator cimport Piece, Pin
from mindtorch._ext.pool cimport Lane, Unit

# Owns a piece of device memory, which goes back to the allocator when the object dies.
cdef class Block:
    cdef Piece *piece             # NULL for 0 bytes
    cdef Unit *unit
    cdef Lane *lane               # the stream it was allocated on
    cdef char *address
    cdef readonly size_t nbytes
    cdef readonly int device
    cdef object __weakref__

cdef class Pinned:
    cdef Pin *pin
    cdef readonly Py_ssize_t nbytes
    cdef object __weakref__
