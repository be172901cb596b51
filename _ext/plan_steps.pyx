"""Calls of a plan that a worker has run before, made ready: all but their tensors is put in (SPEC R1, L13).

A worker runs a plan's first repetitions call by call in Python, and compares each result with what the program was
told. What it found to be so, for metadata that stays the same, runs here; what has run here often is made without
Python (see native_calls.pyx), and its results are no Python objects until one is asked for.
"""
cimport cython
from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from .forms cimport Step
from .local_state cimport no_keys
from .native_calls cimport MT_MOST_RESULTS, MT_MOST_TENSORS, NativeCall, bare, is_bare, object_for, release
from .replay cimport often


@cython.final
cdef class ReadyStep:
    """One call. ``native``: what makes it without Python, if anything does."""

    cdef Step step
    cdef object check            # is asked about each result that may be on memory of others; None: nothing is
    cdef object prove            # gives the call that does without Python, or None; None: it was asked, or must not be
    cdef readonly NativeCall native
    cdef tuple open              # positions of the floats that may change
    cdef double *floats          # these
    cdef uint32_t *outputs       # positions among results; then dying values
    cdef uint32_t n_outputs, n_dying, times
    cdef bint grad, single, direct, in_place
    cdef uint64_t nbytes

    def __cinit__(self, call, tuple args, dict kwargs, tuple places, tuple outputs, tuple dying, bint grad, bint single,
                  check=None, bint direct=False, bint in_place=False, uint64_t nbytes=0, prove=None):
        """call(*args, **kwargs), where ``places`` say which values go in: (position among both, index) each.

        outputs: positions among the results; dying: indices of values that nothing needs afterwards. direct, in_place:
        is it called by a shorter way, over its first argument, which saves so many bytes? prove(tensors, floats): the
        NativeCall that takes these tensors and the floats among the arguments, or None.
        """
        cdef Py_ssize_t k
        cdef list open_ = []
        self.step = Step(call, args, kwargs, places)
        self.check, self.prove = check, prove
        for k in range(len(self.step.held)):
            if type(self.step.held[k]) is float:
                open_.append(k)
        self.open = tuple(open_)
        self.n_outputs, self.n_dying = len(outputs), len(dying)
        self.outputs = <uint32_t *>calloc(len(outputs) + len(dying) + 1, sizeof(uint32_t))
        self.floats = <double *>calloc(len(self.open) + 1, sizeof(double))
        if not self.outputs or not self.floats:
            raise MemoryError()
        for k in range(len(self.open)):
            self.floats[k] = self.step.held[self.open[k]]
        for k in range(len(outputs)):
            self.outputs[k] = outputs[k]
        for k in range(len(dying)):
            self.outputs[len(outputs) + k] = dying[k]
        self.grad, self.single, self.direct, self.in_place, self.nbytes = grad, single, direct, in_place, nbytes

    def __dealloc__(self):
        free(self.outputs)
        free(self.floats)

    def put(self, Py_ssize_t position, value):
        """Another constant at a position among the arguments, where no tensor goes."""
        self.step.put(position, value)
        if position in self.open:
            self.floats[self.open.index(position)] = value

    cdef int look_for_native(self, PyObject **values) except -1:
        """Count the call; once it has run often enough to pay, ask for one that does without Python."""
        cdef uint32_t k
        cdef list tensors = [], numbers = []
        if not no_keys():
            return 0
        self.times += 1
        if self.times < often:
            return 0
        prove, self.prove = self.prove, None
        for k in range(self.step.n_places):
            tensors.append(object_for(&values[self.step.places[2 * k + 1]]))
        for position in self.open:
            numbers.append(self.step.held[position])
        self.native = prove(tensors, tuple(numbers))
        return 0

    cdef bint run_native(self, PyObject **values, size_t n) noexcept:
        """Make it without Python, and put what it gives behind the ``n`` values. False: it was not made, or has failed.
        """
        cdef PyObject *inputs[MT_MOST_TENSORS]
        cdef void *results[MT_MOST_RESULTS]
        cdef NativeCall call = self.native
        cdef bint over = self.in_place and call.in_place is not None
        cdef uint32_t k, i
        for k in range(self.step.n_places):
            inputs[k] = values[self.step.places[2 * k + 1]]
        if over:
            call = <NativeCall>call.in_place
        if call.run(inputs, self.floats, results):
            return False
        if over:
            i = self.step.places[1]            # nothing needs it any more
            values[n], values[i] = values[i], NULL
            return True
        for k in range(self.n_outputs):
            values[n + k] = bare(results[self.outputs[k]])
        for i in range(call.c.n_results):
            for k in range(self.n_outputs):
                if self.outputs[k] == i:
                    break
            else:
                release(bare(results[i]))
        return True

    cdef int run(self, PyObject **values, size_t n) except -1:
        """Make it by Python's function."""
        cdef uint32_t k
        cdef list found = []
        for k in range(self.step.n_places):
            object_for(&values[self.step.places[2 * k + 1]])
        result = self.step.run(values)
        for k in range(self.n_outputs):
            value = result if self.single else result[self.outputs[k]]
            if self.check is not None:
                self.check(value)
            found.append(value)
        for k in range(self.n_outputs):
            Py_INCREF(found[k])
            values[n + k] = <PyObject *>found[k]
        return 0

    cdef void let_go(self, PyObject **values) noexcept:
        """Of what nothing needs after it."""
        cdef uint32_t k
        cdef PyObject *value
        for k in range(self.n_outputs, self.n_outputs + self.n_dying):
            value = values[self.outputs[k]]
            values[self.outputs[k]] = NULL
            if value:
                release(value)


@cython.final
cdef class ReadySteps:
    """Those of a plan by number, None where Python runs it. ``at``: the next one.

    totals: calls by a shorter way, those whose results took the memory of an input, its bytes, calls without Python.
    """

    cdef readonly list steps
    cdef readonly Py_ssize_t at
    cdef readonly tuple totals

    def __init__(self, Py_ssize_t n):
        self.steps = [None] * n
        self.totals = 0, 0, 0, 0

    def counted(self):
        """The totals, which begin anew."""
        totals, self.totals = self.totals, (0, 0, 0, 0)
        return totals

    def run(self, list values, Py_ssize_t at, set_grad, type failed):
        """Run from number ``at`` up to what Python runs, or what is given a value that has ``failed``; ``at`` is that
        then, or the one that raised.
        """
        cdef size_t n = len(values), most = n
        cdef Py_ssize_t k
        cdef PyObject **held
        self.at = at
        for k in range(at, len(self.steps)):
            if self.steps[k] is None:
                break
            most += (<ReadyStep>self.steps[k]).n_outputs
        if at == len(self.steps) or self.steps[at] is None:
            return
        held = <PyObject **>calloc(most + 1, sizeof(PyObject *))
        if not held:
            raise MemoryError()
        for k in range(len(values)):           # which are let go of in order: nothing else must hold them
            held[k] = PyList_GET_ITEM(values, k)
            Py_INCREF(<object>held[k])
        values.clear()
        try:
            self._run(held, &n, set_grad, failed)
        finally:
            try:
                for k in range(<Py_ssize_t>n):
                    values.append(object_for(&held[k]) if held[k] else None)
            finally:
                for k in range(<Py_ssize_t>most):
                    if held[k]:
                        release(held[k])
                free(held)

    cdef int _run(self, PyObject **values, size_t *n, set_grad, type failed) except -1:
        cdef ReadyStep step
        cdef PyObject *value
        cdef uint32_t k
        cdef uint64_t direct = 0, in_place = 0, nbytes = 0, native = 0
        cdef int grad = -1
        try:
            while self.at < len(self.steps):
                if self.steps[self.at] is None:
                    return 0
                step = self.steps[self.at]
                for k in range(step.step.n_places):
                    value = values[step.step.places[2 * k + 1]]
                    if not is_bare(value) and type(<object>value) is failed:
                        return 0
                if grad != step.grad:
                    grad = step.grad
                    set_grad(step.grad)
                if step.prove is not None:
                    step.look_for_native(values)
                if step.native is not None and step.run_native(values, n[0]):
                    native += 1
                    if step.native.in_place is not None:
                        in_place += step.in_place
                        nbytes += step.nbytes
                else:
                    step.run(values, n[0])
                    direct += step.direct
                    in_place += step.in_place
                    nbytes += step.nbytes
                n[0] += step.n_outputs
                step.let_go(values)
                self.at += 1
        finally:
            totals = self.totals
            self.totals = totals[0] + direct, totals[1] + in_place, totals[2] + nbytes, totals[3] + native
        return 0
