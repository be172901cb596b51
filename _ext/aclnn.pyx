"""Operations of the NPU's own library (``aclnn…``), called in two phases.

The first phase checks the parameters and says how much workspace it wants, the second queues the work on the device's
current stream; the workspace comes from the allocator, in that stream's order. Tensors are described by tuples
``(address, sizes, strides, offset, storage, dtype)``: the address of the storage's first byte, sizes and strides and
the offset in elements, how many elements the storage has, AscendCL's dtype. `call` returns True when the work is
queued, False when the first phase does not take such parameters (nothing has happened then). Other failures raise what
``acl`` raises. Whatever is created is destroyed on every path.

A first phase also declines where the chip, or what is installed, has no kernel for operands of these dtypes (561xxx).
Both are warned of once per operation and remembered, and it is not asked again: for such dtypes, or, of parameters that
it does not take (161xxx), for the same call.
"""
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import warnings

from mindtorch._ext cimport acl
from mindtorch._ext import acl as acl_names
from mindtorch._ext.allocator cimport Piece, give, take
from mindtorch._ext.in_flight cimport Launch, begins, ends
from mindtorch._ext.pool cimport MAX_DEVICES, Lane, Unit, bind, current_lane, enter, leave, stop, unit_of

cdef extern from *:
    ctypedef unsigned char bint8 "_Bool"

ctypedef void *Handle
ctypedef int (*Option)(int option, int64_t value) noexcept nogil
ctypedef int (*Second)(Handle workspace, uint64_t size, Handle executor, Handle stream) noexcept nogil
# A first phase takes handles and numbers that fit into a word, up to two doubles, then where to put the size and the
# executor. In the calling conventions of the processors that CANN runs on (x86-64 and AArch64, Linux) doubles have
# registers of their own, every other argument has a register or 8 bytes of the stack, in order, and what a function
# does not declare it does not see. So one type serves all of them.
ctypedef int64_t W
ctypedef int (*First)(W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, double, double) noexcept nogil

cdef struct Makers:
    Handle (*tensor)(const int64_t *sizes, uint64_t rank, int dtype, const int64_t *strides, int64_t offset, int format,
                     const int64_t *storage_sizes, uint64_t storage_rank, Handle data) noexcept nogil
    Handle (*scalar)(Handle value, int dtype) noexcept nogil
    Handle (*array)(const int64_t *values, uint64_t count) noexcept nogil
    Handle (*bools)(const bint8 *values, uint64_t count) noexcept nogil
    Handle (*tensor_list)(const Handle *tensors, uint64_t count) noexcept nogil
    int (*end_tensor)(Handle) noexcept nogil
    int (*end_scalar)(Handle) noexcept nogil
    int (*end_array)(Handle) noexcept nogil
    int (*end_bools)(Handle) noexcept nogil
    int (*end_list)(Handle) noexcept nogil
    int (*repeatable)(Handle) noexcept nogil    # these two are optional
    int (*end_executor)(Handle) noexcept nogil

cdef enum:
    MAX_RANK = 8
    MAX_HELD = 16
    MAX_WORDS = 20
    MAX_REALS = 2
    FORMAT_NCHW = 0
    FORMAT_ND = 2
    FORMAT_NCDHW = 30
    FORMAT_NCL = 47
    INT64 = 9
    DOUBLE = 11
    BOOL = 12
    DECLINED = 161000       # and the codes after it: what a first phase does not take
    NOT_HERE = 561000       # and the codes after it: what it has no kernel for
    NO_POINTER = 161001     # ACLNN_ERR_PARAM_NULLPTR
    NOT_TAKEN = 161002      # ACLNN_ERR_PARAM_INVALID
    MOST_REFUSED = 1000     # calls that an operation remembers
    DETERMINISTIC = 0       # ACL_OPT_DETERMINISTIC
    CANNOT = 2              # of `_determined`
    NOT_MADE = 561103       # ACLNN_ERR_INNER_NULLPTR

cdef char _determined[MAX_DEVICES]      # what each device's context was told: 0, 1, or CANNOT
cdef object _wants = None
cdef object _varying = frozenset()

cdef Makers _makers
cdef bint _makers_found = False


@cython.final
cdef class _Operation:
    """Both functions of one operation; NULL where the library has not both. The names outlive all calls."""
    cdef void *first
    cdef Second second
    cdef str name
    cdef bytes first_name, second_name
    cdef bytes parameters   # of the first phase, as `declare` was told
    cdef set declined       # dtypes of operands, as `_Call.types`, or None
    cdef set refused        # calls, as `_alike`, or None


cdef dict _operations = {}
cdef dict _declared = {}


def declare(dict parameters):
    """What the first phases take, by operation; a letter for each parameter but the size and the executor.

    T: a tensor. N: one whose dimensions mean batch, channels and places. S: a scalar. A: an array of integers. B: one
    of truth values. L: a list of tensors. t, n, s, a: the same, or None. l, i, c, b, u: an integer (int64_t, int,
    int8_t, bool, uint64_t). d: a double. z: bytes, as a string of C.
    """
    for name, letters in parameters.items():
        if len(letters) - letters.count("d") + 2 > MAX_WORDS or letters.count("d") > MAX_REALS:
            raise ValueError(f"[aclnn{name}] expected at most {MAX_WORDS - 2} parameters and {MAX_REALS} doubles")
        _declared[name] = letters.encode()


def determine(wants, varying):
    """``wants()`` is whether results must be the same each time; ``varying``: operations for which CANN must be told.

    It is, before the next first phase on a device. Where it cannot be, those operations are not taken.
    """
    global _wants, _varying
    _wants, _varying = wants, frozenset(varying)


cdef int _find_makers() except -1:
    global _makers_found
    _makers.tensor = <Handle (*)(const int64_t *, uint64_t, int, const int64_t *, int64_t, int, const int64_t *,
                                 uint64_t, Handle) noexcept nogil>acl.find(b"aclCreateTensor")
    _makers.scalar = <Handle (*)(Handle, int) noexcept nogil>acl.find(b"aclCreateScalar")
    _makers.array = <Handle (*)(const int64_t *, uint64_t) noexcept nogil>acl.find(b"aclCreateIntArray")
    _makers.bools = <Handle (*)(const bint8 *, uint64_t) noexcept nogil>acl.find(b"aclCreateBoolArray")
    _makers.tensor_list = <Handle (*)(const Handle *, uint64_t) noexcept nogil>acl.find(b"aclCreateTensorList")
    _makers.end_tensor = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyTensor")
    _makers.end_scalar = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyScalar")
    _makers.end_array = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyIntArray")
    _makers.end_bools = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyBoolArray")
    _makers.end_list = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyTensorList")
    _makers.repeatable = <int (*)(Handle) noexcept nogil>acl.find(b"aclSetAclOpExecutorRepeatable")
    _makers.end_executor = <int (*)(Handle) noexcept nogil>acl.find(b"aclDestroyAclOpExecutor")
    _makers_found = (_makers.tensor != NULL and _makers.scalar != NULL and _makers.array != NULL
                     and _makers.bools != NULL and _makers.tensor_list != NULL and _makers.end_tensor != NULL
                     and _makers.end_scalar != NULL and _makers.end_array != NULL and _makers.end_bools != NULL
                     and _makers.end_list != NULL)
    return 0


cdef _Operation _operation(str name):
    cdef _Operation operation = _operations.get(name)
    if operation is not None:
        return operation
    operation = _Operation()
    operation.name = name
    operation.first_name = f"aclnn{name}GetWorkspaceSize".encode()
    operation.second_name = f"aclnn{name}".encode()
    operation.parameters = _declared.get(name)
    if not _makers_found:
        _find_makers()
    if _makers_found and operation.parameters is not None:
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
            raise NotImplementedError(f"[aclnn{name}] CANN's operator library does not have it")
        with nogil:
            code = enter(self.unit)
        stop(code)
        self.entered = True

    def __dealloc__(self):
        self.destroy()
        if self.entered:
            leave()

    cdef bint ready(self, tuple arguments) except -1:
        """Right before the first phase: what has run since `enter` may have bound another context.

        False where that has declined such operands, or refused such a call, before.
        """
        cdef _Operation operation = self.operation
        if operation.declined is not None and self.types in operation.declined:
            return False
        if operation.refused is not None and _alike(operation.parameters, arguments) in operation.refused:
            return False
        stop(bind(self.unit))
        return _wants is None or self.determined(bool(_wants()))

    cdef bint determined(self, bint wanted) except -1:
        """Tell the context, which is bound; False where it cannot be told and the results may vary."""
        cdef char *told = &_determined[self.unit.device]
        cdef Option option
        cdef int code = acl.ERROR_NOT_SUPPORTED
        if told[0] != CANNOT and told[0] != wanted:
            option = <Option>acl.find(b"aclrtCtxSetSysParamOpt")
            if option != NULL:
                code = option(DETERMINISTIC, wanted)
            if code == acl.ERROR_NOT_SUPPORTED:
                acl.dismiss(code)
                told[0] = CANNOT
            else:
                acl.check(b"aclrtCtxSetSysParamOpt", code)
                told[0] = wanted
        return not wanted or told[0] != CANNOT or self.operation.name not in _varying

    cdef int decline(self, int code, tuple arguments) except -1:
        """The first phase wants no such parameters, or there is no kernel for them."""
        cdef const char *text = acl.taken_text()
        cdef _Operation operation = self.operation
        cdef bint taken = code != NOT_TAKEN and code != NO_POINTER
        cdef bint told = operation.declined is not None if taken else operation.refused is not None
        if taken:
            operation.declined = operation.declined or set()
            operation.declined.add(self.types)
        else:  # other parameters may be taken
            if operation.refused is None or len(operation.refused) >= MOST_REFUSED:
                operation.refused = set()
            operation.refused.add(_alike(operation.parameters, arguments))
        if not told:
            name = operation.second_name.decode()
            why = "has no kernel for its operands" if taken else "does not take its parameters"
            detail = (<bytes>text).decode("utf-8", "replace").strip() if text != NULL else ""
            warnings.warn(f"[{name}] runs through the CPU where the NPU {why}: error {code} "
                          f"({acl_names.error_name(code)})" + (f": {detail}" if detail else ""), RuntimeWarning)
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

    cdef bint end(self, int code, uint64_t size, Handle executor, tuple arguments) except -1:
        """What follows every first phase: `code` is what that returned. The call is over."""
        cdef Lane *lane = current_lane(self.unit)
        cdef Piece *piece = NULL
        cdef bint queued = False
        cdef const char *name = self.operation.second_name
        cdef Second second = self.operation.second
        cdef Launch launch
        if DECLINED <= code < DECLINED + 1000 or NOT_HERE <= code < NOT_HERE + 1000:
            self.decline(code, arguments)
        else:
            acl.check(self.operation.first_name, code)
            with nogil:
                if size > 0:
                    code = take(lane, size, &piece)
                if code != 0:
                    _abandon(executor)
                else:
                    begins(lane, &launch)
                    code = acl.note(name, second(piece.address if piece != NULL else NULL, size, executor, lane.stream))
                    ends(lane, &launch, False, code)
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
        if self.count == MAX_HELD:
            _destroy(handle, kind, True)
            raise ValueError(f"expected at most {MAX_HELD} tensors, scalars and arrays")
        self.handles[self.count] = handle
        self.kinds[self.count] = kind
        self.count += 1
        return handle

    cdef Handle tensor(self, tuple description, bint channels) except NULL:
        self.types = self.types * 32 + <uint64_t>description[5] + 1
        return self.keep(_make_tensor(description, channels), c't', b"aclCreateTensor")

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

    cdef Handle bools(self, tuple values) except NULL:
        cdef bint8 truths[MAX_RANK]
        cdef int i
        if len(values) > MAX_RANK:
            raise ValueError(f"expected at most {MAX_RANK} truth values, got {len(values)}")
        for i in range(len(values)):
            truths[i] = 1 if values[i] else 0
        return self.keep(_makers.bools(truths, len(values)), c'b', b"aclCreateBoolArray")

    cdef Handle tensor_list(self, list descriptions) except NULL:
        cdef Handle handle
        free(self.listed)  # of a list before this one, which has them now
        self.listed = <Handle *>calloc(len(descriptions) + 1, sizeof(Handle))
        if self.listed == NULL:
            raise MemoryError("no memory for a list of tensors")
        if descriptions:
            self.types = self.types * 32 + <uint64_t>descriptions[0][5] + 1
        for description in descriptions:
            handle = _make_tensor(description, False)
            if handle == NULL:
                acl.check(b"aclCreateTensor", NOT_MADE)
            self.listed[self.listed_count] = handle
            self.listed_count += 1
        handle = self.keep(_makers.tensor_list(self.listed, self.listed_count), c'l', b"aclCreateTensorList")
        self.listed_count = 0
        return handle

    cdef int64_t word(self, char kind, value) except? -1:
        """A parameter that is no double, as it is passed."""
        if value is None and kind in b"tnsa":
            return 0
        if kind in b"TtNn":
            return <int64_t>self.tensor(value, kind == c'N' or kind == c'n')
        if kind == c'S' or kind == c's':
            return <int64_t>self.scalar(value)
        if kind == c'A' or kind == c'a':
            return <int64_t>self.array(value)
        if kind == c'B':
            return <int64_t>self.bools(value)
        if kind == c'L':
            return <int64_t>self.tensor_list(value)
        if kind == c'z':
            return <int64_t><const char *>value
        return value


cdef tuple _alike(bytes parameters, tuple arguments):
    """What a first phase sees of a call, but where the tensors are."""
    cdef list found = [], inner
    for kind, each in zip(parameters, arguments):
        if kind in b"TtNn" and each is not None:
            found.append(_seen(each))
        elif kind == c'L':
            inner = []
            for one in each:
                inner.append(_seen(one))
            found.append(tuple(inner))
        else:
            found.append((each, type(each)))
    return tuple(found)


cdef tuple _seen(tuple description):
    return (description[1], description[2], description[5])


cdef int _destroy(Handle handle, char kind, bint silent) noexcept nogil:
    cdef int code
    cdef const char *name
    if kind == c't':
        name, code = b"aclDestroyTensor", _makers.end_tensor(handle)
    elif kind == c's':
        name, code = b"aclDestroyScalar", _makers.end_scalar(handle)
    elif kind == c'a':
        name, code = b"aclDestroyIntArray", _makers.end_array(handle)
    elif kind == c'b':
        name, code = b"aclDestroyBoolArray", _makers.end_bools(handle)
    else:
        name, code = b"aclDestroyTensorList", _makers.end_list(handle)
    return code if silent else acl.note(name, code)


cdef Handle _make_tensor(tuple description, bint channels) except? NULL:
    cdef int64_t sizes[MAX_RANK]
    cdef int64_t strides[MAX_RANK]
    cdef int64_t storage = description[4]
    cdef size_t address = description[0]
    cdef tuple given_sizes = description[1], given_strides = description[2]
    cdef int i, format = FORMAT_ND, rank = len(given_sizes)
    if channels and 3 <= rank <= 5:
        format = FORMAT_NCL if rank == 3 else FORMAT_NCHW if rank == 4 else FORMAT_NCDHW
    if rank > MAX_RANK or len(given_strides) != rank:
        raise ValueError(f"expected at most {MAX_RANK} dimensions, got sizes {given_sizes}, strides {given_strides}")
    for i in range(rank):
        sizes[i] = given_sizes[i]
        strides[i] = given_strides[i]
    return _makers.tensor(sizes, rank, description[5], strides, description[3], format, &storage, 1, <Handle>address)


cdef void _abandon(Handle executor) noexcept nogil:
    """An executor that no second phase will have: only repeatable ones can be destroyed."""
    if _makers.repeatable != NULL and _makers.end_executor != NULL and _makers.repeatable(executor) == 0:
        _makers.end_executor(executor)


def call(str name, int device, *arguments):
    """Queue the operation (``Add``, for aclnnAdd); ``arguments`` are its parameters, as `declare` has them."""
    cdef _Call call = _Call(device, name)
    cdef bytes parameters = call.operation.parameters
    cdef int64_t w[MAX_WORDS]
    cdef double reals[MAX_REALS]
    cdef int i, code, words = 0, doubles = 0
    cdef uint64_t size = 0
    cdef Handle executor = NULL
    if len(arguments) != len(parameters):
        raise TypeError(f"[aclnn{name}] expected {len(parameters)} arguments, got {len(arguments)}")
    memset(w, 0, sizeof(w))
    memset(reals, 0, sizeof(reals))
    for i in range(len(parameters)):
        if parameters[i] == c'd':
            reals[doubles] = arguments[i]
            doubles += 1
        else:
            w[words] = call.word(parameters[i], arguments[i])
            words += 1
    w[words], w[words + 1] = <int64_t>&size, <int64_t>&executor
    if not call.ready(arguments):
        return False
    with nogil:
        code = (<First>call.operation.first)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11],
                                             w[12], w[13], w[14], w[15], w[16], w[17], w[18], w[19], reals[0], reals[1])
    return call.end(code, size, executor, arguments)
