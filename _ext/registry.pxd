from .intern cimport OpInfo

cdef OpInfo info_of(object func, bint dispatch)
cdef int set_info(object func, OpInfo info) except -1
cdef void set_describe(object asked) noexcept
