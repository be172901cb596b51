"""Kernels by op and device type (SPEC D4, S10): one table a type, never one an index."""
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(dict d, object key) except? NULL
    PyObject *PyList_GET_ITEM(list a, Py_ssize_t i) noexcept

cdef dict _tables = {}                     # device type -> {op: kernel}
cdef dict _spelled = {}                    # every device or string met -> the table of its type
cdef enum:
    MOST_SPELLED = 4096                    # programs make few devices; strings may be anything
    N_NEAR = 64
cdef list _near = [None] * N_NEAR          # devices and strings by address: hashing a device may run Python code
cdef list _near_tables = [None] * N_NEAR


def register(str op, str device_type, kernel):
    """Use `kernel` for `op` (any name, by convention an ATen overload's: `aten::add.Tensor`) on a device type."""
    if ":" in device_type:
        raise ValueError(f"kernels are registered for a device type, not for one index: {device_type}")
    if device_type not in _tables:
        _tables[device_type] = {}
        _forget()
    (<dict>_tables[device_type])[op] = kernel


def unregister(str op, str device_type):
    """Take a kernel out again; KeyError if there is none."""
    del (<dict>_tables[device_type])[op]


cdef void _forget() noexcept:
    _near[:] = [None] * N_NEAR
    _spelled.clear()


cdef dict _table_of(object device):
    """The table of `device`, a string or an object with a `type`; an empty one for a type without kernels."""
    cdef object kind = (<str>device).partition(":")[0] if isinstance(device, str) else device.type
    cdef dict table = _tables.get(kind)
    if len(_spelled) >= MOST_SPELLED:
        _spelled.clear()
    if table is None:
        table = {}
    _spelled[device] = table
    return table


def lookup(op, device):
    """The kernel for `op` on `device` (`"npu:1"`, a torch.device, a mindtorch.device), or None."""
    cdef PyObject *found
    cdef Py_ssize_t at = (<Py_ssize_t><PyObject *>device >> 5) % N_NEAR
    if <PyObject *>device != PyList_GET_ITEM(_near, at):
        found = PyDict_GetItemWithError(_spelled, device)
        _near_tables[at] = <object>found if found != NULL else _table_of(device)
        _near[at] = device
    found = PyDict_GetItem(<dict>PyList_GET_ITEM(_near_tables, at), op)
    return None if found == NULL else <object>found


def registered(str device_type):
    """Names of the ops that have a kernel on a device type."""
    return sorted(_tables.get(device_type, {}))
