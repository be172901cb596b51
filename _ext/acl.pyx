"""The binding to AscendCL: one library opened at run time, no headers needed to build.

Functions are called through `api` by the modules beside this one; a code other than 0 becomes the exception class that
`configure` was handed, with the function, the code, its name and the library's own last message.
"""
from libc.string cimport strncmp

import glob
import os

cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *path, int mode)
    void *dlsym(void *handle, const char *name)
    int dlclose(void *handle)
    const char *dlerror()
    int RTLD_LAZY
    int RTLD_NOW
    int RTLD_LOCAL

cdef extern from *:
    """
    #include <string.h>
    typedef struct mt_failure { const char *function; int code, hushed; char text[1024]; } mt_failure;
    static __thread mt_failure mt_last;
    static inline mt_failure *mt_failed(void) { return &mt_last; }
    static inline void mt_keep(const char *function, int code, const char *text) {
        mt_last.function = function;
        mt_last.code = code;
        mt_last.text[0] = 0;
        if (text) { strncpy(mt_last.text, text, sizeof(mt_last.text) - 1); mt_last.text[sizeof(mt_last.text) - 1] = 0; }
    }
    """
    ctypedef struct mt_failure:
        const char *function
        int code
        int hushed
        char *text
    mt_failure *mt_failed() noexcept nogil
    void mt_keep(const char *function, int code, const char *text) noexcept nogil

cdef enum:
    MOST_LIBRARIES = 64

# Where the loader alone knows the place. CANN has split its operators since 8.5; before, all were in the last one.
_OPERATORS = ("libopapi_math.so", "libopapi_nn.so", "libopapi_transformer.so", "libopapi_cv.so", "libopapi.so")

# The names that the public headers give to error codes.
_NAMES = {
    100000: "ACL_ERROR_INVALID_PARAM", 100001: "ACL_ERROR_UNINITIALIZE", 100002: "ACL_ERROR_REPEAT_INITIALIZE",
    100003: "ACL_ERROR_INVALID_FILE", 107000: "ACL_ERROR_RT_PARAM_INVALID", 107001: "ACL_ERROR_RT_INVALID_DEVICEID",
    107002: "ACL_ERROR_RT_CONTEXT_NULL", 107003: "ACL_ERROR_RT_STREAM_CONTEXT", 107004: "ACL_ERROR_RT_MODEL_CONTEXT",
    107006: "ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID", 107007: "ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL",
    107008: "ACL_ERROR_RT_ADDR_UNALIGNED", 107016: "ACL_ERROR_RT_INVALID_MEMORY_TYPE",
    107017: "ACL_ERROR_RT_INVALID_HANDLE", 107018: "ACL_ERROR_RT_INVALID_MALLOC_TYPE",
    107019: "ACL_ERROR_RT_WAIT_TIMEOUT", 107020: "ACL_ERROR_RT_TASK_TIMEOUT",
    200000: "ACL_ERROR_BAD_ALLOC", 200001: "ACL_ERROR_API_NOT_SUPPORT", 200002: "ACL_ERROR_INVALID_DEVICE",
    207000: "ACL_ERROR_RT_FEATURE_NOT_SUPPORT", 207001: "ACL_ERROR_RT_MEMORY_ALLOCATION",
    207002: "ACL_ERROR_RT_MEMORY_FREE", 207003: "ACL_ERROR_RT_AICORE_OVER_FLOW", 207004: "ACL_ERROR_RT_NO_DEVICE",
    207005: "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL", 207006: "ACL_ERROR_RT_NO_PERMISSION",
    207007: "ACL_ERROR_RT_NO_EVENT_RESOURCE", 207008: "ACL_ERROR_RT_NO_STREAM_RESOURCE",
    207018: "ACL_ERROR_RT_DEVICE_OOM", 500000: "ACL_ERROR_INTERNAL_ERROR", 500001: "ACL_ERROR_FAILURE",
    507000: "ACL_ERROR_RT_INTERNAL_ERROR", 507001: "ACL_ERROR_RT_TS_ERROR", 507033: "ACL_ERROR_RT_DEV_SETUP_ERROR",
    507046: "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT", 507899: "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
    507900: "ACL_ERROR_RT_AICPU_INTERNAL_ERROR",
    # What a device's work ends with.
    507010: "ACL_ERROR_RT_LOST_HEARTBEAT", 507011: "ACL_ERROR_RT_MODEL_EXECUTE", 507012: "ACL_ERROR_RT_REPORT_TIMEOUT",
    507014: "ACL_ERROR_RT_AICORE_TIMEOUT", 507015: "ACL_ERROR_RT_AICORE_EXCEPTION",
    507016: "ACL_ERROR_RT_AICORE_TRAP_EXCEPTION", 507017: "ACL_ERROR_RT_AICPU_TIMEOUT",
    507018: "ACL_ERROR_RT_AICPU_EXCEPTION", 507023: "ACL_ERROR_RT_MODEL_ABORT_NORMAL",
    507034: "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT", 507035: "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION",
    507036: "ACL_ERROR_RT_VECTOR_CORE_TRAP_EXCEPTION", 507042: "ACL_ERROR_RT_AICORE_TRAP_READ_OVERFLOW",
    507043: "ACL_ERROR_RT_AICORE_TRAP_WRITE_OVERFLOW", 507044: "ACL_ERROR_RT_VECTOR_CORE_TRAP_READ_OVERFLOW",
    507045: "ACL_ERROR_RT_VECTOR_CORE_TRAP_WRITE_OVERFLOW", 507047: "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT",
    507048: "ACL_ERROR_RT_FFTS_PLUS_TIMEOUT", 507053: "ACL_ERROR_RT_DEVICE_MEM_ERROR",
    507054: "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR", 507056: "ACL_ERROR_RT_LINK_ERROR",
    # What operators say.
    161001: "ACLNN_ERR_PARAM_NULLPTR", 161002: "ACLNN_ERR_PARAM_INVALID", 361001: "ACLNN_ERR_RUNTIME_ERROR",
    561000: "ACLNN_ERR_INNER", 561001: "ACLNN_ERR_INNER_INFERSHAPE_ERROR", 561002: "ACLNN_ERR_INNER_TILING_ERROR",
    561003: "ACLNN_ERR_INNER_FIND_KERNEL_ERROR", 561101: "ACLNN_ERR_INNER_CREATE_EXECUTOR",
    561102: "ACLNN_ERR_INNER_NOT_TRANS_EXECUTOR", 561103: "ACLNN_ERR_INNER_NULLPTR",
    561104: "ACLNN_ERR_INNER_WRONG_ATTR_INFO_SIZE", 561105: "ACLNN_ERR_INNER_KEY_CONFLICT",
    561106: "ACLNN_ERR_INNER_INVALID_IMPL_MODE", 561107: "ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND",
    561108: "ACLNN_ERR_INNER_LOAD_JSON_FAILED", 561109: "ACLNN_ERR_INNER_JSON_VALUE_NOT_FOUND",
    561110: "ACLNN_ERR_INNER_JSON_FORMAT_INVALID", 561111: "ACLNN_ERR_INNER_JSON_DTYPE_INVALID",
    561112: "ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND", 561113: "ACLNN_ERR_INNER_OP_FILE_INVALID",
    561114: "ACLNN_ERR_INNER_ATTR_NUM_OUT_OF_BOUND", 561115: "ACLNN_ERR_INNER_ATTR_LEN_NOT_ENOUGH",
    561116: "ACLNN_ERR_INNER_INPUT_NUM_IN_JSON_TOO_LARGE", 561117: "ACLNN_ERR_INNER_INPUT_JSON_IS_NULL",
    561118: "ACLNN_ERR_INNER_STATIC_WORKSPACE_INVALID", 561119: "ACLNN_ERR_INNER_STATIC_BLOCK_DIM_INVALID",
}  # fmt: skip

cdef void *_library = NULL
cdef void *_operators[MOST_LIBRARIES]     # the libraries that have operators, and how many there are
cdef int _operators_count = 0
cdef bint _sought_operators = False
cdef object _operators_paths = ()
cdef object _operators_closed = ()        # why files of operators could not be opened
cdef bint _test_library = False
cdef str _path = None
cdef object _missing = ()
_error = None
_out_of_memory = None


def configure(error, out_of_memory):
    """The exception classes to raise, both called with (function, code, name, detail)."""
    global _error, _out_of_memory
    _error, _out_of_memory = error, out_of_memory


def error_name(int code):
    """The name of an error code in AscendCL's headers; ``unknown error`` for one that is not there."""
    return _NAMES.get(code, "unknown error")


cdef int note(const char *function, int code) noexcept nogil:
    cdef const char *text
    if code != 0:
        text = taken_text()  # also where nobody wants it: the library would tell it with the next error
        if mt_failed().hushed == 0:
            mt_keep(function, code, text)
    return code


cdef const char *taken_text() noexcept nogil:
    return api.aclGetRecentErrMsg() if api.aclGetRecentErrMsg != NULL else NULL


cdef int dismiss(int code) noexcept nogil:
    if code != 0:
        taken_text()
    return code


cdef void hush() noexcept nogil:
    mt_failed().hushed += 1


cdef void speak() noexcept nogil:
    mt_failed().hushed -= 1


cdef int throw() except -1:
    cdef mt_failure *failed = mt_failed()
    function = (<bytes>failed.function).decode() if failed.function != NULL else "AscendCL"
    detail = (<bytes>failed.text).decode("utf-8", "replace").strip()
    kind = _out_of_memory if is_memory_error(failed.code) else _error
    if kind is None:
        raise RuntimeError(f"[{function}] error {failed.code} ({error_name(failed.code)}): {detail}")
    raise kind(function, failed.code, error_name(failed.code), detail)


cdef int throw_memory(str text) except -1:
    cdef mt_failure *failed = mt_failed()
    function = (<bytes>failed.function).decode()
    if _out_of_memory is None:
        raise MemoryError(text)
    raise _out_of_memory(function, failed.code, error_name(failed.code), text)


cdef int check(const char *function, int code) except -1:
    if code != 0:
        note(function, code)
        throw()
    return 0


cdef bint is_memory_error(int code) noexcept nogil:
    return code == ERROR_MEMORY_ALLOCATION or code == ERROR_DEVICE_OUT_OF_MEMORY


cdef bint is_device_full(int code) noexcept nogil:
    cdef const char *function = mt_failed().function
    return is_memory_error(code) and function != NULL and strncmp(function, b"aclrtMalloc", 11) == 0


cdef class _Binder:
    """Looks up functions one by one, and keeps the names of those that are not there."""
    cdef void *library
    cdef list required, optional

    def __cinit__(self):
        self.required, self.optional = [], []

    cdef int need(self, const char *name, void **place) except -1:
        place[0] = dlsym(self.library, name)
        if place[0] == NULL:
            self.required.append((<bytes>name).decode())
        return 0

    cdef int want(self, const char *name, void **place) except -1:
        place[0] = dlsym(self.library, name)
        if place[0] == NULL:
            self.optional.append((<bytes>name).decode())
        return 0


cdef int _bind(_Binder binder, Api *to) except -1:
    binder.need(b"aclInit", <void **>&to.aclInit)
    binder.need(b"aclFinalize", <void **>&to.aclFinalize)
    binder.need(b"aclrtGetDeviceCount", <void **>&to.aclrtGetDeviceCount)
    binder.need(b"aclrtSetDevice", <void **>&to.aclrtSetDevice)
    binder.need(b"aclrtResetDevice", <void **>&to.aclrtResetDevice)
    binder.need(b"aclrtSynchronizeDevice", <void **>&to.aclrtSynchronizeDevice)
    binder.need(b"aclrtSetCurrentContext", <void **>&to.aclrtSetCurrentContext)
    binder.need(b"aclrtGetCurrentContext", <void **>&to.aclrtGetCurrentContext)
    binder.need(b"aclrtCreateStream", <void **>&to.aclrtCreateStream)
    binder.need(b"aclrtDestroyStream", <void **>&to.aclrtDestroyStream)
    binder.need(b"aclrtSynchronizeStream", <void **>&to.aclrtSynchronizeStream)
    binder.need(b"aclrtStreamWaitEvent", <void **>&to.aclrtStreamWaitEvent)
    binder.need(b"aclrtCreateEvent", <void **>&to.aclrtCreateEvent)
    binder.need(b"aclrtDestroyEvent", <void **>&to.aclrtDestroyEvent)
    binder.need(b"aclrtRecordEvent", <void **>&to.aclrtRecordEvent)
    binder.need(b"aclrtSynchronizeEvent", <void **>&to.aclrtSynchronizeEvent)
    binder.need(b"aclrtEventElapsedTime", <void **>&to.aclrtEventElapsedTime)
    binder.need(b"aclrtMalloc", <void **>&to.aclrtMalloc)
    binder.need(b"aclrtFree", <void **>&to.aclrtFree)
    binder.need(b"aclrtMallocHost", <void **>&to.aclrtMallocHost)
    binder.need(b"aclrtFreeHost", <void **>&to.aclrtFreeHost)
    binder.need(b"aclrtMemcpy", <void **>&to.aclrtMemcpy)
    binder.need(b"aclrtMemcpyAsync", <void **>&to.aclrtMemcpyAsync)
    binder.need(b"aclrtMemset", <void **>&to.aclrtMemset)
    binder.need(b"aclrtGetMemInfo", <void **>&to.aclrtGetMemInfo)
    binder.want(b"aclFinalizeReference", <void **>&to.aclFinalizeReference)
    binder.want(b"aclGetRecentErrMsg", <void **>&to.aclGetRecentErrMsg)
    binder.want(b"aclrtGetSocName", <void **>&to.aclrtGetSocName)
    binder.want(b"aclrtGetVersion", <void **>&to.aclrtGetVersion)
    binder.want(b"aclsysGetVersionNum", <void **>&to.aclsysGetVersionNum)
    binder.want(b"aclrtCreateStreamWithConfig", <void **>&to.aclrtCreateStreamWithConfig)
    binder.want(b"aclrtSetStreamFailureMode", <void **>&to.aclrtSetStreamFailureMode)
    binder.want(b"aclrtSynchronizeDeviceWithTimeout", <void **>&to.aclrtSynchronizeDeviceWithTimeout)
    binder.want(b"aclrtSynchronizeStreamWithTimeout", <void **>&to.aclrtSynchronizeStreamWithTimeout)
    binder.want(b"aclrtStreamQuery", <void **>&to.aclrtStreamQuery)
    binder.want(b"aclrtCreateEventWithFlag", <void **>&to.aclrtCreateEventWithFlag)
    binder.want(b"aclrtCreateEventExWithFlag", <void **>&to.aclrtCreateEventExWithFlag)
    binder.want(b"aclrtRecordEventWithFlag", <void **>&to.aclrtRecordEventWithFlag)
    binder.want(b"aclrtMallocAlign32", <void **>&to.aclrtMallocAlign32)
    binder.want(b"aclrtMemsetAsync", <void **>&to.aclrtMemsetAsync)
    binder.want(b"aclGetDeviceCapability", <void **>&to.aclGetDeviceCapability)
    binder.want(b"drvGetDevNum", <void **>&to.drvGetDevNum)
    binder.want(b"aclrtQueryEvent", <void **>&to.aclrtQueryEvent)
    binder.want(b"aclrtQueryEventStatus", <void **>&to.aclrtQueryEventStatus)
    if to.aclrtQueryEvent == NULL and to.aclrtQueryEventStatus == NULL:
        binder.required.append("aclrtQueryEventStatus")
    return 0


cdef void *_open(str path, int when) except? NULL:
    cdef bytes encoded = os.fsencode(path)
    cdef const char *name = encoded
    cdef void *handle
    # Local: its symbols are found through the handle alone, and cannot stand in for another library's.
    with nogil:
        handle = dlopen(name, when | RTLD_LOCAL)
    return handle


cdef str _why_not(str path):
    cdef const char *text = dlerror()
    return (<bytes>text).decode("utf-8", "replace") if text != NULL else f"{path}: cannot be opened"


def load(str path):
    """Open the library and bind its functions. Again with the same path: nothing happens.

    OSError with the loader's own text when it cannot be opened; ImportError that names every missing function.
    RuntimeError when another library is bound already.
    """
    global _library, _path, _missing, _test_library
    cdef Api found
    cdef _Binder binder
    if _library != NULL:
        if path != _path:
            raise RuntimeError(f"expected {_path}, which is bound already, got {path}")
        return
    cdef void *handle = _open(path, RTLD_NOW)
    if handle == NULL:
        raise OSError(_why_not(path))
    binder = _Binder()
    binder.library = handle
    _bind(binder, &found)
    if binder.required:
        dlclose(handle)
        raise ImportError(f"{path} is not a usable AscendCL library: it has no {', '.join(binder.required)}")
    if _library != NULL:  # another thread was faster
        return
    (&api)[0] = found
    _path, _missing = path, tuple(binder.optional)
    _test_library = dlsym(handle, b"genie_acl_test_library") != NULL
    _library = handle


def _customers():
    """Libraries of operators that somebody has added to CANN, where torch_npu looks for them, first to last."""
    folders = os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":")
    vendors = os.path.join(os.environ.get("ASCEND_OPP_PATH", ""), "vendors")
    try:
        with open(os.path.join(vendors, "config.ini"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("load_priority="):
                    for name in line.strip().partition("=")[2].split(","):
                        folders.append(os.path.join(vendors, name) if name else "")
    except OSError:
        pass                                   # nobody has
    found = []
    for folder in folders:
        path = os.path.join(folder, "op_api", "lib", "libcust_opapi.so")
        if folder and path not in found and os.path.isfile(path):
            found.append(path)
    return found


cdef int _seek_operators() except -1:
    """Open what has operators: what was added to CANN, then the libraries beside the one that is bound, else those that
    the loader finds."""
    global _operators_count, _operators_paths, _operators_closed, _sought_operators
    cdef void *handle
    folder = os.path.dirname(_path)
    beside = []
    for each in sorted(glob.glob(os.path.join(glob.escape(folder), "libopapi_*.so"))):
        beside.append(each)
    if os.path.isfile(os.path.join(folder, "libopapi.so")):
        beside.append(os.path.join(folder, "libopapi.so"))
    # The loader's own may be there and must not serve the test library.
    names = beside if beside or _test_library else _OPERATORS
    opened, closed = [], []
    for each in _customers() + list(names):
        if _operators_count == MOST_LIBRARIES:
            break
        # Lazily: they name functions of CANN's that they need for few operators, and that need not be installed.
        handle = _open(each, RTLD_LAZY)
        if handle != NULL:
            _operators[_operators_count] = handle
            _operators_count += 1
            opened.append(each)
        elif os.path.isfile(each):
            closed.append(_why_not(each))
    _operators_paths, _operators_closed = tuple(opened), tuple(closed)
    _sought_operators = True
    return 0


cdef void *find(const char *name) except? NULL:
    cdef void *place
    cdef int i
    if _library == NULL:
        return NULL
    place = dlsym(_library, name)
    if place != NULL:
        return place
    if not _sought_operators:
        _seek_operators()
    for i in range(_operators_count):
        place = dlsym(_operators[i], name)
        if place != NULL:
            return place
    return NULL


def symbol(str name):
    """The address of a function in the library or in the operators' libraries; 0 where none has it."""
    cdef bytes encoded = name.encode()
    return <size_t>find(encoded)


def operator_libraries():
    """The libraries that operators are looked for in, first to last: customers', and those beside the bound one or
    found by the loader."""
    if _library != NULL and not _sought_operators:
        _seek_operators()
    return _operators_paths


def closed_operator_libraries():
    """Of files that are there for operators and cannot be opened, what the loader says."""
    operator_libraries()
    return _operators_closed


def is_loaded():
    return _library != NULL


def library_path():
    """The path that was loaded, or None."""
    return _path


def is_test_library():
    """Whether what is loaded is a test library over host memory, not hardware."""
    return _test_library


def missing():
    """Names of the optional functions that the library does not have."""
    return _missing


def version():
    """The runtime's version as text, or None where the library does not tell."""
    cdef int32_t major = 0, minor = 0, patch = 0
    if api.aclrtGetVersion == NULL or dismiss(api.aclrtGetVersion(&major, &minor, &patch)) != 0:
        return None
    return f"{major}.{minor}.{patch}"


def soc_name():
    """The chip's name (``Ascend910B1``), or None where the library does not tell."""
    cdef const char *name = api.aclrtGetSocName() if api.aclrtGetSocName != NULL else NULL
    return (<bytes>name).decode("utf-8", "replace") if name != NULL else None


def capability(int device, int what):
    """Cores (0), vector cores (1) or bytes of second-level cache (2) of a device; None where it cannot tell."""
    cdef int64_t value = 0
    if api.aclGetDeviceCapability == NULL or dismiss(api.aclGetDeviceCapability(device, what, &value)) != 0:
        return None
    return value
