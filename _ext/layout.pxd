from libc.stdint cimport int64_t

# Tensors of more dimensions are left to torch.
cdef enum:
    MAX_NDIM = 16
    MAX_OPERANDS = 8

# Dtypes in the order of promotion within each category; `dtype_of` maps back to torch's objects.
cdef enum:
    BOOL = 0
    UINT8 = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT16 = 6
    BFLOAT16 = 7
    FLOAT32 = 8
    FLOAT64 = 9
    COMPLEX64 = 10
    COMPLEX128 = 11
    N_DTYPES = 12
    UNDEFINED = -1      # no operand of that kind
    INVALID = -2        # torch has an answer, but not one of these dtypes

# Sets of dtypes.
cdef enum:
    BOOLS = 1 << BOOL
    INTS = 1 << UINT8 | 1 << INT8 | 1 << INT16 | 1 << INT32 | 1 << INT64
    HALVES = 1 << FLOAT16 | 1 << BFLOAT16
    FLOATS = 1 << FLOAT32 | 1 << FLOAT64
    COMPLEXES = 1 << COMPLEX64 | 1 << COMPLEX128

# A strided tensor: sizes, strides in elements, dtype. `wrapped` marks a Python number (0-dim, weak in promotion).
cdef struct Operand:
    int64_t size[MAX_NDIM]
    int64_t stride[MAX_NDIM]
    int ndim
    int dtype
    bint wrapped


cdef class Meta:
    cdef readonly tuple shape
    cdef readonly tuple strides
    cdef readonly object dtype

cdef bint load(object meta, Operand *op)
cdef bint load_number(object value, Operand *op)
cdef object describe(const Operand *op)
cdef object dtype_of(int code)
cdef int code_of(object dtype)
cdef int default_float()
cdef int promote(int a, int b) noexcept
cdef int result_type(const Operand *ops, int n) noexcept
cdef int64_t numel(const Operand *op) noexcept
cdef void make_contiguous(Operand *op) noexcept
cdef void make_channels_last(Operand *op) noexcept
cdef bint is_contiguous(const Operand *op) noexcept
cdef bint is_evenly_contiguous(const Operand *op) noexcept
cdef bint is_channels_last(const Operand *op) noexcept
cdef bint is_dense(const Operand *op) noexcept
cdef bint suggests_channels_last(const Operand *op) noexcept
cdef void preserve(Operand *op) noexcept
cdef void cast_strides(Operand *op, int dtype) noexcept
cdef bint broadcast(const Operand *ops, int n, Operand *out) noexcept
cdef bint iterate(const Operand *ops, int n, Operand *out) noexcept
