"""What a profile knows of an operator, once for all of its calls."""
cimport cython


@cython.final
cdef class Runs:
    """How often lazy ops of one name were recorded and ran."""


@cython.final
cdef class Op:
    """What is the same for all calls of one operator."""

    def __init__(self, func, call, name, category, has_formula, is_free, allocates, writes, is_run=False,
                 by_output=False, may_copy=False):
        self.func = func
        self.call = call
        self.name = name
        self.category = category
        self.has_formula = has_formula
        self.is_free = is_free
        self.allocates = allocates
        self.may_copy = may_copy
        self.writes = writes
        self.is_run = is_run
        self.by_output = by_output
        self.sigs = {}
        self.costs = {}
        self.plain = 0
        self.detaches = name == "aten::detach"
        self.begins = name.startswith("profiler::_record_function_enter")
        self.ends = name.startswith("profiler::_record_function_exit")
