from cpython.object cimport PyObject
from libc.stdint cimport int64_t

cdef enum:
    MAX_NUMBERS = 12

cdef struct View:
    void *call                 # at::_ops::NAME::call
    int how                    # which arguments it takes: see Form
    int n, m                   # numbers in the first list, in the second
    int64_t numbers[MAX_NUMBERS]
    bint set_a, set_b          # of optional numbers: are they given?

# Fill `view` with what makes the view that the operator makes of its first argument, given the others.
# False: it has no way here.
cdef bint describe(View *view, str name, tuple args) except -1

# The views made one of the other, beginning with the wrapper `base`: the last one, of class `cls`. None: not now.
# `no_node`: it is certain that autograd gives them no history.
cdef object make(PyObject *base, View *views, int n, PyObject *cls, bint no_node=*)
