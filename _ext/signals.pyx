"""Exceptions that the program's own signal handlers raise while the engine is at work: they are the program's."""
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

from .interpreter cimport mt_is_kept_copy

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*func)(void*) noexcept, void *arg) noexcept
    void PyErr_SetObject(PyObject *kind, PyObject *value) noexcept

cdef enum:
    CO_OPTIMIZED = 1
    CO_VARARGS = 4


def by_signal_handler(BaseException error):
    """Was this raised in a signal handler, or by what one called, or because of that?"""
    return error_of_handler(error) is not None


def error_of_handler(BaseException error):
    """The error itself or that of its causes which was raised in a signal handler, or by what one called; else None.

    Causes: Python before 3.12 says that ``__set_name__`` failed where a handler struck in it.
    """
    for _ in range(16):                        # causes can be a circle
        if error is None or _from_handler(error):
            return error
        error = error.__cause__
    return None


cdef bint _from_handler(BaseException error) except -1:
    """A handler is told which frame it interrupted, and that is the frame below its own: nothing else is called like
    that.
    """
    cdef object link = error.__traceback__, frame
    while link is not None:
        frame = link.tb_frame
        if frame.f_back is not None and _handles(frame):
            return True
        link = link.tb_next
    return False


cdef bint _handles(object frame) except -1:
    """Was one of the frame's arguments the frame below it?"""
    cdef object code = frame.f_code, known, value
    cdef Py_ssize_t n = code.co_argcount
    cdef bint found = False
    if not n and not code.co_flags & CO_VARARGS:
        return False
    known = frame.f_locals
    for name in code.co_varnames[:n]:
        if known.get(name) is frame.f_back:
            found = True
    if code.co_flags & CO_VARARGS:
        n += code.co_kwonlyargcount
        for value in known.get(code.co_varnames[n], ()):
            if value is frame.f_back:
                found = True
    # A copy that the frame keeps holds what its variables were, the error among them: a cycle.
    if code.co_flags & CO_OPTIMIZED and mt_is_kept_copy(<PyObject *>known, 1):
        known.clear()
    return found


cdef bint interrupts(object error) except -1:
    """Does this, caught in the engine's work, have nothing to do with that work?"""
    return not isinstance(error, Exception) or by_signal_handler(error)


cdef int _raise(void *error) noexcept:
    cdef object held = <object><PyObject *>error
    cdef object kind = type(held)
    PyErr_SetObject(<PyObject *>kind, <PyObject *>error)
    Py_DECREF(held)
    return -1


def raise_soon(BaseException error):
    """Raise this in the main thread, where signal handlers run, as soon as that is back in Python code.

    For callers that can't raise: what was interrupted by a signal is interrupted a moment later.
    """
    Py_INCREF(error)
    if Py_AddPendingCall(_raise, <void *><PyObject *>error):
        Py_DECREF(error)
        raise RuntimeError("[raise_soon] the interpreter takes no more calls") from error
