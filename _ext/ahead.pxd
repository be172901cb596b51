# Hand over what was recorded, as far as the other thread can make these calls.
cdef int hand_over() except -1
