"""What the engine knows of CPython beyond its documented interface: here, and nowhere else.

Each fact names the releases it holds for. `interpreter.pyx` proves at import what can be proved cheaply.
"""
from cpython.object cimport PyObject

cdef extern from *:
    """
    /* What a getset descriptor says of an object of its class. */
    static inline PyObject *mt_get(PyObject *descr, PyObject *obj) {
        PyGetSetDef *d = ((PyGetSetDescrObject *)descr)->d_getset;
        return d->get(obj, d->closure);
    }
    """
    object mt_get(object descr, object obj)

cdef PyObject *METHOD_WRAPPER              # the type of ``descriptor.__set__``; 3.13 hides its C name
