"""Views of wrappers, made by torch itself without its detour to Python.

Torch's own operator makes a view of a wrapper as of any tensor, with all that belongs to it (base, version, node of
autograd, creation mode), where the dispatch to the wrapper's class is passed over: a view reads no element. What a view
is to the program is torch's answer then, at the price of a view of a plain tensor.

The operators are called by the names that torch's libraries export (`at::_ops::view::call`), which say the types of
their arguments. `start` finds them; before a call is remembered, shortcuts.pyx compares what they make of a tensor on
meta with what torch's way has recorded. What is not there, or is not the same, is dispatched as ever.
"""
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint64_t

from .kept_wrappers cimport keys_of
from .local_state cimport keys, no_keys
from .native_calls cimport MT_ON, Wrap

ctypedef int (*New)(void ***cell) noexcept
ctypedef int (*Delete)(void **cell) noexcept

cdef enum Form:
    NOTHING = 0
    ONE = 1
    TWO = 2
    THREE = 3
    LIST = 4
    LIST_BOOL = 5
    SELECT = 6
    SLICE = 7
    STRIDED = 8

#: Operator -> (what it takes, the rest of the name of its C++ function).
OPERATORS = {
    "aten::t": (NOTHING, "1t4callERKNS_6TensorE"),
    "aten::alias": (NOTHING, "5alias4callERKNS_6TensorE"),
    "aten::squeeze": (NOTHING, "7squeeze4callERKNS_6TensorE"),
    "aten::squeeze.dim": (ONE, "11squeeze_dim4callERKNS_6TensorEl"),
    "aten::unsqueeze": (ONE, "9unsqueeze4callERKNS_6TensorEl"),
    "aten::transpose.int": (TWO, "13transpose_int4callERKNS_6TensorEll"),
    "aten::diagonal": (THREE, "8diagonal4callERKNS_6TensorElll"),
    "aten::unfold": (THREE, "6unfold4callERKNS_6TensorElll"),
    "aten::permute": (LIST, "7permute4callERKNS_6TensorEN3c108ArrayRefIlEE"),
    "aten::view": (LIST, "4view4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEE"),
    "aten::expand": (LIST_BOOL, "6expand4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEEb"),
    "aten::select.int": (SELECT, "10select_int4callERKNS_6TensorElN3c106SymIntE"),
    "aten::slice.Tensor": (SLICE, "12slice_Tensor4callERKNS_6TensorElSt8optionalIN3c106SymIntEES8_S7_"),
    "aten::as_strided": (
        STRIDED, "10as_strided4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEES8_St8optionalIS7_E",
    ),
}
#: What else is called: what makes a Python object of a C++ tensor, and a place for that on the heap.
OTHERS = (
    "_Z16THPVariable_WrapRKN2at10TensorBaseEP11_typeobject",
    "aoti_torch_new_uninitialized_tensor",
    "aoti_torch_delete_tensor_object",
)

cdef dict calls = {}                       # operator -> (what it takes, address)
cdef Wrap wrap_ = NULL
cdef New new_cell = NULL
cdef Delete delete_cell = NULL
cdef mt_viewer viewer = NULL               # of `catching`
cdef uint64_t to_classes = 0               # dispatch keys by which operators come to classes
cdef uint64_t to_autograd = 0              # those of autograd's part that makes nodes; versions and bases are another's


def start(find, plain, wrapper, below_autograd, size_t catch):
    """Look for all that is called. False: torch lacks what each of them needs.

    `find(name)`: address of a C++ function of torch's, 0 where it is not exported. Operators come to the class of
    `wrapper`, and not to that of `plain`. `below_autograd`: a context in which they make no nodes of autograd. `catch`:
    address of what makes a view and catches what torch throws (`catching`), 0: only views without a node are made,
    which torch does not refuse once it has made one.
    """
    global wrap_, new_cell, delete_cell, to_classes, to_autograd, viewer
    viewer = <mt_viewer>catch
    cdef list others = list(map(find, OTHERS))
    if not all(others) or keys() == NULL or keys_of(<PyObject *>wrapper) == NULL:
        return False
    to_classes = keys_of(<PyObject *>wrapper)[0] & ~keys_of(<PyObject *>plain)[0]
    with below_autograd:
        to_autograd = keys().excluded
    wrap_ = <Wrap><size_t>others[0]
    new_cell = <New><size_t>others[1]
    delete_cell = <Delete><size_t>others[2]
    for operator, (how, rest) in OPERATORS.items():
        address = find(f"_ZN2at4_ops{rest}")
        if address:
            calls[operator] = how, address
    return bool(calls)


def facts(plain):
    """(address of what makes a Python object of a C++ tensor, word of that in which its dispatch keys are, those of
    `plain`, those by which operators come to autograd's part that makes nodes); None where there are no views.
    """
    cdef uint64_t *found = keys_of(<PyObject *>plain)
    if wrap_ == NULL or found == NULL:
        return None
    return <size_t>wrap_, found - <uint64_t *>MT_ON(<PyObject *>plain)[0], found[0], to_autograd


cdef bint describe(View *view, str name, tuple args) except -1:
    cdef object found = calls.get(name)
    cdef list first, second = []
    cdef int i
    if found is None:
        return False
    how, address = found
    view.set_a = view.set_b = False
    if how in (LIST, LIST_BOOL):
        first = list(args[0])          # the bool goes by keyword alone, and such calls do not come here
    elif how == SELECT:
        first = [args[0], args[1]]
    elif how == SLICE:
        dim, begin, end, step = args + (0, None, None, 1)[len(args):]
        first = [dim, begin or 0, end or 0, step]
        view.set_a, view.set_b = begin is not None, end is not None
    elif how == STRIDED:
        first, second = list(args[0]), list(args[1])
        view.set_a = len(args) > 2 and args[2] is not None
    else:
        first = list(args)
        if how == THREE:
            first += [0, 0, 1][len(first):]    # as a diagonal has them
        if len(first) != how:
            return False
    view.call = <void *><size_t>address
    view.how = how
    view.n, view.m = len(first), len(second)
    if view.n + view.m + 1 > MAX_NUMBERS:
        return False
    for i in range(MAX_NUMBERS):
        view.numbers[i] = 0
    for i, number in enumerate(first + second + ([args[2]] if how == STRIDED and view.set_a else [])):
        view.numbers[i] = number
    return True


cdef object make(PyObject *base, View *views, int n, PyObject *cls, bint no_node=False):
    cdef void *on = MT_ON(base)
    cdef void **cell = NULL
    cdef void **before
    cdef View *v
    cdef int i
    cdef bint failed = False, refused = False
    cdef PyObject *out = NULL
    if not no_keys() or viewer == NULL and not no_node:
        return None
    keys().excluded = to_classes | to_autograd if no_node else to_classes
    for i in range(n):
        before = cell
        if new_cell(&cell):
            cell = NULL
            failed = True
        else:
            v = &views[i]
            if viewer != NULL:
                refused = viewer(on, v.call, v.how, v.numbers, v.n, v.numbers + v.n, v.m, v.set_a, v.set_b, cell)
            else:
                cell[0] = mt_make(on, v.call, v.how, v.numbers, v.n, v.numbers + v.n, v.m, v.set_a, v.set_b).impl
            on = cell
        if before:
            delete_cell(before)
        if failed or refused:
            break
    keys().excluded = 0
    if failed:
        raise MemoryError()
    if refused:                            # as when the base of a view has been written to: torch says why, in Python
        delete_cell(cell)
        return None
    try:
        out = wrap_(cell, cls)
    finally:
        delete_cell(cell)
    result = <object>out
    Py_DECREF(result)
    keys_of(out)[0] |= keys_of(base)[0] & to_classes       # a C++ tensor has none, whatever it is made from
    return result


def made(base, str name, tuple args, cls):
    """The view of `base` that operator `name` makes, given the other arguments; None where that is not done here."""
    cdef View view
    return make(<PyObject *>base, &view, 1, <PyObject *>cls) if describe(&view, name, args) else None
