"""What stands for a function of torch's that changes a setting, where its C function cannot be exchanged."""
import sys

from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.module cimport PyModule_Check, PyModule_GetDict
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t


cdef inline size_t place_of(const PyObject *value, PyObject **sought, size_t mask) noexcept:
    """Where the object is in the table `sought`, or the empty place where it belongs."""
    cdef size_t i = (<uintptr_t> value >> 4) & mask
    while sought[i] != NULL and sought[i] != value:
        i = (i + 1) & mask
    return i


cdef bint has_one(dict names, PyObject **sought, size_t mask) noexcept:
    """Is any of its values in the table `sought`? Only addresses are read: the objects are all over the memory."""
    cdef PyObject *name
    cdef PyObject *value
    cdef Py_ssize_t at = 0
    while PyDict_Next(names, &at, &name, &value):
        if sought[place_of(value, sought, mask)] != NULL:
            return True
    return False


def holders(dict standing, tuple besides):
    """[(module, name, stand-in)] of every loaded module that has a key of `standing` by name, but for those `besides`.

    A program has 200,000 such names, and a profile starts with this.
    """
    cdef list found = []
    cdef dict names
    cdef size_t mask = 255
    while mask < <size_t> 4 * len(standing):
        mask = 2 * mask + 1
    cdef PyObject **sought = <PyObject **> PyMem_Calloc(mask + 1, sizeof(PyObject *))
    if sought == NULL:
        raise MemoryError
    try:
        for original in standing:
            sought[place_of(<PyObject *> original, sought, mask)] = <PyObject *> original
        for called, module in sys.modules.copy().items():
            if not PyModule_Check(module) or called in besides:
                continue
            names = <dict> PyModule_GetDict(module)
            if has_one(names, sought, mask):
                for name, value in names.copy().items():      # finalizers may run, and change it
                    if sought[place_of(<PyObject *> value, sought, mask)] != NULL:
                        found.append((module, name, standing[value]))
    finally:
        PyMem_Free(sought)
    return found


cdef class StandIn:
    """What stands for a function of torch's, and says so when asked who it is."""
    cdef object func
    cdef dict __dict__
    cdef object __weakref__                    # torch.jit.script keeps functions by weak reference

    @property
    def __class__(self):
        return type(self.func)                 # isinstance(torch.zeros, types.BuiltinFunctionType): Dynamo asks

    def __getattr__(self, name):
        return getattr(self.func, name)        # __self__, __text_signature__ and what else a builtin has

    def __hash__(self):
        return hash(self.func)

    def __eq__(self, other):
        # Dynamo's tables may have been made with torch's own function or with the hook: both find the other.
        if issubclass(type(other), StandIn):   # isinstance() would believe `__class__`
            return (<StandIn>other).func is self.func
        return other is self.func

    def __get__(self, instance, owner):
        return self                            # a builtin does not bind either

    def __repr__(self):
        return repr(self.func)

    def __reduce__(self):
        return self.__name__                   # pickled by name, like the function it stands for


cdef class SettingHook(StandIn):
    """Stand-in for a function that changes a setting: before(args, kwargs) is called first, after() last, under `lock`.

    It has no frame, so that a warning of the function names the line that it would name without us.
    """
    cdef object lock, before, after

    def __init__(self, func, lock, before, after):
        self.func = func
        self.lock = lock
        self.before = before
        self.after = after

    def __call__(self, *args, **kwargs):
        with self.lock:
            self.before(args, kwargs)
            try:
                return self.func(*args, **kwargs)
            finally:
                self.after()
