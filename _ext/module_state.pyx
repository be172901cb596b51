"""What modules hold besides parameters and settings: looked at around each outermost call that gets token ids.

A model has hundreds of modules with dozens of attributes each, nearly all of which are settings of it.
"""
from cpython.dict cimport PyDict_GetItem, PyDict_Next
from cpython.list cimport PyList_GET_ITEM
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_TYPE
from cpython.set cimport PySet_Add, PySet_Contains
from libc.stdint cimport uintptr_t

cdef extern from "Python.h":
    int PyGC_Disable() noexcept
    int PyGC_Enable() noexcept
    bint PyObject_TypeCheck(PyObject *o, PyTypeObject *type) noexcept

cdef PyTypeObject *INT = <PyTypeObject *>int
cdef PyTypeObject *FLOAT = <PyTypeObject *>float
cdef PyTypeObject *BOOL = <PyTypeObject *>bool
cdef PyTypeObject *STR = <PyTypeObject *>str


cdef bint is_setting(PyObject *value) noexcept:
    cdef PyTypeObject *kind = <PyTypeObject *>Py_TYPE(<object>value)
    return value == <PyObject *>None or kind == BOOL or kind == INT or kind == FLOAT or kind == STR


def values(module, frozenset besides, tensor_class):
    """[value] of buffers, and of attributes whose names are not in `besides`, of the module and all below it: tensors,
    lists, tuples, and whatever is named a cache.
    """
    cdef list found = []
    cdef int collects = PyGC_Disable()     # a finalizer might change the dicts that are gone through
    try:
        _look(module, besides, <PyTypeObject *>tensor_class, found)
    finally:
        if collects:
            PyGC_Enable()
    return found


cdef int _look(module, frozenset besides, PyTypeObject *tensor_class, list found) except -1:
    cdef list todo = [module]
    cdef set seen = {<uintptr_t><PyObject *>module}
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t at
    cdef object each, held, number
    cdef dict own
    cdef list usual = []           # of `besides`, those of the first module, in its order: it is that of nearly all
    cdef Py_ssize_t k
    while todo:
        each = todo.pop()
        own = each.__dict__
        held = _dict_of(each, own, "_modules")
        at = 0
        while PyDict_Next(held, &at, &key, &value):
            if value != <PyObject *>None:
                number = <uintptr_t>value
                if not PySet_Contains(seen, number):
                    PySet_Add(seen, number)
                    todo.append(<object>value)
        held = _dict_of(each, own, "_buffers")
        at = 0
        while PyDict_Next(held, &at, &key, &value):
            if PyObject_TypeCheck(value, tensor_class):
                found.append(<object>value)
        at = k = 0
        while PyDict_Next(own, &at, &key, &value):
            if k < len(usual) and PyList_GET_ITEM(usual, k) == key:
                k += 1
                continue
            if is_setting(value) or not isinstance(<object>key, str):
                continue
            if PySet_Contains(besides, <object>key):
                if each is module:
                    usual.append(<object>key)
                    k += 1
                continue
            if PyObject_TypeCheck(value, tensor_class) or isinstance(<object>value, (list, tuple)):
                found.append(<object>value)
            elif "cache" in <str><object>key:
                found.append(<object>value)
    return 0


cdef dict _dict_of(module, dict own, str name):
    """Its modules or buffers, by name; of one that TorchScript made a copy, from what stands for them there."""
    cdef PyObject *held = PyDict_GetItem(own, name)
    if held != NULL and type(<object>held) is dict:
        return <dict><object>held
    return dict(getattr(module, name).items())
