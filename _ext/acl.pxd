"""AscendCL, bound when it is found: the functions, and what to do with their error codes."""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

# One member per function, named as in the library; NULL until `load`, and for optional functions that are missing.
# None of them needs the GIL: callers that may block release it.
cdef struct Api:
    int (*aclInit)(const char *config) noexcept nogil
    int (*aclFinalize)() noexcept nogil
    int (*aclFinalizeReference)(uint64_t *count) noexcept nogil
    const char *(*aclGetRecentErrMsg)() noexcept nogil
    const char *(*aclrtGetSocName)() noexcept nogil
    int (*aclrtGetVersion)(int32_t *major, int32_t *minor, int32_t *patch) noexcept nogil
    int (*aclsysGetVersionNum)(char *package, int32_t *version) noexcept nogil
    int (*aclrtGetDeviceCount)(uint32_t *count) noexcept nogil
    int (*aclrtSetDevice)(int32_t device) noexcept nogil
    int (*aclrtResetDevice)(int32_t device) noexcept nogil
    int (*aclrtSynchronizeDevice)() noexcept nogil
    int (*aclrtSynchronizeDeviceWithTimeout)(int32_t milliseconds) noexcept nogil
    int (*aclrtSetCurrentContext)(void *context) noexcept nogil
    int (*aclrtGetCurrentContext)(void **context) noexcept nogil
    int (*aclrtCreateStream)(void **stream) noexcept nogil
    int (*aclrtCreateStreamWithConfig)(void **stream, uint32_t priority, uint32_t flag) noexcept nogil
    int (*aclrtDestroyStream)(void *stream) noexcept nogil
    int (*aclrtSetStreamFailureMode)(void *stream, uint64_t mode) noexcept nogil
    int (*aclrtSynchronizeStream)(void *stream) noexcept nogil
    int (*aclrtSynchronizeStreamWithTimeout)(void *stream, int32_t milliseconds) noexcept nogil
    int (*aclrtStreamQuery)(void *stream, int *status) noexcept nogil
    int (*aclrtStreamWaitEvent)(void *stream, void *event) noexcept nogil
    int (*aclrtCreateEvent)(void **event) noexcept nogil
    int (*aclrtCreateEventWithFlag)(void **event, uint32_t flag) noexcept nogil
    int (*aclrtCreateEventExWithFlag)(void **event, uint32_t flag) noexcept nogil
    int (*aclrtDestroyEvent)(void *event) noexcept nogil
    int (*aclrtRecordEvent)(void *event, void *stream) noexcept nogil
    int (*aclrtRecordEventWithFlag)(void *event, void *stream, uint32_t flag) noexcept nogil
    int (*aclrtQueryEvent)(void *event, int *status) noexcept nogil
    int (*aclrtQueryEventStatus)(void *event, int *status) noexcept nogil
    int (*aclrtSynchronizeEvent)(void *event) noexcept nogil
    int (*aclrtEventElapsedTime)(float *milliseconds, void *start, void *end) noexcept nogil
    int (*aclrtMalloc)(void **address, size_t size, int policy) noexcept nogil
    int (*aclrtMallocAlign32)(void **address, size_t size, int policy) noexcept nogil
    int (*aclrtFree)(void *address) noexcept nogil
    int (*aclrtMallocHost)(void **address, size_t size) noexcept nogil
    int (*aclrtFreeHost)(void *address) noexcept nogil
    int (*aclrtMemcpy)(void *to, size_t room, const void *source, size_t size, int kind) noexcept nogil
    int (*aclrtMemcpyAsync)(void *to, size_t room, const void *source, size_t size, int kind,
                            void *stream) noexcept nogil
    int (*aclrtMemset)(void *address, size_t room, int32_t value, size_t size) noexcept nogil
    int (*aclrtMemsetAsync)(void *address, size_t room, int32_t value, size_t size, void *stream) noexcept nogil
    int (*aclrtGetMemInfo)(int kind, size_t *free, size_t *total) noexcept nogil
    int (*aclGetDeviceCapability)(uint32_t device, int what, int64_t *value) noexcept nogil
    int (*drvGetDevNum)(int *count) noexcept nogil

cdef enum:
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    HUGE_FIRST = 0
    EVENT_SYNC = 1
    EVENT_TIME_LINE = 8
    STREAM_FAST_LAUNCH = 1
    STREAM_FAST_SYNC = 2
    STOP_ON_FAILURE = 1           # aclrtSetStreamFailureMode
    STREAM_COMPLETE = 0           # aclrtStreamQuery, and aclrtQueryEvent
    EVENT_STATUS_COMPLETE = 1     # aclrtQueryEventStatus: the opposite
    MEMORY_DDR = 0
    MEMORY_HBM = 1
    ERROR_UNINITIALIZED = 100001
    ERROR_REPEATED_INITIALIZE = 100002
    ERROR_NOT_SUPPORTED = 207000
    ERROR_MEMORY_ALLOCATION = 207001
    ERROR_NO_EVENT = 207007
    ERROR_NO_STREAM = 207008
    ERROR_DEVICE_OUT_OF_MEMORY = 207018
    ERROR_SYNC_TIMEOUT = 507046

cdef Api api

# Keeps what failed, with aclGetRecentErrMsg's text, for `throw`; returns `code`. `function` must be a literal.
# Both are the calling thread's, so a failure noted without the GIL can be raised once it is back.
cdef int note(const char *function, int code) noexcept nogil
# The library's text about what failed last in this thread, and no longer the library's. NULL: none. The bytes live
# until the thread's next call.
cdef const char *taken_text() noexcept nogil
# Returns `code`, of a call whose failure nobody is told of. Neither is its text then, with whatever fails next.
cdef int dismiss(int code) noexcept nogil
# Between these, what fails in this thread is not kept: it is not what will be raised. May be nested.
cdef void hush() noexcept nogil
cdef void speak() noexcept nogil
# Raises what the calling thread noted last.
cdef int throw() except -1
# Raises unless `code` is 0.
cdef int check(const char *function, int code) except -1
cdef bint is_memory_error(int code) noexcept nogil
# Whether what was noted last is that the device has not enough memory.
cdef bint is_device_full(int code) noexcept nogil
# As `throw` after `is_device_full`, with the out-of-memory exception and `text` in place of the library's.
cdef int throw_memory(str text) except -1
# The address of any other function of the library, or of the operators' libraries beside it; NULL without.
cdef void *find(const char *name) except? NULL
