from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from .intern cimport OpInfo

# Do what the call came to the last time: one write, or views of one tensor. NOT_RECORDED: that is not known, or torch
# has to see the call.
cdef object shortcut(OpInfo info, tuple args, dict kwargs)
cdef object first(OpInfo info, tuple args, dict kwargs)        # the same, before torch comes to ask

# Remember what the call that was encoded before came to. `since`: where its first record stands, `version`: what
# `version_of` said before. `out`: what it gave.
cdef int remember(OpInfo info, tuple args, dict kwargs, uint64_t since, int64_t version, object out) except -1

# What torch counts of the writes to a tensor of ours; -1 where it counts nothing, and of what is none.
cdef int64_t version_of(PyObject *o) except? -1
cdef bint may_remember         # after shortcut(): may it be that the call comes to the same each time?
