"""Modules whose ``forward`` the program calls by that name: ``self.attention.forward(x)``, ``model.forward(x)``.

Such a call passes no function of torch's. It is found among the running frames when somebody asks where the program is,
and from then on the module runs like one that was called. When the call ends is known from the frame itself: a `Mark`
hangs in its ``f_trace`` and goes with it. Nothing of the program's changes.

It takes a walk over the frames within the innermost call of a module at each op, so it is done where somebody listens
alone. Where a running function's first argument is not to be had (3.11, if the interpreter's own frames are not as
expected), such modules count to their callers.
"""
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t

import sys

from mindtorch._ext.context cimport (
    MODULE_ENTER, MODULE_EXIT, MT_MOST_NAMED, PHASE_BACKWARD, PHASE_DATA, PHASE_FORWARD, PHASE_OPTIMIZER, PHASE_PREFILL,
    is_constructor, is_followed, leave_named, log_seen, look_with, mt_named, mt_tls, note_seen, phase_of, push, tell,
    thread_state,
)
from mindtorch._ext.interpreter cimport (
    mt_code_name, mt_frame, mt_frame_argument, mt_frame_back, mt_frame_code, mt_frame_first, mt_frame_free,
    mt_frame_made, mt_frame_now, mt_is_a, mt_look_inside,
)
from mindtorch._ext.paths cimport NO_PATH, path_of_child, path_of_outermost

cdef extern from *:
    PyObject *PyObject_GetAttr(PyObject *ob, PyObject *name) noexcept
    void PyErr_Clear() noexcept
    void PyErr_Fetch(PyObject **kind, PyObject **value, PyObject **trace) noexcept
    void PyErr_Restore(PyObject *kind, PyObject *value, PyObject *trace) noexcept
    void decref "Py_DECREF" (PyObject *p) noexcept
    void drop "Py_XDECREF" (PyObject *p) noexcept

cdef object s_init = sys.intern("__init__")
cdef object s_call = sys.intern("__call__")
cdef object s_forward = sys.intern("forward")
cdef object s_trace = sys.intern("f_trace")
cdef object _module_class = None
cdef object _call_code = None
cdef int _wanted = 0                           # by so many

cdef enum:
    CO_VARARGS = 4                             # as inspect has them
    CO_VARKEYWORDS = 8


def first_argument():
    """That of the Python function that calls this; None where nobody says."""
    cdef mt_frame *frame = mt_frame_now()
    cdef PyObject *first = mt_frame_first(frame) if frame != NULL else NULL
    if frame != NULL:
        mt_frame_free(frame)
    if first == NULL:
        return None
    found = <object> first
    decref(first)
    return found


def look_inside(bint allowed):
    """May frames be read past CPython's public functions, where both agree (3.11)? Returns whether they are."""
    cdef bint inside = mt_look_inside(allowed)
    if inside and eval("lambda first, ask: ask()")(first_argument, first_argument) is not first_argument:
        inside = mt_look_inside(False)
    return inside


look_inside(True)


cdef class Mark:
    """In ``f_trace`` of the frame of such a call. Whoever traces the program gets None of it, and leaves it there."""
    cdef mt_tls *thread

    def __call__(self, frame, event, arg):
        return None

    def __dealloc__(self):
        cdef mt_tls *t = thread_state()
        cdef PyObject *kind
        cdef PyObject *value
        cdef PyObject *trace
        cdef uint32_t i
        if self.thread != t:                   # it is found later that the frame runs no more
            return
        PyErr_Fetch(&kind, &value, &trace)
        for i in range(t.named_from, t.n_named):
            if t.named[i].mark == <PyObject *> self:
                leave_named(t, i, False)
                break
        PyErr_Restore(kind, value, trace)


cdef struct Running:                           # a frame of a module's forward
    PyObject *module                           # owned
    PyObject *mark                             # owned, or NULL
    int steps                                  # outwards from the innermost frame


cdef void look(mt_tls *t) noexcept:
    """Enter the modules whose forward runs by its name, within the innermost call; leave those that ended."""
    cdef Running found[MT_MOST_NAMED]
    cdef int n, i
    cdef uint32_t k = t.named_from
    if t.looking or (t.depth == t.base and (t.phase == PHASE_BACKWARD or t.phase == PHASE_OPTIMIZER
                                            or t.phase == PHASE_DATA)):
        return
    t.looking = 1
    n = i = running(t, found)
    while i > 0 and k < t.n_named and is_entered(t, k, &found[i - 1]):
        i -= 1
        k += 1
    leave_named(t, k, True)
    while i > 0 and t.n_named < MT_MOST_NAMED:
        i -= 1
        enter(t, &found[i])
    forget(found, n)
    note_seen(t)
    t.looking = 0


cdef bint is_entered(mt_tls *t, uint32_t k, const Running *at) noexcept:
    if t.named[k].mark != NULL:
        return t.named[k].mark == at.mark
    return t.stack[t.named[k].depth] == at.module


cdef void forget(Running *found, int n) noexcept:
    cdef int i
    for i in range(n):
        decref(found[i].module)
        drop(found[i].mark)


cdef int running(mt_tls *t, Running *found) noexcept:
    """Such frames, the innermost first; of a forward that calls those of its base classes, the outermost.

    None of them where there are too many, in a constructor (what that makes has no owner yet), or in a call that a
    constructor makes.
    """
    cdef uint32_t called = t.named[t.named_from].depth if t.n_named > t.named_from else t.depth
    cdef PyObject *top = t.stack[called - 1] if called != t.base else NULL
    cdef PyObject *name
    cdef PyObject *module
    cdef mt_frame *frame = mt_frame_now()
    cdef int n = 0, steps = 0
    cdef bint counts = True
    while frame != NULL:
        name = mt_code_name(mt_frame_code(frame))
        if mt_frame_code(frame) == <PyObject *> _call_code:
            counts = top != NULL
            break
        if name == <PyObject *> s_forward or name == <PyObject *> s_call:
            module = module_of(frame)
            if module != NULL and (name == <PyObject *> s_call or module == top):
                decref(module)
                counts = top != NULL
                break
            if module != NULL:
                if n > 0 and found[n - 1].module == module:
                    n -= 1
                    forget(found + n, 1)
                counts = n < MT_MOST_NAMED
                if not counts:
                    decref(module)
                    break
                found[n].module, found[n].mark, found[n].steps = module, mark_of(frame), steps
                n += 1
        elif name == <PyObject *> s_init and top == NULL and is_constructor(mt_frame_code(frame)):
            counts = False
            break
        frame = mt_frame_back(frame)
        steps += 1
    if frame != NULL:
        mt_frame_free(frame)
    if not counts:
        forget(found, n)
        return 0
    return n


cdef PyObject *module_of(mt_frame *frame) noexcept:
    """The function's first argument, if it is a module: a new reference; else NULL."""
    cdef PyObject *first = mt_frame_first(frame)
    if first != NULL and not mt_is_a(first, <PyObject *> _module_class):
        decref(first)
        return NULL
    return first


cdef PyObject *mark_of(mt_frame *frame) noexcept:
    """Its `Mark`, a new reference, or NULL."""
    cdef PyObject *made = mt_frame_made(frame)
    cdef PyObject *mark
    if made == NULL:
        return NULL
    mark = PyObject_GetAttr(made, <PyObject *> s_trace)
    if mark == NULL:
        PyErr_Clear()
    elif not mt_is_a(mark, <PyObject *> Mark):
        decref(mark)
        return NULL
    return mark


cdef void enter(mt_tls *t, const Running *at) noexcept:
    cdef uint32_t depth = t.depth, id
    cdef uint8_t phase = t.phase
    cdef bint followed = False
    cdef mt_named *entry = &t.named[t.n_named]
    if depth != t.base:
        id = path_of_child(at.module, t.stack, t.ids, depth)
    else:
        id = path_of_outermost(at.module, 0)
        if id != NO_PATH and phase < PHASE_PREFILL:
            followed = is_followed(phase, at.module)
            phase = phase_of(at.module, (), arguments(at.steps)) if followed else <uint8_t> PHASE_FORWARD
    if id == NO_PATH:
        PyErr_Clear()                          # it counts to the caller
        return
    tell(MODULE_ENTER, id, phase)
    if not push(t, at.module, id):
        tell(MODULE_EXIT, id, t.phase)
        return
    entry.depth, entry.module, entry.phase = depth, t.module, t.phase
    entry.followed = followed
    entry.mark = new_mark(t, at.steps)
    t.n_named += 1
    t.module = id
    t.phase = phase
    log_seen(t, id)


cdef dict arguments(int steps):
    """By name, those of the function whose frame is so many steps outwards, but the first."""
    cdef mt_frame *frame = mt_frame_now()
    cdef PyObject *value
    cdef dict found = {}
    cdef int i
    while frame != NULL and steps > 0:
        frame = mt_frame_back(frame)
        steps -= 1
    if frame == NULL:
        return found
    code = <object> mt_frame_code(frame)
    names = code.co_varnames
    for i in range(1, code.co_argcount + code.co_kwonlyargcount + (code.co_flags & CO_VARARGS != 0)
                   + (code.co_flags & CO_VARKEYWORDS != 0)):
        value = mt_frame_argument(frame, i)
        if value != NULL:
            found[names[i]] = <object> value
            decref(value)
    if code.co_flags & CO_VARKEYWORDS:
        further = found.pop(names[i], None)
        if type(further) is dict:
            found.update(further)
    mt_frame_free(frame)
    return found


cdef PyObject *new_mark(mt_tls *t, int steps) noexcept:
    """In the frame so many steps outwards. NULL: somebody traces the program, or there is no memory for one."""
    cdef Mark mark
    try:
        frame = sys._getframe(steps)
        if frame.f_trace is not None or sys.gettrace() is not None:
            return NULL
        mark = Mark.__new__(Mark)
        mark.thread = t
        frame.f_trace = mark
        return <PyObject *> mark
    except (AttributeError, MemoryError, ValueError):
        return NULL


def configure(module_class, call_code):
    """Hand in ``nn.Module`` and the code of its ``__call__``, within which frames belong to that call."""
    global _module_class, _call_code
    _module_class, _call_code = module_class, call_code


def want(bint wanted):
    """One more wants such modules to count, or one fewer."""
    global _wanted
    cdef mt_tls *t = thread_state()
    _wanted += 1 if wanted else -1
    if _wanted:
        look_with(look)
        return
    look_with(NULL)
    leave_named(t, t.named_from, True)
