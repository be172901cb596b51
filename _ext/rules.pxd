from mindtorch._ext.layout cimport Operand

cdef list contiguous_result(Operand *op, int dtype)
cdef tuple bind(tuple args, dict kwargs, tuple names, tuple defaults)
