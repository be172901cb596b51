"""Readers of call templates: which tensors a call has, and what it was called with (template.pxd has the grammar)."""
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy


cdef const uint8_t *_walk_holes(const uint8_t *p, uint32_t *out, uint32_t *n) noexcept:
    # One argument, collecting the metadata ids of its holes.
    cdef uint8_t tag = p[0]
    cdef uint16_t size
    p += 1
    if tag == TAG_TENSOR:
        memcpy(&out[n[0]], p, 4)
        n[0] += 1
        return p + 4
    if tag == TAG_BYTE or tag == TAG_NUMBER:
        return p + 1
    if tag == TAG_INT or tag == TAG_FLOAT:
        return p + 8
    if tag == TAG_COMPLEX:
        return p + 16
    if tag == TAG_OBJECT:
        return p + sizeof(void *)
    if tag == TAG_STRING:
        memcpy(&size, p, 2)
        return p + 2 + size
    if tag == TAG_TUPLE or tag == TAG_LIST:
        memcpy(&size, p, 2)
        p += 2
        for _ in range(size):
            p = _walk_holes(p, out, n)
    return p


cdef void hole_metas(const uint8_t *key, uint32_t *out) noexcept:
    cdef const uint8_t *p = key + HEADER
    cdef uint8_t nargs = key[sizeof(void *)]
    cdef uint8_t nkw = key[sizeof(void *) + 1]
    cdef uint32_t n = 0
    for _ in range(nargs):
        p = _walk_holes(p, out, &n)
    for _ in range(nkw):
        p = _walk_holes(p + sizeof(void *), out, &n)


cdef object decode(const uint8_t **cursor, PyObject ***inputs, PyObject ***floats, object device):
    cdef const uint8_t *p = cursor[0]
    cdef uint8_t tag = p[0]
    cdef int64_t i64
    cdef double d, d2
    cdef uint16_t n
    cdef PyObject *obj
    cdef object out, item
    cdef Py_ssize_t k
    p += 1
    if tag == TAG_TENSOR:
        out = <object>inputs[0][0]
        inputs[0] += 1
        p += 4
    elif tag == TAG_BYTE:
        out = <int8_t>p[0]
        p += 1
    elif tag == TAG_INT:
        memcpy(&i64, p, 8)
        out = i64
        p += 8
    elif tag == TAG_FLOAT:
        memcpy(&d, p, 8)
        out = d
        p += 8
    elif tag == TAG_NUMBER:
        out = <object>floats[0][0]
        floats[0] += 1
        p += 1
    elif tag == TAG_NONE:
        out = None
    elif tag == TAG_TRUE:
        out = True
    elif tag == TAG_FALSE:
        out = False
    elif tag == TAG_OBJECT:
        memcpy(&obj, p, sizeof(obj))
        out = <object>obj
        p += sizeof(obj)
    elif tag == TAG_DEVICE:
        out = device
    elif tag == TAG_TUPLE or tag == TAG_LIST:
        memcpy(&n, p, 2)
        p += 2
        cursor[0] = p
        out = PyTuple_New(n) if tag == TAG_TUPLE else PyList_New(n)
        for k in range(n):
            item = decode(cursor, inputs, floats, device)
            Py_INCREF(item)
            if tag == TAG_TUPLE:
                PyTuple_SET_ITEM(out, k, item)
            else:
                PyList_SET_ITEM(out, k, item)
        return out
    elif tag == TAG_STRING:
        memcpy(&n, p, 2)
        out = (<const char*>(p + 2))[:n].decode("utf-8")
        p += 2 + n
    elif tag == TAG_COMPLEX:
        memcpy(&d, p, 8)
        memcpy(&d2, p + 8, 8)
        out = complex(d, d2)
        p += 16
    elif tag == TAG_ELLIPSIS:
        out = Ellipsis
    else:
        raise SystemError(f"corrupt call template: tag {tag}")
    cursor[0] = p
    return out


cdef tuple decode_call(const uint8_t *key, PyObject **inputs, PyObject **floats, object device):
    cdef const uint8_t *p = key + HEADER
    cdef uint8_t nargs = key[sizeof(void *)]
    cdef uint8_t nkw = key[sizeof(void *) + 1]
    cdef list args = []
    cdef dict kwargs = {}
    cdef PyObject *name
    for _ in range(nargs):
        args.append(decode(&p, &inputs, &floats, device))
    for _ in range(nkw):
        memcpy(&name, p, sizeof(name))
        p += sizeof(name)
        kwargs[<object>name] = decode(&p, &inputs, &floats, device)
    return tuple(args), kwargs
