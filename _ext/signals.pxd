cdef bint interrupts(object error) except -1
