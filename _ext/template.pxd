"""The grammar of call templates: a call's arguments as bytes, with holes where tensors go.

key: address of the function, number of arguments (1 byte), of keywords (1 byte), of floats that stand in the record (1
byte), the arguments, and for each keyword the address of its name and the argument. An argument is a tag and what
stands behind it there. Keys are written by keys.pyx, from arguments, and read by template.pyx.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t

cdef enum Tag:
    TAG_TENSOR      # a hole: metadata id, 4 bytes
    TAG_BYTE        # an int, 1 byte
    TAG_INT         # 8 bytes
    TAG_FLOAT       # 8
    TAG_NUMBER      # a float that stands in the record; what those have in common that share the key, 1 byte
    TAG_COMPLEX     # 16
    TAG_STRING      # length, 2 bytes; UTF-8
    TAG_OBJECT      # address of a dtype, layout or memory format
    TAG_TUPLE       # length, 2 bytes; arguments
    TAG_LIST        # the same
    TAG_DEVICE      # where the tensors are
    TAG_NONE
    TAG_TRUE
    TAG_FALSE
    TAG_ELLIPSIS

cdef enum:
    FLOATS_AT = sizeof(void *) + 2     # the number of floats that stand in the record
    HEADER                             # bytes before the first argument

cdef inline uint32_t n_floats(const uint8_t *key) noexcept:
    return key[FLOATS_AT]

cdef void hole_metas(const uint8_t *key, uint32_t *out) noexcept          # those of its tensors, in order

# One argument of the template, a new reference. `cursor` moves on to the next one, `inputs` past the tensors used,
# `floats` past the floats used that stand in the record.
cdef object decode(const uint8_t **cursor, PyObject ***inputs, PyObject ***floats, object device)

# (args, kwargs) of a call, for graph views, remote executors and the slow path.
cdef tuple decode_call(const uint8_t *key, PyObject **inputs, PyObject **floats, object device)
