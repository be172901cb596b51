"""Streams and events as Python objects."""
from mindtorch._ext.pool cimport Lane

# The index that a device argument names: checked to be one that can exist; the thread's current one for None.
cdef int device_argument(object device) except -1
# The Stream that stands for a lane, always the same one.
cdef object stream_object(Lane *lane)

cdef class Stream:
    cdef Lane *lane
    cdef Lane *there(self) except NULL
