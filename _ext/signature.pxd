"""Keys of a call: what its FLOPs depend on, and what its bytes depend on beside. Here for the compiler to inline."""

cdef extern from *:
    ctypedef struct PyTypeObject:
        pass
    bint PyObject_TypeCheck(object o, PyTypeObject *type) noexcept    # no metaclass hook, unlike isinstance


cdef inline object shape_of(object tensor):
    """None of a nested tensor, which says none: no formula can depend on it."""
    try:
        return tensor.shape
    except RuntimeError:
        return None


cdef inline append_shape(list key, object value, PyTypeObject *tensor_type):
    if PyObject_TypeCheck(value, tensor_type):
        key.append(shape_of(value))
    elif type(value) is float:
        key.append(None)                       # a learning rate that changes every step changes no FLOPs
    elif type(value) is list or type(value) is tuple:
        key.append(len(value))
        for item in value:
            append_shape(key, item, tensor_type)
    else:
        key.append(value)


cdef inline append_stored(list key, tuple args, PyTypeObject *tensor_type, object strided):
    """What a product's FLOPs depend on, too: how many numbers a sparse matrix stores."""
    for value in args:
        if PyObject_TypeCheck(value, tensor_type) and value.layout is not strided and not value.is_nested:
            key.append(value._nnz())


cdef inline append_layout(list key, object value, PyTypeObject *tensor_type):
    """What bytes depend on, beyond FLOPs: dtype and strides."""
    if PyObject_TypeCheck(value, tensor_type):
        key.append(shape_of(value))
        key.append(value.dtype)
        try:
            key.append(value.stride())
        except RuntimeError:                   # compressed sparse layouts have none
            key.append(None)
    elif type(value) is list or type(value) is tuple:
        key.append(len(value))
        for item in value:
            append_layout(key, item, tensor_type)
    else:
        append_shape(key, value, tensor_type)
