from libc.stdint cimport uint32_t

from .intern cimport OpInfo

cdef object NOT_RECORDED

# Can a call of the function be recorded whole, as it is? Does nothing stand between Python and the kernel?
cdef bint may_be_whole(OpInfo info) except -1

# Record the call that was encoded; NOT_RECORDED where it is not known, or torch has to see it.
cdef object known(OpInfo info)

# Record the call whole, if its arguments are constants and tensors of ours and its result can be inferred.
cdef object whole_call(OpInfo info, tuple args, dict kwargs)

# What shortcuts.pyx shares: may calls be recorded that torch has to see once? The grad mode, asked for by the first:
# does it say that no result can have a gradient? The call of number `sid`, whose inputs are in the key, recorded.
cdef bint may_be_short() except -1
cdef bint grad_is_off() except -1
cdef bint grad_mode() noexcept
cdef object finish(uint32_t sid)
cdef int limit() except -1     # run or drop what waits, if it is much
cdef void counted_whole() noexcept
