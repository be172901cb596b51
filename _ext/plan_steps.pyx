"""Calls of a plan that a worker has run before, made ready: all but their tensors is put in (SPEC R1, L13).

A worker runs a plan's first repetitions call by call in Python, and compares each result with what the program was
told. What it found to be so, for metadata that stays the same, runs here.
"""
cimport cython
from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef extern from "Python.h":
    object PyObject_Vectorcall(PyObject *callable, PyObject **args, size_t nargsf, PyObject *kwnames)
    size_t VECTORCALL_OFFSET "PY_VECTORCALL_ARGUMENTS_OFFSET"

cdef enum:
    MOST_ARGUMENTS = 32


@cython.final
cdef class ReadyStep:
    """One call. ``counts``: what it adds to those of `run_ready`."""

    cdef object call
    cdef object names            # of its keywords, None without any
    cdef object check            # is asked about each result that may be on memory of others; None: nothing is
    cdef list held               # all arguments; None where a tensor goes
    cdef PyObject **argv         # the same
    cdef uint32_t *numbers       # position and value of each tensor; positions of outputs among results; dying values
    cdef uint32_t n_args, n_keywords, n_places, n_outputs, n_dying
    cdef bint grad, single, direct, in_place
    cdef uint64_t nbytes

    def __cinit__(self, call, tuple args, dict kwargs, tuple places, tuple outputs, tuple dying, bint grad, bint single,
                  check=None, bint direct=False, bint in_place=False, uint64_t nbytes=0):
        """call(*args, **kwargs), where ``places`` say which values go in: (position among both, index) each.

        outputs: positions among the results; dying: indices of values that nothing needs afterwards. direct, in_place:
        is it called by a shorter way, over its first argument, which saves so many bytes?
        """
        cdef Py_ssize_t k
        cdef list numbers = []
        self.call, self.check, self.names = call, check, tuple(kwargs) or None
        self.held = [*args, *kwargs.values()]
        self.n_args, self.n_keywords = len(args), len(kwargs)
        if len(self.held) > MOST_ARGUMENTS:
            raise ValueError(f"[ReadyStep] expected at most {MOST_ARGUMENTS} arguments, got {len(self.held)}")
        for place in places:
            numbers.extend(place)
        numbers += [*outputs, *dying]
        self.n_places, self.n_outputs, self.n_dying = len(places), len(outputs), len(dying)
        self.argv = <PyObject **>calloc(len(self.held) + 1, sizeof(PyObject *))
        self.numbers = <uint32_t *>calloc(len(numbers) + 1, sizeof(uint32_t))
        if not self.argv or not self.numbers:
            raise MemoryError()
        for k in range(len(numbers)):
            self.numbers[k] = numbers[k]
        for k in range(len(places)):
            if not 0 <= places[k][0] < len(self.held):
                raise IndexError(f"[ReadyStep] expected a position below {len(self.held)}, got {places[k][0]}")
        for k in range(len(self.held)):
            self.argv[k] = <PyObject *>self.held[k]
        self.grad, self.single, self.direct, self.in_place, self.nbytes = grad, single, direct, in_place, nbytes

    def __dealloc__(self):
        free(self.argv)
        free(self.numbers)

    def put(self, Py_ssize_t position, value):
        """Another constant at a position among the arguments, where no tensor goes."""
        self.held[position] = value
        self.argv[position] = <PyObject *>value

    cdef object run(self, list values):
        cdef PyObject *argv[MOST_ARGUMENTS + 1]
        cdef uint32_t k
        cdef PyObject *given
        argv[0] = NULL
        memcpy(argv + 1, self.argv, (self.n_args + self.n_keywords) * sizeof(PyObject *))
        for k in range(self.n_places):
            given = PyList_GET_ITEM(values, self.numbers[2 * k + 1])
            Py_INCREF(<object>given)
            argv[1 + self.numbers[2 * k]] = given
        try:
            return PyObject_Vectorcall(<PyObject *>self.call, argv + 1, self.n_args | VECTORCALL_OFFSET,
                                       <PyObject *>self.names if self.names is not None else NULL)
        finally:
            for k in range(self.n_places):
                Py_DECREF(<object>argv[1 + self.numbers[2 * k]])

    cdef int store(self, object result, list values) except -1:
        """Append the outputs; then let go of what nothing needs any more."""
        cdef uint32_t *outputs = self.numbers + 2 * self.n_places
        cdef uint32_t *dying = outputs + self.n_outputs
        cdef uint32_t k
        for k in range(self.n_outputs):
            value = result if self.single else result[outputs[k]]
            if self.check is not None:
                self.check(value)
            values.append(value)
        for k in range(self.n_dying):
            values[dying[k]] = None
        return 0


@cython.final
cdef class ReadySteps:
    """Those of a plan by number, None where Python runs it. ``at``: the next one.

    totals: calls by a shorter way, those whose results took the memory of an input, its bytes.
    """

    cdef readonly list steps
    cdef readonly Py_ssize_t at
    cdef readonly tuple totals

    def __init__(self, Py_ssize_t n):
        self.steps = [None] * n
        self.totals = 0, 0, 0

    def counted(self):
        """The totals, which begin anew."""
        totals, self.totals = self.totals, (0, 0, 0)
        return totals

    def run(self, list values, Py_ssize_t at, set_grad, type failed):
        """Run from number ``at`` up to what Python runs, or what is given a value that has ``failed``; ``at`` is that
        then, or the one that raised.
        """
        cdef ReadyStep step
        cdef uint32_t k
        cdef uint64_t direct = 0, in_place = 0, nbytes = 0
        cdef int grad = -1
        self.at = at
        try:
            while self.at < len(self.steps):
                if self.steps[self.at] is None:
                    return
                step = self.steps[self.at]
                for k in range(step.n_places):
                    if type(values[step.numbers[2 * k + 1]]) is failed:
                        return
                if grad != step.grad:
                    grad = step.grad
                    set_grad(step.grad)
                step.store(step.run(values), values)
                direct += step.direct
                in_place += step.in_place
                nbytes += step.nbytes
                self.at += 1
        finally:
            self.totals = self.totals[0] + direct, self.totals[1] + in_place, self.totals[2] + nbytes
