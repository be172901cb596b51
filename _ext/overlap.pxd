from .intern cimport OpInfo
from .structs cimport SigS

cdef bint refused_overlap(OpInfo info, SigS *s) noexcept
