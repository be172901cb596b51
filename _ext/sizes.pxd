"""What structs may take: the build fails when one outgrows it."""

cdef extern from *:
    """
    #define MT_ASSERT(c) ((void)sizeof(char[(c) ? 1 : -1]))
    """
    void MT_ASSERT(bint) noexcept nogil
