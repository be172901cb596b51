"""Operations of the NPU's own library (``aclnn…``), called in two phases.

The first phase checks the parameters and says how much workspace it wants, the second queues the work on the device's
current stream; the workspace comes from the allocator, in that stream's order. Tensors are described by tuples
``(address, sizes, strides, offset, storage, dtype)``: the address of the storage's first byte, sizes and strides and
the offset in elements, how many elements the storage has, AscendCL's dtype. Every function returns True when the work
is queued, False when the first phase does not take such parameters (nothing has happened then). Other failures raise
what ``acl`` raises. Whatever is created is destroyed on every path.

A first phase also declines where the chip, or what is installed, has no kernel for operands of these dtypes (561xxx).
That is warned of once per operation and remembered: it is not asked again.
"""
cimport cython
from libc.stdint cimport int8_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free

import warnings

from mindtorch._ext cimport acl
from mindtorch._ext import acl as acl_names
from mindtorch._ext.allocator cimport Piece, give, take
from mindtorch._ext.pool cimport Lane, Unit, bind, current_lane, enter, leave, stop, unit_of

cdef extern from *:
    ctypedef unsigned char bint8 "_Bool"

ctypedef void *Handle
ctypedef int (*Second)(Handle workspace, uint64_t size, Handle executor, Handle stream) noexcept nogil
# First phases, by what comes before the size and the executor: P a handle, L int64, I int, C int8, B bool, D double.
ctypedef int (*PP)(Handle, Handle, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PPP)(Handle, Handle, Handle, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PPPP)(Handle, Handle, Handle, Handle, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PLP)(Handle, int64_t, Handle, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PIP)(Handle, int, Handle, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PLPP)(Handle, int64_t, Handle, Handle, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PLBPP)(Handle, int64_t, bint8, Handle, Handle, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PPBIP)(Handle, Handle, bint8, int, Handle, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PPPC)(Handle, Handle, Handle, int8_t, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PPPPPPC)(Handle, Handle, Handle, Handle, Handle, Handle, int8_t, uint64_t *, Handle *) noexcept nogil
ctypedef int (*PPPPDPPP)(Handle, Handle, Handle, Handle, double, Handle, Handle, Handle, uint64_t *,
                         Handle *) noexcept nogil

cdef struct Makers:
    Handle (*tensor)(const int64_t *sizes, uint64_t rank, int dtype, const int64_t *strides, int64_t offset, int format,
                     const int64_t *storage_sizes, uint64_t storage_rank, Handle data) noexcept nogil
    Handle (*scalar)(Handle value, int dtype) noexcept nogil
    Handle (*array)(const int64_t *values, uint64_t count) noexcept nogil
    Handle (*tensor_list)(const Handle *tensors, uint64_t count) noexcept nogil
    int (*end_tensor)(Handle) noexcept nogil
    int (*end_scalar)(Handle) noexcept nogil
    int (*end_array)(Handle) noexcept nogil
    int (*end_list)(Handle) noexcept nogil
    int (*repeatable)(Handle) noexcept nogil    # these two are optional
    int (*end_executor)(Handle) noexcept nogil

cdef enum:
    MAX_RANK = 8
    MAX_HELD = 10
    FORMAT_ND = 2
    INT64 = 9
    DOUBLE = 11
    BOOL = 12
    DECLINED = 161000       # and the codes after it: what a first phase does not take
    NOT_HERE = 561000       # and the codes after it: what it has no kernel for
    NO_POINTER = 161001     # ACLNN_ERR_PARAM_NULLPTR
    NOT_TAKEN = 161002      # ACLNN_ERR_PARAM_INVALID
    NOT_MADE = 561103       # ACLNN_ERR_INNER_NULLPTR

cdef Makers _makers
cdef bint _makers_found = False


@cython.final
cdef class _Operation:
    """Both functions of one operation; NULL where the library has not both. The names outlive all calls."""
    cdef void *first
    cdef Second second
    cdef bytes first_name, second_name
    cdef set declined       # dtypes of operands, as `_Call.types`, or None


cdef dict _operations = {}


cdef int _find_makers() except -1:
    global _makers_found
    _makers.tensor = <Handle (*)(const int64_t *, uint64_t, int, const int64_t *, int64_t, int, const int64_t *,
                                 uint64_t, Handle) noexcept nogil>acl.find(b"aclCreateTensor")
    _makers.scalar = <Handle (*)(Handle, int) noexcept nogil>acl.find(b"aclCreateScalar")
    _makers.array = <Handle (*)(const int64_t *, uint64_t) noexcept nogil>acl.find(b"aclCreateIntArray")
    _makers.tensor_list = <Handle (*)(const Handle *, uint64_t) noexcept nogil>acl.find(b"aclCreateTensorList")
    _makers.end_tensor = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyTensor")
    _makers.end_scalar = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyScalar")
    _makers.end_array = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyIntArray")
    _makers.end_list = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyTensorList")
    _makers.repeatable = <int (*)(Handle) noexcept nogil>acl.find(b"aclSetAclOpExecutorRepeatable")
    _makers.end_executor = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyAclOpExecutor")
    _makers_found = (_makers.tensor != NULL and _makers.scalar != NULL and _makers.array != NULL
                     and _makers.tensor_list != NULL and _makers.end_tensor != NULL and _makers.end_scalar != NULL
                     and _makers.end_array != NULL and _makers.end_list != NULL)
    return 0


cdef _Operation _operation(str name):
    cdef _Operation operation = _operations.get(name)
    if operation is not None:
        return operation
    operation = _Operation()
    operation.first_name = f"aclnn{name}GetWorkspaceSize".encode()
    operation.second_name = f"aclnn{name}".encode()
    if not _makers_found:
        _find_makers()
    if _makers_found:
        operation.first = acl.find(operation.first_name)
        operation.second = <Second>acl.find(operation.second_name)
    if operation.first == NULL or operation.second == NULL:
        operation.first = NULL
        if not _makers_found and not acl_is_loaded():
            return operation  # not remembered: a library may still be loaded
    _operations[name] = operation
    return operation


cdef bint acl_is_loaded() except -1:
    return acl.api.aclInit != NULL


def available(str name):
    """Whether the library has the operation (``Add``, for aclnnAdd and aclnnAddGetWorkspaceSize)."""
    return _operation(name).first != NULL


@cython.final
cdef class _Call:
    """One call on one device, and what it has created: destroyed by `end` with errors told, else when collected."""
    cdef Unit *unit
    cdef _Operation operation
    cdef bint entered
    cdef Handle handles[MAX_HELD]
    cdef char kinds[MAX_HELD]
    cdef int count
    cdef Handle *listed     # tensors on their way into a list, which then owns them
    cdef Py_ssize_t listed_count
    cdef uint64_t types     # of all tensors, in order

    def __cinit__(self, int device, str name):
        cdef int code
        self.unit = unit_of(device)
        self.operation = _operation(name)
        if self.operation.first == NULL:
            raise NotImplementedError(f"[aclnn{name}] the operators' library does not have it")
        with nogil:
            code = enter(self.unit)
        stop(code)
        self.entered = True

    def __dealloc__(self):
        self.destroy()
        if self.entered:
            leave()

    cdef bint ready(self) except -1:
        """Right before the first phase: what has run since `enter` may have bound another context.

        False where that has declined such operands before.
        """
        if self.operation.declined is not None and self.types in self.operation.declined:
            return False
        stop(bind(self.unit))
        return True

    cdef int decline(self, int code) except -1:
        """The first phase wants no such parameters, or there is no kernel for them."""
        cdef const char *text = acl.taken_text()
        cdef bint told = self.operation.declined is not None
        if code == NOT_TAKEN or code == NO_POINTER:
            return 0  # other parameters may be taken
        if not told:
            self.operation.declined = set()
        self.operation.declined.add(self.types)
        if not told:
            name = self.operation.second_name.decode()
            detail = (<bytes>text).decode("utf-8", "replace").strip() if text != NULL else ""
            warnings.warn(f"[{name}] runs through the CPU where the NPU has no kernel for its operands: "
                          f"error {code} ({acl_names.error_name(code)})" + (f": {detail}" if detail else ""),
                          RuntimeWarning)
        return 0

    cdef int destroy(self) noexcept nogil:
        """Returns the first error's code, noted."""
        cdef int code = 0, failed
        while self.count > 0:
            self.count -= 1
            failed = _destroy(self.handles[self.count], self.kinds[self.count], code != 0)
            code = code if code != 0 else failed
        while self.listed_count > 0:
            self.listed_count -= 1
            failed = _destroy(self.listed[self.listed_count], c't', code != 0)
            code = code if code != 0 else failed
        free(self.listed)
        self.listed = NULL
        return code

    cdef bint end(self, int code, uint64_t size, Handle executor) except -1:
        """What follows every first phase: `code` is what that returned. The call is over."""
        cdef Lane *lane = current_lane(self.unit)
        cdef Piece *piece = NULL
        cdef bint queued = False
        cdef const char *name = self.operation.second_name
        cdef Second second = self.operation.second
        if DECLINED <= code < DECLINED + 1000 or NOT_HERE <= code < NOT_HERE + 1000:
            self.decline(code)
        else:
            acl.check(self.operation.first_name, code)
            with nogil:
                if size > 0:
                    code = take(lane, size, &piece)
                if code != 0:
                    _abandon(executor)
                else:
                    code = acl.note(name, second(piece.address if piece != NULL else NULL, size, executor, lane.stream))
                    if piece != NULL:
                        acl.hush()
                        give(piece)
                        acl.speak()
            if piece == NULL and size > 0 and acl.is_device_full(code):
                acl.throw_memory(f"NPU out of memory. Tried to allocate {size} bytes of workspace for {name.decode()} "
                                 f"on npu:{self.unit.device}")
            stop(code)
            queued = True
        if self.destroy():
            acl.throw()
        return queued

    cdef Handle keep(self, Handle handle, char kind, const char *function) except NULL:
        if handle == NULL:
            acl.check(function, NOT_MADE)
        self.handles[self.count] = handle
        self.kinds[self.count] = kind
        self.count += 1
        return handle

    cdef Handle tensor(self, tuple description) except NULL:
        self.types = self.types * 32 + <uint64_t>description[5] + 1
        return self.keep(_make_tensor(description), c't', b"aclCreateTensor")

    cdef Handle optional(self, description) except? NULL:
        return NULL if description is None else self.tensor(description)

    cdef Handle scalar(self, value) except NULL:
        cdef double real
        cdef int64_t whole
        cdef bint8 truth
        if isinstance(value, bool):
            truth = 1 if value else 0
            return self.keep(_makers.scalar(&truth, BOOL), c's', b"aclCreateScalar")
        if isinstance(value, int):
            whole = value
            return self.keep(_makers.scalar(&whole, INT64), c's', b"aclCreateScalar")
        real = value
        return self.keep(_makers.scalar(&real, DOUBLE), c's', b"aclCreateScalar")

    cdef Handle array(self, tuple values) except NULL:
        cdef int64_t numbers[MAX_RANK]
        cdef int i
        if len(values) > MAX_RANK:
            raise ValueError(f"expected at most {MAX_RANK} dimensions, got {len(values)}")
        for i in range(len(values)):
            numbers[i] = values[i]
        return self.keep(_makers.array(numbers, len(values)), c'a', b"aclCreateIntArray")

    cdef Handle tensor_list(self, list descriptions) except NULL:
        cdef Handle handle
        self.listed = <Handle *>calloc(len(descriptions) + 1, sizeof(Handle))
        if self.listed == NULL:
            raise MemoryError("no memory for a list of tensors")
        if descriptions:
            self.types = self.types * 32 + <uint64_t>descriptions[0][5] + 1
        for description in descriptions:
            handle = _make_tensor(description)
            if handle == NULL:
                acl.check(b"aclCreateTensor", NOT_MADE)
            self.listed[self.listed_count] = handle
            self.listed_count += 1
        handle = self.keep(_makers.tensor_list(self.listed, self.listed_count), c'l', b"aclCreateTensorList")
        self.listed_count = 0
        return handle


cdef int _destroy(Handle handle, char kind, bint silent) noexcept nogil:
    cdef int code
    cdef const char *name
    if kind == c't':
        name, code = b"aclDestroyTensor", _makers.end_tensor(handle)
    elif kind == c's':
        name, code = b"aclDestroyScalar", _makers.end_scalar(handle)
    elif kind == c'a':
        name, code = b"aclDestroyIntArray", _makers.end_array(handle)
    else:
        name, code = b"aclDestroyTensorList", _makers.end_list(handle)
    return code if silent else acl.note(name, code)


cdef Handle _make_tensor(tuple description) except? NULL:
    cdef int64_t sizes[MAX_RANK]
    cdef int64_t strides[MAX_RANK]
    cdef int64_t storage = description[4]
    cdef size_t address = description[0]
    cdef tuple given_sizes = description[1], given_strides = description[2]
    cdef int i, rank = len(given_sizes)
    if rank > MAX_RANK or len(given_strides) != rank:
        raise ValueError(f"expected at most {MAX_RANK} dimensions, got sizes {given_sizes}, strides {given_strides}")
    for i in range(rank):
        sizes[i] = given_sizes[i]
        strides[i] = given_strides[i]
    return _makers.tensor(sizes, rank, description[5], strides, description[3], FORMAT_ND, &storage, 1, <Handle>address)


cdef void _abandon(Handle executor) noexcept nogil:
    """An executor that no second phase will have: only repeatable ones can be destroyed."""
    if _makers.repeatable != NULL and _makers.end_executor != NULL and _makers.repeatable(executor) == 0:
        _makers.end_executor(executor)


def unary(str name, tuple self, tuple out, int device):
    """``out = name(self)``, of the same shape; also Max, whose result is one number, and InplaceCopy, where ``self``
    is what is written and ``out`` what is read."""
    cdef _Call call = _Call(device, name)
    cdef Handle source = call.tensor(self), target = call.tensor(out), executor = NULL
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PP>call.operation.first)(source, target, &size, &executor)
    return call.end(code, size, executor)


def binary(str name, tuple self, other, alpha, tuple out, int device):
    """``out = name(self, alpha * other)``, broadcast. ``other`` is a tensor or a number, for which the operation
    called is ``name`` with an s. ``alpha`` is None for the operations without one."""
    cdef bint number = not isinstance(other, tuple)
    cdef _Call call = _Call(device, name + "s" if number else name)
    cdef Handle left = call.tensor(self), executor = NULL
    cdef Handle right = call.scalar(other) if number else call.tensor(other)
    cdef Handle factor = NULL if alpha is None else call.scalar(alpha)
    cdef Handle target = call.tensor(out)
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        if factor == NULL:
            code = (<PPP>call.operation.first)(left, right, target, &size, &executor)
        else:
            code = (<PPPP>call.operation.first)(left, right, factor, target, &size, &executor)
    return call.end(code, size, executor)


def product(str name, tuple self, tuple other, tuple out, int device, int8_t mode=0):
    """``out = self @ other``: Mm of two matrices, BatchMatMul of two stacks, Matmul of any. ``mode``: what float32 may
    be computed in; 0 is float32."""
    cdef _Call call = _Call(device, name)
    cdef Handle left = call.tensor(self), right = call.tensor(other), target = call.tensor(out), executor = NULL
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PPPC>call.operation.first)(left, right, target, mode, &size, &executor)
    return call.end(code, size, executor)


def addmm(tuple self, tuple mat1, tuple mat2, beta, alpha, tuple out, int device, int8_t mode=0):
    """``out = beta * self + alpha * (mat1 @ mat2)``, ``self`` broadcast."""
    cdef _Call call = _Call(device, "Addmm")
    cdef Handle added = call.tensor(self), left = call.tensor(mat1), right = call.tensor(mat2), executor = NULL
    cdef Handle of_added = call.scalar(beta), of_product = call.scalar(alpha), target = call.tensor(out)
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PPPPPPC>call.operation.first)(added, left, right, of_added, of_product, target, mode, &size, &executor)
    return call.end(code, size, executor)


def reduction(str name, tuple self, tuple dims, bint keepdim, tuple out, int device):
    """ReduceSum or Mean over ``dims``, which must be named all."""
    cdef _Call call = _Call(device, name)
    cdef Handle source = call.tensor(self), over = call.array(dims), target = call.tensor(out), executor = NULL
    cdef int code, dtype = out[5]
    cdef uint64_t size = 0
    if not call.ready():
        return False
    with nogil:
        code = (<PPBIP>call.operation.first)(source, over, <bint8>keepdim, dtype, target, &size, &executor)
    return call.end(code, size, executor)


def max_dim(tuple self, int64_t dim, bint keepdim, tuple out, tuple indices, int device):
    """The largest along ``dim`` and, in int64, where they are."""
    cdef _Call call = _Call(device, "MaxDim")
    cdef Handle source = call.tensor(self), target = call.tensor(out), places = call.tensor(indices), executor = NULL
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PLBPP>call.operation.first)(source, dim, <bint8>keepdim, target, places, &size, &executor)
    return call.end(code, size, executor)


def with_number(str name, tuple self, int64_t number, tuple out, int device):
    """Softmax along dimension ``number``; GeluV2, exact for 0 and by tanh for 1."""
    cdef _Call call = _Call(device, name)
    cdef Handle source = call.tensor(self), target = call.tensor(out), executor = NULL
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PLP>call.operation.first)(source, number, target, &size, &executor)
    return call.end(code, size, executor)


def layer_norm(tuple self, tuple shape, weight, bias, double eps, tuple out, mean, rstd, int device):
    """Normalizes over the last dimensions, sized ``shape``. ``weight``, ``bias``, ``mean`` and ``rstd`` may be None."""
    cdef _Call call = _Call(device, "LayerNorm")
    cdef Handle source = call.tensor(self), over = call.array(shape), scale = call.optional(weight)
    cdef Handle shift = call.optional(bias), target = call.tensor(out), means = call.optional(mean)
    cdef Handle scales = call.optional(rstd), executor = NULL
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PPPPDPPP>call.operation.first)(source, over, scale, shift, eps, target, means, scales, &size,
                                                &executor)
    return call.end(code, size, executor)


def cast(tuple self, tuple out, int device):
    """``out = self`` in ``out``'s dtype, of the same shape."""
    cdef _Call call = _Call(device, "Cast")
    cdef Handle source = call.tensor(self), target = call.tensor(out), executor = NULL
    cdef int code, dtype = out[5]
    cdef uint64_t size = 0
    if not call.ready():
        return False
    with nogil:
        code = (<PIP>call.operation.first)(source, dtype, target, &size, &executor)
    return call.end(code, size, executor)


def fill(tuple self, value, int device):
    """Every element of ``self`` becomes the number ``value``."""
    cdef _Call call = _Call(device, "InplaceFillScalar")
    cdef Handle target = call.tensor(self), number = call.scalar(value), executor = NULL
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PP>call.operation.first)(target, number, &size, &executor)
    return call.end(code, size, executor)


def cat(list tensors, int64_t dim, tuple out, int device):
    """The tensors one after the other along ``dim``."""
    cdef _Call call = _Call(device, "Cat")
    cdef Handle parts = call.tensor_list(tensors), target = call.tensor(out), executor = NULL
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PLP>call.operation.first)(parts, dim, target, &size, &executor)
    return call.end(code, size, executor)


def index_select(tuple self, int64_t dim, tuple index, tuple out, int device):
    """The slices of ``self`` along ``dim`` that ``index`` names."""
    cdef _Call call = _Call(device, "IndexSelect")
    cdef Handle source = call.tensor(self), chosen = call.tensor(index), target = call.tensor(out), executor = NULL
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PLPP>call.operation.first)(source, dim, chosen, target, &size, &executor)
    return call.end(code, size, executor)


def embedding(tuple weight, tuple indices, tuple out, int device):
    """The rows of ``weight`` that ``indices`` name."""
    cdef _Call call = _Call(device, "Embedding")
    cdef Handle source = call.tensor(weight), chosen = call.tensor(indices), target = call.tensor(out), executor = NULL
    cdef uint64_t size = 0
    cdef int code
    if not call.ready():
        return False
    with nogil:
        code = (<PPP>call.operation.first)(source, chosen, target, &size, &executor)
    return call.end(code, size, executor)
