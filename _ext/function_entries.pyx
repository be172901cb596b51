"""Torch's functions and methods for Python, which record at once what is known of their calls (SPEC S1, S2).

Torch looks for a `__torch_function__` among the arguments, which takes longer than all else of recording. So a function
that has come that way, and was recorded whole, is called by an entry of ours from then on. As in `hooks`, the function
stays the object that it is. A call that is not known goes torch's way.
"""
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_SIZE

from .intercept cimport NOT_RECORDED, known, may_be_whole, whole_call
from .intern cimport KIND_RECORD, OpInfo
from .interpreter cimport mt_binary, mt_copy, mt_subscript
from .keys cimport asks_first, encode_vector, is_ours, somebody_asks_first
from .lazy cimport handle_of, type_of
from .local_state cimport function_modes
from .registry cimport info_of
from .shortcuts cimport first
from .tape cimport Handle

cdef extern from *:
    """
    /* The result of the call, recorded; or the builtin function that is to be called. */
    static PyObject *(*mt_try)(PyObject *f, PyObject **given, Py_ssize_t n, PyObject *names);

    /* Torch's errors pass through here as they are, without a line of ours in the traceback. */
    static PyObject *mt_enter(PyObject *f, PyObject *const *given, size_t flags, PyObject *names) {
        PyObject *made, *found = mt_try(f, (PyObject **)given, PyVectorcall_NARGS(flags), names);
        if (found == NULL || !PyCFunction_CheckExact(found)) return found;
        made = PyObject_Vectorcall(found, given, flags, names);
        Py_DECREF(found);
        return made;
    }
    /* Call it by the entry from now on. 0: it is no builtin function of those that take a tuple, or is hooked. */
    static int mt_shorten(PyObject *f) {
        const int how = ~(METH_STATIC | METH_CLASS | METH_COEXIST);
        if (!PyCFunction_CheckExact(f)) return 0;
        if ((PyCFunction_GET_FLAGS(f) & how) != (METH_VARARGS | METH_KEYWORDS)) return 0;
        if (*mt_entry(f) != NULL) return 0;
        *mt_entry(f) = mt_enter;
        return 1;
    }
    """
    object (*mt_try)(PyObject *f, PyObject **given, Py_ssize_t n, PyObject *names)
    bint mt_shorten(PyObject *f) noexcept
    PyObject* LIST "(PyObject*)&PyList_Type"


cdef dict _twins = {}                      # function → torch's own, without our entry


cdef object attempt(PyObject *f, PyObject **given, Py_ssize_t n, PyObject *names):
    cdef OpInfo info = info_of(<object>f, False)
    cdef Py_ssize_t named = PyTuple_GET_SIZE(<object>names) if names else 0
    cdef Handle h
    if info.of_dtype is not None:
        h = handle_of(<object>given[0]) if n == 1 and not named else None
        if h is not None and not asks_first(type_of(given[0])) and not function_modes():
            return getattr(<object>h.tape.interner.metas[h.meta].dtype, info.of_dtype)
    elif is_among(given, n + named) and may_be_whole(info) and not (
        somebody_asks_first() and one_asks(given, n + named)
    ):
        if not encode_vector(info, given, n, names):
            out = known(info)
            if out is not NOT_RECORDED:
                return out
    if info.twin is None:                  # described anew since the function got its entry
        info.twin = _twins[<object>f]
    return info.twin


cdef inline bint is_among(PyObject **given, Py_ssize_t n) noexcept:
    """Is a tensor that records one of the first arguments, or the first of a list of them?"""
    cdef Py_ssize_t k
    for k in range(min(n, 3)):
        if is_ours(given[k]):
            return True
    return n > 0 and (<PyObject **>given[0])[1] == LIST and PyList_GET_SIZE(<object>given[0]) > 0 and is_ours(
        <PyObject *>PyList_GET_ITEM(<object>given[0], 0)
    )


cdef bint one_asks(PyObject **given, Py_ssize_t n) except -1:
    """Does a class of an argument, or of what a list of them holds, come before ours?"""
    cdef Py_ssize_t k
    for k in range(n):
        if asks_first(type_of(given[k])):
            return True
        if isinstance(<object>given[k], (list, tuple)):
            for each in <object>given[k]:
                if asks_first(type_of(<PyObject *>each)):
                    return True
    return False


def shorten(func, OpInfo info):
    """Let `func`, which was recorded whole, do without torch's detour."""
    twin = mt_copy(func) if mt_shorten(<PyObject *>func) else func
    if twin is not func:
        info.replay = twin if info.replay is info.call else info.replay
        info.call = twin               # on plain tensors, without a look
    info.twin = _twins[func] = twin


mt_try = attempt


cdef object named_as(object method, object func):
    """`method`, which stands for torch's `func`, with its name and words."""
    method.__name__, method.__qualname__, method.__doc__ = func.__name__, func.__qualname__, func.__doc__
    method.__wrapped__ = func
    return method


def make_method(func):
    """As intercept.make_operator, for method `func` of torch's, which is recorded, and is no view."""
    cdef OpInfo info = info_of(func, False)
    if info.kind != KIND_RECORD or info.view or info.writes:
        raise ValueError(f"[make_method] expected a method that is recorded as it is, got {info.name}")

    def method(self, *args, **kwargs):
        if may_be_whole(info):
            for a in args:
                if asks_first(type_of(<PyObject *>a)):
                    return func(self, *args, **kwargs)
            out = whole_call(info, (self,) + args, <dict>kwargs if kwargs else None)
            if out is not NOT_RECORDED:
                return out
        return func(self, *args, **kwargs)

    return named_as(method, func)


def make_short(func):
    """As make_method, for method `func` of torch's that gives a view of its tensor, or writes to it."""
    cdef OpInfo info = info_of(func, False)
    if not info.short:
        raise ValueError(f"[make_short] expected a method that gives a view or writes, got {info.name}")

    def method(self, *args, **kwargs):
        out = first(info, (self,) + args, <dict>kwargs if kwargs else None)
        if out is not NOT_RECORDED:
            return out
        return func(self, *args, **kwargs)

    return named_as(method, func)


cdef mt_binary torchs_subscript = NULL
cdef OpInfo getitem = None


cdef object subscript(object self, object index):
    out = first(getitem, (self, index), None)
    return torchs_subscript(self, index) if out is NOT_RECORDED else out


def shorten_subscript(cls, func):
    """As make_short, for `x[i]` of objects of `cls`; `func` is torch's method for it.

    With a method of that name, C code would take each tensor for a sequence.
    """
    global torchs_subscript, getitem
    cdef mt_binary *place = mt_subscript(<PyObject *>cls)
    if torchs_subscript == NULL:
        getitem = info_of(func, False)
        torchs_subscript = place[0]
        place[0] = subscript


def rule_finder(dict entries, torchs):
    """Torch's look for the rule that a class has for an operator, `torchs(op, cls)`, asked at each dispatch: without
    Python for operators of which torch has no entry.
    """
    def find_torch_dispatch_rule(op, cls):
        return torchs(op, cls) if op.__qualname__ in entries else None

    return find_torch_dispatch_rule
