"""Sizes, strides and dtypes as torch computes them: promotion, memory formats, TensorIterator.

The algorithms are ATen's, and follow it step by step: the strides of a result are visible to the program.
The functions that are `noexcept` cannot fail; those returning `bint` return False for what they do not handle.
"""
cimport cython

cdef object _get_default_dtype = None
cdef dict _codes = {}                   # torch.dtype -> code
cdef list _dtypes = []                  # code -> torch.dtype
cdef int _promotions[N_DTYPES][N_DTYPES]


def init(torch_module):
    """Learn torch's dtypes and promotion table; called once, before the first rule."""
    global _get_default_dtype
    cdef int a, b
    _get_default_dtype = torch_module.get_default_dtype
    _dtypes[:] = [
        torch_module.bool, torch_module.uint8, torch_module.int8, torch_module.int16, torch_module.int32,
        torch_module.int64, torch_module.float16, torch_module.bfloat16, torch_module.float32, torch_module.float64,
        torch_module.complex64, torch_module.complex128,
    ]
    for a in range(N_DTYPES):
        _codes[_dtypes[a]] = a
    for a in range(N_DTYPES):
        for b in range(N_DTYPES):
            # complex32 (half with complex) is not one of ours
            _promotions[a][b] = _codes.get(torch_module.promote_types(_dtypes[a], _dtypes[b]), INVALID)


@cython.final
@cython.freelist(32)
cdef class Meta:
    """What shape inference knows of one tensor: shape, strides (in elements), dtype."""

    def __cinit__(self, tuple shape not None, tuple strides not None, dtype):
        self.shape = shape
        self.strides = strides
        self.dtype = dtype

    def __repr__(self):
        return f"Meta({self.shape}, {self.strides}, {self.dtype})"


cdef bint load(object meta, Operand *op):
    """Read a `Meta`; False for anything else, for exotic dtypes and for too many dimensions."""
    if type(meta) is not Meta:
        return False
    cdef Meta m = <Meta>meta
    cdef object code = _codes.get(m.dtype)
    cdef int i, ndim = len(m.shape)
    if code is None or ndim > MAX_NDIM or len(m.strides) != ndim:
        return False
    op.ndim = ndim
    op.dtype = code
    op.wrapped = False
    for i in range(ndim):
        op.size[i] = m.shape[i]
        op.stride[i] = m.strides[i]
    return True


cdef bint load_number(object value, Operand *op):
    """A Python number as a 0-dim operand that is weak in type promotion."""
    kind = type(value)
    if kind is bool:
        op.dtype = BOOL
    elif kind is int:
        op.dtype = INT64
    elif kind is float:
        op.dtype = default_float()
    elif kind is complex:
        op.dtype = COMPLEX128 if default_float() == FLOAT64 else COMPLEX64
    else:
        return False
    op.ndim = 0
    op.wrapped = True
    return True


cdef object describe(const Operand *op):
    """(shape, strides, dtype) as Python objects."""
    return _numbers(op.size, op.ndim), _numbers(op.stride, op.ndim), _dtypes[op.dtype]


cdef tuple _numbers(const int64_t *values, int n):
    cdef list out = []
    cdef int i
    for i in range(n):
        out.append(values[i])
    return tuple(out)


cdef object dtype_of(int code):
    return _dtypes[code]


cdef int code_of(object dtype):
    """UNDEFINED for a dtype that is not ours."""
    return _codes.get(dtype, UNDEFINED)


cdef int default_float():
    # asked each time: a program may change it
    return _codes[_get_default_dtype()]


# -- type promotion ----------------------------------------------------------------------------------------------------

cdef int promote(int a, int b) noexcept:
    if a == INVALID or b == INVALID:
        return INVALID
    if a == UNDEFINED:
        return b
    if b == UNDEFINED:
        return a
    return _promotions[a][b]


cdef int _combine(int higher, int lower) noexcept:
    # c10: a lower category (numbers < 0-dim tensors < tensors) only matters if it is of a higher kind
    if higher == INVALID or lower == INVALID:
        return INVALID
    if higher >= COMPLEX64:
        return higher
    if higher >= FLOAT16:
        if lower < COMPLEX64:
            return higher
        return COMPLEX64 if higher == FLOAT32 else COMPLEX128 if higher == FLOAT64 else INVALID
    if higher == BOOL or lower >= FLOAT16:
        return promote(higher, lower)
    return higher if higher != UNDEFINED else lower


cdef int result_type(const Operand *ops, int n) noexcept:
    """torch.result_type of all operands; INVALID where that is not a dtype of ours."""
    cdef int i, dim = UNDEFINED, zero = UNDEFINED, wrapped = UNDEFINED
    for i in range(n):
        if ops[i].wrapped:
            wrapped = promote(wrapped, ops[i].dtype)
        elif ops[i].ndim == 0:
            zero = promote(zero, ops[i].dtype)
        else:
            dim = promote(dim, ops[i].dtype)
    return _combine(dim, _combine(zero, wrapped))


# -- memory formats ----------------------------------------------------------------------------------------------------

cdef int64_t numel(const Operand *op) noexcept:
    cdef int64_t n = 1
    cdef int i
    for i in range(op.ndim):
        n *= op.size[i]
    return n


cdef void make_contiguous(Operand *op) noexcept:
    cdef int64_t step = 1
    cdef int i
    for i in reversed(range(op.ndim)):
        op.stride[i] = step
        step *= op.size[i] if op.size[i] > 1 else 1


cdef void make_channels_last(Operand *op) noexcept:
    """Strides of channels-last memory; `op` has 4 dimensions."""
    cdef int order[4]
    cdef int64_t step = 1
    cdef int i, d
    order[:] = [1, 3, 2, 0]
    for i in range(4):
        d = order[i]
        op.stride[d] = step
        step *= op.size[d] if op.size[d] > 1 else 1


cdef bint is_contiguous(const Operand *op) noexcept:
    cdef int64_t expected = 1
    cdef int i
    if numel(op) == 0:
        return True
    for i in reversed(range(op.ndim)):
        if op.size[i] != 1:
            if op.stride[i] != expected:
                return False
            expected *= op.size[i]
    return True


cdef bint is_evenly_contiguous(const Operand *op) noexcept:
    """Contiguous, dimensions of size 1 included: what a newly made tensor has. Never also channels-last."""
    cdef int64_t expected = 1
    cdef int i
    for i in reversed(range(op.ndim)):
        if op.stride[i] != expected:
            return False
        expected *= op.size[i] if op.size[i] > 1 else 1
    return True


cdef bint is_channels_last(const Operand *op) noexcept:
    cdef int order[4]
    cdef int64_t expected = 1
    cdef int i, d
    if op.ndim != 4:
        return False
    order[:] = [1, 3, 2, 0]
    for i in range(4):
        d = order[i]
        if op.size[d] != 1:
            if op.stride[d] != expected:
                return False
            expected *= op.size[d]
    return True


cdef bint is_dense(const Operand *op) noexcept:
    """Non-overlapping and dense: some permutation of it is contiguous."""
    cdef int perm[MAX_NDIM]
    cdef int i, j, d
    cdef int64_t expected = 1
    if is_contiguous(op) or is_channels_last(op):
        return True
    # ascending strides, dimensions of size 0 or 1 last
    for i in range(op.ndim):
        j = i
        while j > 0 and _before(op, i, perm[j - 1]):
            perm[j] = perm[j - 1]
            j -= 1
        perm[j] = i
    for i in range(op.ndim):
        d = perm[i]
        if op.size[d] < 2:
            return True
        if op.stride[d] != expected:
            return False
        expected *= op.size[d]
    return True


cdef inline bint _before(const Operand *op, int a, int b) noexcept:
    if op.size[a] < 2:
        return False
    return op.size[b] < 2 or op.stride[a] < op.stride[b]


cdef bint suggests_channels_last(const Operand *op) noexcept:
    """suggest_memory_format() is channels_last (4 dimensions) or channels_last_3d (5): ATen's
    is_strides_like_channels_last, whose order is 1, last ... 2, 0."""
    cdef int64_t least = 0
    cdef int i, d
    if op.ndim != 4 and op.ndim != 5 or op.stride[1] == 0:
        return False
    for i in range(op.ndim):
        d = 1 if i == 0 else (0 if i == op.ndim - 1 else op.ndim - i)
        if op.size[d] == 0 or op.stride[d] < least:
            return False
        if d == 0 and least == op.stride[1]:
            return False
        least = op.stride[d]
        if op.size[d] > 1:
            least *= op.size[d]
    return True


cdef void preserve(Operand *op) noexcept:
    """empty_like(preserve_format): dense strides stay; others become dense in the same order (infer_dense_strides)."""
    cdef int perm[MAX_NDIM]
    cdef int i, a, b, other, compared
    cdef int64_t step = 1
    if is_dense(op):
        return
    for i in range(op.ndim):
        perm[i] = op.ndim - 1 - i
    for i in range(1, op.ndim):
        b = i
        for a in reversed(range(i)):
            compared = 0
            if op.stride[perm[a]] != 0 and op.stride[perm[b]] != 0:
                if op.stride[perm[a]] < op.stride[perm[b]]:
                    compared = -1
                elif op.stride[perm[a]] > op.stride[perm[b]] or op.size[perm[a]] > op.size[perm[b]]:
                    compared = 1
            if compared > 0:
                other = perm[a]
                perm[a] = perm[b]
                perm[b] = other
                b = a
            elif compared < 0:
                break
    for i in range(op.ndim):
        op.stride[perm[i]] = step
        step *= op.size[perm[i]] if op.size[perm[i]] > 1 else 1


cdef void cast_strides(Operand *op, int dtype) noexcept:
    """What `.to(dtype)` makes of the strides; the same dtype gives the same tensor."""
    if op.dtype != dtype:
        op.dtype = dtype
        preserve(op)


# -- TensorIterator ----------------------------------------------------------------------------------------------------

cdef bint broadcast(const Operand *ops, int n, Operand *out) noexcept:
    """Common shape of all operands (into out.size, out.ndim); False if they do not broadcast."""
    cdef int i, d, k
    cdef int64_t size
    out.ndim = 0
    for i in range(n):
        if ops[i].ndim > out.ndim:
            out.ndim = ops[i].ndim
    for d in range(out.ndim):
        out.size[d] = 1
    for i in range(n):
        for d in range(ops[i].ndim):
            k = out.ndim - ops[i].ndim + d
            size = ops[i].size[d]
            if out.size[k] == 1:
                out.size[k] = size
            elif size != 1 and size != out.size[k]:
                return False
    return True


cdef bint iterate(const Operand *ops, int n, Operand *out) noexcept:
    """Shape and strides of a new result of an element-wise op over `ops`, in TensorIterator's order of operands."""
    cdef int64_t strides[MAX_OPERANDS][MAX_NDIM]
    cdef int perm[MAX_NDIM]
    cdef int i, a, b, d, k, other, compared
    cdef int64_t step
    cdef bint same = True, contiguous = True, channels_last = True, dense = True, equal = True, inverted = True
    if n > MAX_OPERANDS or not broadcast(ops, n, out):
        return False
    for i in range(n):
        same = same and ops[i].ndim == out.ndim
        for d in range(ops[i].ndim):
            same = same and ops[i].size[d] == out.size[out.ndim - ops[i].ndim + d]
    if same:
        for i in range(n):
            contiguous = contiguous and is_contiguous(&ops[i])
            channels_last = channels_last and is_channels_last(&ops[i])
            dense = dense and is_dense(&ops[i])
            for d in range(out.ndim):
                equal = equal and ops[i].stride[d] == ops[n - 1].stride[d]
        if contiguous:
            make_contiguous(out)
            return True
        if channels_last:
            make_channels_last(out)
            return True
        if dense and equal:
            for d in range(out.ndim):
                out.stride[d] = ops[n - 1].stride[d]
            return True
    if out.ndim == 0:
        return True
    for i in range(n):
        for d in range(out.ndim):
            k = d - (out.ndim - ops[i].ndim)
            if k < 0 or (ops[i].size[k] == 1 and out.size[d] != 1):
                strides[i][d] = 0
            else:
                strides[i][d] = ops[i].stride[k]
    for i in range(out.ndim):
        perm[i] = out.ndim - 1 - i
    for i in range(1, out.ndim):
        b = i
        for a in reversed(range(i)):
            compared = _compare(strides, n, out, perm[a], perm[b])
            if compared > 0:
                other = perm[a]
                perm[a] = perm[b]
                perm[b] = other
                b = a
            elif compared < 0:
                break
    for i in range(out.ndim):
        inverted = inverted and perm[i] == out.ndim - 1 - i
    if inverted:
        make_contiguous(out)
        return True
    step = 1
    for i in range(out.ndim):
        out.stride[perm[i]] = step
        step *= out.size[perm[i]]
    return True


cdef int _compare(int64_t strides[MAX_OPERANDS][MAX_NDIM], int n, const Operand *out, int a, int b) noexcept:
    """1: dimension `a` belongs outside of `b`; -1: inside; 0: ambiguous."""
    cdef int i
    for i in range(n):
        if strides[i][a] == 0 or strides[i][b] == 0:
            continue
        if strides[i][a] < strides[i][b]:
            return -1
        if strides[i][a] > strides[i][b]:
            return 1
        if out.size[a] > out.size[b]:
            return 1
    return 0
