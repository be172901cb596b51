"""Stand-ins for torch's own functions, cheap where the program does not use our devices (SPEC S4)."""
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE

from .lazy cimport handle_of

cdef extern from *:
    """
    #define MT_GET(d, instance, owner) (Py_TYPE(d)->tp_descr_get((d), (instance), (owner)))
    #define MT_SET(d, instance, value) (Py_TYPE(d)->tp_descr_set((d), (instance), (value)))
    #define MT_SET_CALL(type, f) (((PyTypeObject *)(type))->tp_call = (ternaryfunc)(f))
    """
    void MT_SET_CALL(object type, void* f) noexcept
    object MT_GET(object descriptor, object instance, object owner)
    int MT_SET(object descriptor, object instance, object value) except -1
    PyObject* PyObject_Call_ "PyObject_Call"(PyObject* func, PyObject* args, PyObject* kwargs) except NULL
    PyObject* PyDict_GetItem_ "PyDict_GetItem"(PyObject* d, PyObject* key) noexcept

cdef object _device_key = "device"
cdef str _device_type = "remote_accelerator"


cdef object _subclasses_enabled = None    # while meta devices are ours: torch's own question whether to look for any


def take_meta(enabled):
    """In an estimate, a `meta` device is one of ours, too: torch's own functions make tensors of ours.

    `enabled()`: may tensor subclasses be used now (torch._C._is_torch_function_enabled)? None: no estimate runs.
    """
    global _subclasses_enabled, _last_foreign
    _subclasses_enabled = enabled
    _last_foreign = None


cdef object _other_base = None            # tensors of a device driven beside the recording one, and its type
cdef str _other_type = "remote_accelerator"


def take_type(str device_type, base):
    """`device_type` is one of ours, too, and its tensors are of class `base`. None, None: no longer."""
    global _other_type, _other_base, _last_foreign
    _other_type = _device_type if device_type is None else device_type
    _other_base = base
    _last_foreign = None


cdef inline bint _is_other(object t) except -1:
    return _other_base is not None and isinstance(t, _other_base)


cdef bint _names_us(object device) except -1:
    if type(device) is str:
        if (<str>device).startswith((_device_type, _other_type)):
            return True
        return _subclasses_enabled is not None and (<str>device).startswith("meta") and _subclasses_enabled()
    kind = getattr(device, "type", None)
    if kind == _device_type or kind == _other_type:
        return True
    return _subclasses_enabled is not None and kind == "meta" and _subclasses_enabled()


cdef class CreationHook:
    """Stand-in for a torch creation function: calls create(func, args, kwargs) when `device=` is one of ours.

    Its tp_call is the C function below: a plain call costs one more C call and one dictionary probe (SPEC S4).
    """
    cdef object func, create
    cdef object prepare                        # prepare(args, kwargs) -> both, as torch can take them; mostly None
    cdef bint takes_data                       # torch.tensor(lazy, device="cpu"): C++ thinks that it is there already
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
        if type(other) is CreationHook:
            return (<CreationHook>other).func is self.func
        return other is self.func

    def __init__(self, func, create, bint takes_data=False, prepare=None):
        self.func = func
        self.create = create
        self.takes_data = takes_data
        self.prepare = prepare

    def __call__(self, *args, **kwargs):
        return self.func(*args, **kwargs)      # replaced by _hook_call below

    def __get__(self, instance, owner):
        return self                            # a builtin does not bind either

    def __repr__(self):
        return repr(self.func)

    def __reduce__(self):
        return self.__name__                   # pickled by name, like the function it stands for


cdef PyObject* _hook_call(PyObject* self, PyObject* args, PyObject* kwargs) except NULL:
    cdef PyObject* device
    if everything is not None:
        return _hook_all(self, args, kwargs)
    if kwargs:
        device = PyDict_GetItem_(kwargs, <PyObject*>_device_key)
        if device != NULL and device != <PyObject*>None and (
            device != <PyObject*>_last_foreign or (<CreationHook>self).takes_data
        ):
            return _hook_device(self, args, kwargs, device)
    return _call(<CreationHook>self, args, kwargs)


cdef inline PyObject* _call(CreationHook hook, PyObject* args, PyObject* kwargs) except NULL:
    cdef object ready
    if hook.prepare is None:
        return PyObject_Call_(<PyObject*>hook.func, args, kwargs)
    ready = hook.prepare(<object>args, <object>kwargs if kwargs else {})
    return PyObject_Call_(<PyObject*>hook.func, <PyObject*>ready[0], <PyObject*>ready[1])


cdef object _last_foreign = None      # a device seen not to be ours: programs pass the same object again and again


cdef PyObject* _hook_device(PyObject* self, PyObject* args, PyObject* kwargs, PyObject* device) except NULL:
    global _last_foreign
    cdef CreationHook hook = <CreationHook>self
    cdef object out
    cdef bint lazy_data = hook.takes_data and PyTuple_GET_SIZE(<object>args) and (
        handle_of(<object>PyTuple_GET_ITEM(<object>args, 0)) is not None
        or _is_other(<object>PyTuple_GET_ITEM(<object>args, 0))
    )
    if not lazy_data and (device == <PyObject*>_last_foreign or not _names_us(<object>device)):
        if _subclasses_enabled is None:        # else it depends
            _last_foreign = <object>device
        return _call(hook, args, kwargs)
    out = hook.create(hook.func, <object>args, <object>kwargs)
    Py_INCREF(out)
    return <PyObject*>out


cdef object everything = None         # while estimating: says that torch is at work for ourselves


def route_everything(ours):
    """Have `create` and `slow` of all hooks decide about every call, not only those that name one of our devices.

    Except while `ours()` is true. None: as before.
    """
    global everything
    everything = ours


cdef PyObject* _hook_all(PyObject* self, PyObject* args, PyObject* kwargs) except NULL:
    cdef CreationHook hook = <CreationHook>self
    cdef object out, device = None
    cdef dict given = <dict><object>kwargs if kwargs else {}
    device = given.get("device")
    if everything() or (device is not None and _type_of_device(device) == "meta" and not _names_us(device)):
        return PyObject_Call_(<PyObject*>hook.func, args, kwargs)
    out = hook.create(hook.func, <object>args, given)
    Py_INCREF(out)
    return <PyObject*>out


cdef object _type_of_device(object device):
    return (<str>device).split(":")[0] if type(device) is str else getattr(device, "type", None)


MT_SET_CALL(CreationHook, <void*>_hook_call)


cdef class DataHook:
    """Stand-in for the descriptor of Tensor.data: assign(tensor, lazy) when a plain tensor is given a lazy one's data.

    Torch's own does not ask the right-hand side: it would leave the plain tensor without any memory.
    """
    cdef object descriptor, assign

    def __init__(self, descriptor, assign):
        self.descriptor = descriptor
        self.assign = assign

    def __get__(self, instance, owner):
        return self if instance is None else MT_GET(self.descriptor, instance, owner)

    def __set__(self, instance, value):
        if (handle_of(value) is None or handle_of(instance) is not None) and not (
            _is_other(value) and not _is_other(instance)
        ):
            MT_SET(self.descriptor, instance, value)
        else:
            self.assign(instance, value)

    def __delete__(self, instance):
        self.descriptor.__delete__(instance)   # torch refuses it, in its own words

    def __getattr__(self, name):
        return getattr(self.descriptor, name)

    def __repr__(self):
        return repr(self.descriptor)


def make_to_hook(original, slow, dtype, device):
    """Stand-in for Tensor.to: `slow` decides when a lazy tensor or a device by name is involved.

    `dtype`, `device`: torch's types.
    """

    def to(self, *args, **kwargs):
        cdef PyObject* first
        if not kwargs and PyTuple_GET_SIZE(args) > 0 and handle_of(self) is None and everything is None:
            first = <PyObject*>PyTuple_GET_ITEM(args, 0)
            if type(<object>first) is dtype or (type(<object>first) is device and not _names_us(<object>first)):
                return original(self, *args)
        return slow(self, *args, **kwargs)

    return to
