from .intern cimport OpInfo

cdef object NOT_RECORDED

# Can a call of the function be recorded whole, as it is? Does nothing stand between Python and the kernel?
cdef bint may_be_whole(OpInfo info) except -1

# Record the call that was encoded; NOT_RECORDED where it is not known, or torch has to see it.
cdef object known(OpInfo info)

# Record the call whole, if its arguments are constants and tensors of ours and its result can be inferred.
cdef object whole_call(OpInfo info, tuple args, dict kwargs)
