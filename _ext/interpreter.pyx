"""The interpreter that this runs in: are its objects laid out as the headers said that this was compiled with?"""
from types import FunctionType, MethodWrapperType, new_class
from weakref import ref

from cpython.object cimport PyObject

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    enum:
        Py_tp_new
        Py_tp_dealloc
    void *PyType_GetSlot(PyTypeObject *type, int slot) noexcept

METHOD_WRAPPER = <PyObject *>MethodWrapperType


class _Slotted:
    __slots__ = ("member",)


class _Attributed:
    pass


cdef bint agrees() except -1:
    """Does CPython itself say what is read here past its documented interface?"""
    cdef object function = len, method = list.append, slotted = _Slotted(), attributed = _Attributed()
    cdef object referred = _Attributed(), _reference = ref(referred)
    cdef object attribute = FunctionType.__dict__["__code__"]
    cdef object twin = mt_copy(function)
    cdef Py_ssize_t offset = mt_slot_offset(<PyObject *><object>_Slotted.member)
    cdef PyMethodDef **of_function = mt_definition(<PyObject *>function)
    cdef PyMethodDef **of_method = mt_definition(<PyObject *>method)
    cdef PyGetSetDef **of_attribute = mt_attribute(<PyObject *>attribute)
    if of_function == NULL or of_method == NULL or of_attribute == NULL or offset < 0:
        return False
    slotted.member = attributed.name = twin
    return (of_function[0].ml_name == b"len" and of_method[0].ml_name == b"append" and twin("ab") == 2
            and of_attribute[0].name == b"__code__" and mt_ask(attribute, new_class) is new_class.__code__
            and MT_SLOT(<PyObject *>slotted, offset) == <PyObject *>twin
            and <object>mt_class_name(<PyObject *>slotted) == "_Slotted"
            and mt_constructor(<PyObject *>int)[0] == PyType_GetSlot(<PyTypeObject *><PyObject *>int, Py_tp_new)
            and <void *>mt_dealloc_of(<PyObject *>int)[0] == PyType_GetSlot(<PyTypeObject *><PyObject *>int,
                                                                            Py_tp_dealloc)
            and mt_attributes(<PyObject *>slotted) == NULL
            and mt_attributes(<PyObject *>attributed)[0] == <PyObject *><object>attributed.__dict__
            and not mt_has_weakrefs(<PyObject *>attributed) and mt_has_weakrefs(<PyObject *>referred))


if not agrees():
    raise ImportError("[mindtorch] expected the CPython that the extension modules were compiled for, got one whose "
                      "objects are laid out in another way: install mindtorch-genie again for this Python")
