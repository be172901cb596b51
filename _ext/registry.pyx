"""Function -> OpInfo, by identity: what the engine knows of each function that it has met."""
from cpython.ref cimport PyObject
from libc.stdlib cimport calloc, free

from .intern cimport OpInfo
from .interpreter cimport METHOD_WRAPPER
from .lazy cimport type_of

cdef object describe = None           # (function, at the dispatch level) -> OpInfo of one met for the first time
cdef list _keep = []                  # every key and value below stays alive
cdef PyObject **reg_keys = NULL
cdef PyObject **reg_vals = NULL
cdef size_t reg_mask = 0
cdef size_t reg_n = 0


cdef inline size_t _reg_find(PyObject *func) noexcept:
    cdef size_t i = (<size_t>func >> 4) * <size_t>0x9E3779B97F4A7C15ULL >> 20 & reg_mask
    while reg_keys[i] != NULL and reg_keys[i] != func:
        i = (i + 1) & reg_mask
    return i


cdef PyObject *_key_of(object func) except NULL:
    # Property accessors (`Tensor.data.__set__`) are made anew on each access: go by the descriptor behind them.
    cdef PyObject *o = <PyObject *>func
    if type_of(o) == METHOD_WRAPPER:
        o = <PyObject *>func.__self__
        if func.__name__ == "__set__":
            o = <PyObject *>(<char *>o + 1)
        elif func.__name__ == "__delete__":
            o = <PyObject *>(<char *>o + 2)
    return o


cdef int _reg_grow() except -1:
    global reg_keys, reg_vals, reg_mask
    cdef PyObject **old_keys = reg_keys
    cdef PyObject **old_vals = reg_vals
    cdef size_t old = reg_mask + 1 if reg_keys else 0
    cdef size_t mask = reg_mask * 2 + 1 if reg_keys else 1023
    cdef PyObject **keys = <PyObject **>calloc(mask + 1, sizeof(PyObject *))
    cdef PyObject **vals = <PyObject **>calloc(mask + 1, sizeof(PyObject *))
    cdef size_t i, j
    if not keys or not vals:
        free(keys)
        free(vals)
        raise MemoryError()
    reg_keys, reg_vals, reg_mask = keys, vals, mask
    for i in range(old):
        if old_keys[i]:
            j = _reg_find(old_keys[i])
            keys[j] = old_keys[i]
            vals[j] = old_vals[i]
    free(old_keys)
    free(old_vals)
    return 0


cdef int _reg_add(object func, OpInfo info) except -1:
    global reg_n
    cdef PyObject *key = _key_of(func)
    cdef size_t i
    _keep.append((func, info))     # first: making the pair may run a finalizer that calls a function not seen before
    if (reg_n + 1) * 2 > reg_mask:
        _reg_grow()
    i = _reg_find(key)
    if not reg_keys[i]:
        reg_n += 1
    reg_keys[i] = key
    reg_vals[i] = <PyObject *>info
    return 0


cdef OpInfo info_of(object func, bint dispatch):
    cdef size_t i
    if reg_keys:
        i = _reg_find(_key_of(func))
        if reg_keys[i]:
            return <OpInfo>reg_vals[i]
    cdef OpInfo info = describe(func, dispatch)
    i = _reg_find(_key_of(func)) if reg_keys else 0
    if reg_keys and reg_keys[i]:
        return <OpInfo>reg_vals[i]     # another thread has met it meanwhile
    _reg_add(func, info)
    return info


cdef int set_info(object func, OpInfo info) except -1:
    """From now on that is what the engine knows of the function."""
    return _reg_add(func, info)


cdef void set_describe(object asked) noexcept:
    """Hand in `describe`. Called once."""
    global describe
    describe = asked
