from libc.stdint cimport uint32_t

from .intern cimport OpInfo
from .tape cimport Handle, Tape

cdef Handle handle_of(object tensor)
