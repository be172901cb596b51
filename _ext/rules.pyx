"""What the shape rules share. A rule is ``rule(args, kwargs, spec) -> [(shape, strides, dtype), ...] or None``."""
from mindtorch._ext.layout cimport Operand, describe, make_contiguous


cdef list contiguous_result(Operand *op, int dtype):
    """One result of op's sizes, newly made: contiguous. Overwrites op's strides and dtype."""
    op.dtype = dtype
    make_contiguous(op)
    return [describe(op)]


cdef tuple bind(tuple args, dict kwargs, tuple names, tuple defaults):
    """Arguments by position and name, as a tuple as long as `names`; None if one is unknown or given twice."""
    cdef int given = len(args)
    if given > len(names):
        return None
    values = list(args) + list(defaults[given:])
    for key, value in kwargs.items():
        if key not in names:
            return None
        index = names.index(key)
        if index < given:
            return None
        values[index] = value
    return tuple(values)
