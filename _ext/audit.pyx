"""Hears of the audit events that a program causes, without a call of Python for each: ``id(x)`` is one."""
from cpython.object cimport PyObject
from libc.string cimport strlen, strncmp

cdef extern from "Python.h":
    int PySys_AddAuditHook(int (*hook)(const char *, PyObject *, void *) except -1 with gil, void *data) except -1

cdef dict _heard = {}                          # beginnings of names of events -> who is told
cdef bint _may_begin[256]                      # by the first byte of a name


cdef int _hook(const char *event, PyObject *args, void *data) except -1 with gil:
    if not _may_begin[<unsigned char> event[0]] or _heard is None:     # None: the interpreter ends
        return 0
    for beginning, tell in _heard.items():
        if strncmp(event, <const char *> beginning, strlen(<const char *> beginning)) == 0:
            tell(event.decode(), <object> args)
    return 0


def hear(bytes beginning, tell):
    """Call ``tell(event, args)`` at events whose names begin so, from now on: there is no way back.

    What it raises, the program gets.
    """
    if not _heard:
        PySys_AddAuditHook(_hook, NULL)
    _may_begin[beginning[0]] = True
    _heard[beginning] = tell
