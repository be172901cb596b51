cdef bint is_long(tuple args, dict kwargs) except -1
cdef bint is_below() noexcept
cdef bint is_strided(str name) except -1
cdef object linked(object view, object out)
cdef int counted(object view, object out) except -1
