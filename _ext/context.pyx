"""Where the program is: module path and execution phase, kept per thread in C (source lines: location.pyx).

The module path comes from a replacement of ``torch.nn.Module.__call__`` (`tracked_call`), so it is exact and needs
no hooks on any module. While somebody listens, modules count, too, whose ``forward`` the program calls by that name:
they are found among the running frames (`named_forwards`). In backward it is the path of the module whose forward
made the running autograd node: the thread's autograd sequence number is logged at every module boundary (`node_log`).
Nothing here imports torch; `configure` hands in the few torch functions that are called.
"""
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport realloc

import sys
import threading
from types import FunctionType
from weakref import WeakKeyDictionary

from mindtorch._ext import location as _location, node_log as _node_log, paths as _paths
from mindtorch._ext.interpreter cimport (
    mt_code_name, mt_frame, mt_frame_back, mt_frame_code, mt_frame_free, mt_frame_now, mt_is_a, mt_set_vectorcall,
)
from mindtorch._ext.node_log cimport log_find, log_from, mt_log, new_log
from mindtorch._ext.paths cimport NO_PATH, path_of_child, path_of_outermost
from mindtorch._ext.signals import raise_soon

cdef extern from *:
    """
    #include <stdlib.h>
    #if defined(_MSC_VER)
    #define MT_THREAD static __declspec(thread)
    #else
    #define MT_THREAD static __thread
    #include <pthread.h>
    #define MT_HAS_PTHREAD 1
    #endif

    MT_THREAD mt_tls mt_state;
    static inline mt_tls *mt_get(void) { return &mt_state; }

    #ifdef MT_HAS_PTHREAD
    /* Runs without the GIL when a thread ends: plain frees, and a mark by which the registry may reuse the log. */
    static pthread_key_t mt_key;
    static void mt_thread_end(void *p) {
        mt_tls *t = (mt_tls *)p;
        free(t->stack); free(t->ids);
        t->stack = NULL; t->ids = NULL; t->cap = 0; t->depth = 0; t->known = 0;
        if (t->log) t->log->dead = 1;
        t->log = NULL;
        t->n_named = t->named_from = 0;
    }
    static int mt_setup(void) { return pthread_key_create(&mt_key, mt_thread_end); }
    static void mt_register(mt_tls *t) { pthread_setspecific(mt_key, t); }
    #else
    static int mt_setup(void) { return 0; }
    static void mt_register(mt_tls *t) { (void)t; }
    #endif

    /* Calls f(), reads an unsigned number; `fail` when that did not work. Never raises. */
    static inline uint64_t mt_number(PyObject *r, uint64_t fail) {
        uint64_t v;
        if (r == NULL) { PyErr_Clear(); return fail; }
        v = PyLong_AsUnsignedLongLong(r);
        Py_DECREF(r);
        if (v == (uint64_t)-1 && PyErr_Occurred()) { PyErr_Clear(); return fail; }
        return v;
    }
    static inline uint64_t mt_call_number(PyObject *f, uint64_t fail) {
        return mt_number(PyObject_CallNoArgs(f), fail);
    }
    static inline uint64_t mt_method_number(PyObject *o, PyObject *name, uint64_t fail) {
        return mt_number(PyObject_CallMethodNoArgs(o, name), fail);
    }
    /* f() as a new reference; NULL for None and for an error, which is cleared. */
    static inline PyObject *mt_call_optional(PyObject *f) {
        PyObject *r = PyObject_CallNoArgs(f);
        if (r == NULL) PyErr_Clear();
        else if (r == Py_None) { Py_DECREF(r); r = NULL; }
        return r;
    }
    static inline PyObject **mt_items(PyObject *tuple) { return &PyTuple_GET_ITEM(tuple, 0); }
    static inline PyObject *mt_vectorcall(PyObject *f, PyObject **args, size_t nargsf, PyObject *kwnames) {
        return PyObject_Vectorcall(f, (PyObject *const *)args, nargsf, kwnames);
    }
    /* Hands a new reference, or NULL with an error set, to Cython as an object. */
    static inline PyObject *mt_result(PyObject *p) { return p; }
    """
    mt_tls *mt_get() noexcept
    int mt_setup() noexcept
    void mt_register(mt_tls *t) noexcept
    uint64_t mt_call_number(PyObject *f, uint64_t fail) noexcept
    uint64_t mt_method_number(PyObject *o, PyObject *name, uint64_t fail) noexcept
    PyObject *mt_call_optional(PyObject *f) noexcept
    object mt_result(PyObject *p)
    PyObject **mt_items(PyObject *tuple) noexcept
    PyObject *PyObject_Vectorcall "mt_vectorcall" (
        PyObject *f, PyObject **args, size_t nargsf, PyObject *kwnames) noexcept
    PyObject *PyErr_NoMemory() noexcept
    void PyErr_Fetch(PyObject **kind, PyObject **value, PyObject **trace) noexcept
    void PyErr_Restore(PyObject *kind, PyObject *value, PyObject *trace) noexcept
    PyObject *PyObject_GetAttr(PyObject *ob, PyObject *name) noexcept
    void decref "Py_DECREF" (PyObject *p) noexcept
    void incref "Py_INCREF" (PyObject *p) noexcept

if mt_setup() != 0:
    raise RuntimeError("[context] expected a free pthread key, got none")

PHASES = ("other", "forward", "backward", "optimizer", "prefill", "decode", "data")    # as the enum Phase

CANDIDATE = PHASE_CANDIDATE
INFERENCE = PHASE_INFERENCE

cdef enum:
    UNKNOWN = 2                                # of `between`: to be asked for

cdef size_t ARGUMENT_COUNT = <size_t> -1 >> 1   # without PY_VECTORCALL_ARGUMENTS_OFFSET
cdef uint64_t NO_SEQ = <uint64_t> -1           # torch gives AccumulateGrad the largest number
cdef object s_sequence_nr = sys.intern("_sequence_nr")
cdef object s_wrapped = sys.intern("__wrapped__")
cdef object s_init = sys.intern("__init__")
cdef dict _constructors = {}                   # code of ``__init__`` of classes of modules, by address
cdef dict _trainers = {}                       # those that trained, which are no longer among them
cdef unsigned int _trained_in_constructors = 0
cdef object _original_call = None
cdef look_fn _look = NULL                      # for modules whose forward is called by that name: see named_forwards
cdef object _module_class = None
cdef object _original_backward = None
cdef object _begin_backward = None
cdef object _end_backward = None
cdef list _after_backward = []
cdef object _sequence_nr = None
cdef object _current_node = None
cdef object _grad_enabled = None
cdef object _parameter_owner = None
cdef object _enters_call = None, _left_call = None, _without_gradients = None
cdef object _switching_off = WeakKeyDictionary()    # class of modules -> the same, asked once

cdef enum:
    MOST_FOLLOWERS = 16

cdef transition_fn _hooks[MOST_FOLLOWERS]      # who is told of transitions, and what each of them is handed back
cdef void *_hook_data[MOST_FOLLOWERS]
cdef int _n_hooks = 0
cdef uint32_t _backwards = 0                   # engine runs in progress, in any thread
cdef bint _differentiates = False              # the innermost of them keeps its own graph: create_graph
cdef mt_log *_backward_log = NULL              # log of the thread that started the last of them


# ---------------------------------------------------------------- the answers

cdef void log_boundary(mt_tls *t, uint32_t module) noexcept:
    """From now on nodes belong to `module`."""
    if _sequence_nr is None:
        return
    cdef uint64_t seq = mt_call_number(<PyObject *> _sequence_nr, NO_SEQ)
    if seq == NO_SEQ:
        return
    t.seen = seq
    log_seen(t, module)


cdef void note_seen(mt_tls *t) noexcept:
    cdef uint64_t seq
    if _sequence_nr is not None:
        seq = mt_call_number(<PyObject *> _sequence_nr, NO_SEQ)
        if seq != NO_SEQ:
            t.seen = seq


cdef void log_seen(mt_tls *t, uint32_t module) noexcept:
    """The nodes belong to it that were made since the module was last asked for: they are of the op that asks now."""
    if t.log == NULL:
        t.log = new_log()
        mt_register(t)
        if t.log == NULL:
            return
    log_from(t.log, t.seen, module)


cdef uint32_t backward_module(mt_tls *t) noexcept:
    """Path of the module whose forward made the node the engine is running in this thread."""
    cdef PyObject *node = mt_call_optional(<PyObject *> _current_node)
    cdef uint64_t seq
    cdef mt_log *log
    cdef uint32_t module = 0
    if node == NULL:
        return t.module
    seq = mt_method_number(node, <PyObject *> s_sequence_nr, NO_SEQ)
    if seq == NO_SEQ:
        module = owner_of_node(<object> node)
    else:
        log = t.log if t.phase == PHASE_BACKWARD and t.log != NULL else _backward_log
        module = log_find(log, seq)
    decref(node)
    return module


cdef uint32_t owner_of_node(object node) noexcept:
    """AccumulateGrad has no number of its own: it belongs to the module that owns the parameter."""
    try:
        if _parameter_owner is None:
            return 0
        return _parameter_owner(node.variable)
    except AttributeError:                     # another node without a number
        return 0


cdef mt_tls *thread_state() noexcept:
    return mt_get()


cdef void look_with(look_fn look) noexcept:
    global _look
    _look = look


cdef uint32_t current_module() noexcept:
    cdef mt_tls *t = mt_get()
    cdef uint32_t module
    if _look != NULL:
        _look(t)
    if _backwards == 0 or t.depth != t.base:
        return t.module
    if t.phase == PHASE_BACKWARD or t.phase == PHASE_OTHER:
        module = backward_module(t)
        if _differentiates and t.phase == PHASE_BACKWARD:
            log_seen(t, module)                # nodes that this pass makes are of the module that it passes
            note_seen(t)
        return module
    return t.module


cdef bint is_in_a_node() noexcept:
    """Does the thread run a node of a backward pass: one of the engine's own, too (CUDA devices have one each)?"""
    cdef PyObject *node = mt_call_optional(<PyObject *> _current_node)
    if node != NULL:
        decref(node)
    return node != NULL


cdef uint8_t current_phase() noexcept:
    cdef mt_tls *t = mt_get()
    if t.phase != PHASE_OTHER:
        return t.phase
    if _backwards and is_in_a_node():
        return PHASE_BACKWARD
    if t.between == UNKNOWN:
        t.between = mt_call_number(<PyObject *> _grad_enabled, 0) != 0
    return PHASE_FORWARD if t.between else PHASE_OTHER


cdef uint64_t outermost_optimizer() noexcept:
    return <uint64_t> <uintptr_t> mt_get().opt[0]


cdef bint differentiates() noexcept:
    return _differentiates


cdef bint in_step() noexcept:
    return mt_get().n_opt > 0


cdef void add_transition_hook(transition_fn hook, void *data) except *:
    global _n_hooks
    if _n_hooks == MOST_FOLLOWERS:
        raise RuntimeError(f"[profile] expected at most {MOST_FOLLOWERS} profiles within each other")
    _hooks[_n_hooks] = hook
    _hook_data[_n_hooks] = data
    _n_hooks += 1


cdef void remove_transition_hook(transition_fn hook, void *data) noexcept:
    global _n_hooks
    cdef int i, k
    for i in range(_n_hooks):
        if _hooks[i] == hook and _hook_data[i] == data:
            for k in range(i + 1, _n_hooks):
                _hooks[k - 1] = _hooks[k]
                _hook_data[k - 1] = _hook_data[k]
            _n_hooks -= 1
            return


cdef void tell(int kind, uint32_t module, uint8_t phase) noexcept:
    cdef mt_tls *t = mt_get()
    cdef uint8_t looking = t.looking
    cdef int i = _n_hooks
    t.looking = 1                              # who is told asks for the state as it is
    while i > 0:                               # from the last: who is told may take itself off the list
        i -= 1
        if i < _n_hooks:
            _hooks[i](_hook_data[i], kind, module, phase)
    t.looking = looking


# ---------------------------------------------------------------- what moves the state

cdef bint push(mt_tls *t, PyObject *module, uint32_t id) noexcept:
    cdef uint32_t cap
    cdef PyObject **stack
    cdef uint32_t *ids
    if t.depth == t.cap:
        if not t.known:
            mt_register(t)
            t.known = 1
        cap = 2 * t.cap if t.cap else 16
        stack = <PyObject **> realloc(t.stack, cap * sizeof(PyObject *))
        if stack == NULL:
            return False
        t.stack = stack
        ids = <uint32_t *> realloc(t.ids, cap * sizeof(uint32_t))
        if ids == NULL:
            return False
        t.ids = ids
        t.cap = cap
    incref(module)
    t.stack[t.depth] = module
    t.ids[t.depth] = id
    t.depth += 1
    return True


cdef void pop(mt_tls *t, uint32_t depth) noexcept:
    cdef PyObject *module
    while t.depth > depth:
        t.depth -= 1
        module = t.stack[t.depth]
        decref(module)


cdef PyObject *module_call(PyObject *function, PyObject **args, size_t nargsf, PyObject *kwnames) noexcept:
    """Vectorcall of the replacement of ``Module.__call__``: the original, with the path kept while it runs.

    A new reference, or NULL with the error set; raw pointers, so that no frame of ours enters a traceback.
    """
    cdef mt_tls *t = mt_get()
    cdef PyObject *result
    if not nargsf & ARGUMENT_COUNT:            # let the original complain
        return PyObject_Vectorcall(<PyObject *> _original_call, args, nargsf, kwnames)
    if is_in_own_call(t, args[0]):             # that has entered it
        t.own = 0
        result = PyObject_Vectorcall(<PyObject *> _original_call, args, nargsf, kwnames)
        t.own = t.depth
        return result
    return entered_call(t, <PyObject *> _original_call, False, args, nargsf, kwnames)


cdef PyObject *own_call(PyObject *function, PyObject **args, size_t nargsf, PyObject *kwnames) noexcept:
    """Vectorcall of what replaces a ``__call__`` that a class of modules has of its own, whatever that calls."""
    cdef PyObject *original = PyObject_GetAttr(function, <PyObject *> s_wrapped)
    cdef PyObject *result
    if original == NULL:
        return NULL
    result = own_call_of(original, args, nargsf, kwnames)
    decref(original)
    return result


cdef PyObject *own_call_of(PyObject *original, PyObject **args, size_t nargsf, PyObject *kwnames) noexcept:
    cdef mt_tls *t = mt_get()
    if (not nargsf & ARGUMENT_COUNT or not mt_is_a(args[0], <PyObject *> _module_class)
            or is_in_own_call(t, args[0])):    # a derived class's, which calls this one
        return PyObject_Vectorcall(original, args, nargsf, kwnames)
    return entered_call(t, original, True, args, nargsf, kwnames)


cdef inline bint is_in_own_call(mt_tls *t, PyObject *module) noexcept:
    return t.own != 0 and t.own == t.depth and t.depth != t.base and t.stack[t.depth - 1] == module


cdef bint is_constructing() noexcept:
    """Does the calling thread make a module? What that calls has no owner yet: it is no call of the program's model."""
    cdef mt_frame *frame = mt_frame_now()
    cdef PyObject *code
    while frame != NULL:
        code = mt_frame_code(frame)
        if mt_code_name(code) == <PyObject *> s_init and is_constructor(code):
            mt_frame_free(frame)
            return True
        frame = mt_frame_back(frame)
    return False


cdef bint is_constructor(PyObject *code) noexcept:
    try:
        return <uintptr_t> code in _constructors
    except MemoryError:
        return False


cdef void no_constructor() noexcept:
    """The calling thread trains: where that is in a constructor, what follows there is more than making a module."""
    global _trained_in_constructors
    cdef mt_frame *frame = mt_frame_now()
    cdef PyObject *code
    while frame != NULL:
        code = mt_frame_code(frame)
        if mt_code_name(code) == <PyObject *> s_init:
            try:
                if <uintptr_t> code in _constructors:
                    _trainers[<uintptr_t> code] = _constructors.pop(<uintptr_t> code)
                if <uintptr_t> code in _trainers:
                    _trained_in_constructors += 1
            except MemoryError:                # the next pass finds it again
                mt_frame_free(frame)
                return
        frame = mt_frame_back(frame)


cdef PyObject *entered_call(mt_tls *t, PyObject *original, bint own, PyObject **args, size_t nargsf,
                            PyObject *kwnames) noexcept:
    """The call, as one of the module args[0]."""
    cdef PyObject *module = args[0]
    cdef PyObject *result
    cdef PyObject *kind
    cdef PyObject *value
    cdef PyObject *trace
    cdef uint32_t depth, previous, previous_own = t.own, named_from = t.named_from, id
    cdef uint8_t previous_phase, phase
    cdef bint followed = False
    if _look != NULL:
        _look(t)
    depth, previous = t.depth, t.module
    previous_phase = phase = t.phase
    if depth != t.base:
        id = path_of_child(module, t.stack, t.ids, depth)
    elif _backwards and current_phase() == PHASE_BACKWARD:
        id = path_of_outermost(module, backward_module(t))    # recomputed by checkpointing: stays part of backward
        phase = PHASE_BACKWARD
    elif phase == PHASE_OTHER and is_constructing():
        return PyObject_Vectorcall(original, args, nargsf, kwnames)
    else:
        id = path_of_outermost(module, 0)
        if id != NO_PATH and phase < PHASE_PREFILL:    # else what the program has announced: see enter_stage
            phase = PHASE_FORWARD
            if is_followed(previous_phase, module):
                phase, followed = phase_of_call(args, nargsf & ARGUMENT_COUNT, kwnames), True
    if id == NO_PATH:
        return NULL
    if _n_hooks:
        tell(MODULE_ENTER, id, phase)
    if not push(t, module, id):
        if _n_hooks:
            tell(MODULE_EXIT, id, previous_phase)
        return PyErr_NoMemory()
    t.module = id
    t.phase = phase
    log_boundary(t, id)
    t.own = t.depth if own else 0
    t.named_from = t.n_named
    result = PyObject_Vectorcall(original, args, nargsf, kwnames)
    t.own = previous_own
    if result != NULL:
        leave_named(t, t.named_from, True)
        t.named_from = named_from
        leave(t, depth, previous, previous_phase, id)
        if followed:
            call_ended(module, result)
            t.between = 0                      # no loss is made of what has no gradients
        return result
    PyErr_Fetch(&kind, &value, &trace)         # leave() calls Python functions, which need a clear error state
    leave_named(t, t.named_from, True)
    t.named_from = named_from
    leave(t, depth, previous, previous_phase, id)
    t.between = 0
    if followed:
        call_ended(module, NULL)
    PyErr_Restore(kind, value, trace)
    return NULL


cdef bint is_followed(uint8_t before, PyObject *module) noexcept:
    if _enters_call is None or before != PHASE_OTHER:
        return False
    return not mt_call_number(<PyObject *> _grad_enabled, 1) or switches_off(module)


cdef bint switches_off(PyObject *module) noexcept:
    """Gradients, in its own `forward`."""
    cdef object kind = type(<object> module), found
    try:
        found = _switching_off.get(kind)
        if found is None:
            found = _switching_off[kind] = _without_gradients is not None and _without_gradients(kind)
        return found
    except BaseException as error:
        raise_soon(error)
    return False


cdef uint8_t phase_of_call(PyObject **args, size_t n, PyObject *kwnames) noexcept:
    cdef size_t i
    try:
        names = <tuple> kwnames if kwnames != NULL else ()
        given = tuple([<object> args[i] for i in range(1, n)])
        return phase_of(args[0], given, {name: <object> args[n + i] for i, name in enumerate(names)})
    except MemoryError:
        return PHASE_INFERENCE


cdef uint8_t phase_of(PyObject *module, tuple given, dict named) noexcept:
    """Of an outermost call without gradients: what `follow_generation` was given says."""
    try:
        return <uint8_t> _enters_call(<object> module, given, named)
    except BaseException as error:             # a signal's: the program's next line is the first that can get it
        raise_soon(error)
    return PHASE_INFERENCE


cdef void call_ended(PyObject *module, PyObject *result) noexcept:
    cdef object left = _left_call
    if left is None:                           # another thread has stopped listening meanwhile
        return
    try:
        left(<object> module, <object> result if result != NULL else None)
    except BaseException as error:
        raise_soon(error)


def follow_generation(enters, left, without_gradients=None):
    """Ask ``enters(module, args, kwargs)`` for the phase of each outermost call without gradients; None: ask nobody.

    Where it has answered, ``left(module, result)`` follows when the call is over; result: None where it failed.
    ``without_gradients(class)``: whether calls of its modules have none wherever they are made; None: of no class.
    """
    global _enters_call, _left_call, _without_gradients
    _enters_call, _left_call, _without_gradients = enters, left, without_gradients
    _switching_off.clear()


def settle(phase, was=PHASE_CANDIDATE):
    """All that was in the phase `was` until now was in `phase`."""
    if _n_hooks:
        tell(PHASE_SETTLED, <uint32_t> was, <uint8_t> phase)


cdef void leave(mt_tls *t, uint32_t depth, uint32_t previous, uint8_t phase, uint32_t id) noexcept:
    if _n_hooks:
        tell(MODULE_EXIT, id, phase)
    pop(t, depth)
    t.module = previous
    t.phase = phase
    log_boundary(t, previous)
    may_be_followed(t)


cdef void leave_named(mt_tls *t, uint32_t index, bint late) noexcept:
    """Leave those from `index` on. late: their frames ended some time ago, and the time since then is the caller's."""
    cdef mt_named *entry
    cdef PyObject *module
    cdef uint32_t id
    while t.n_named > index:
        t.n_named -= 1
        entry = &t.named[t.n_named]
        id = t.module
        module = t.stack[entry.depth]
        incref(module)
        if late:
            pop(t, entry.depth)
            t.module, t.phase = entry.module, entry.phase
            if _n_hooks:
                tell(MODULE_EXIT, id, t.phase)
            log_seen(t, t.module)
            may_be_followed(t)
        else:
            leave(t, entry.depth, entry.module, entry.phase, id)
            if t.depth == t.base and t.phase == PHASE_OTHER:
                t.between = UNKNOWN            # it ended within whatever it had switched off, such as gradients
        if entry.followed:
            call_ended(module, NULL)
        decref(module)


cdef void may_be_followed(mt_tls *t) noexcept:
    """By a loss, where an outermost call ended: see phases.py."""
    if t.depth == t.base and t.phase == PHASE_OTHER and _grad_enabled is not None:
        t.between = mt_call_number(<PyObject *> _grad_enabled, 0) != 0


def tracked_backward(*args, **kwargs):
    """Replacement of ``torch.autograd.graph._engine_run_backward``: the original, in phase "backward".

    No function in Python is on the stack meanwhile that is not without us: warnings of hooks say whose line they are
    by counting frames.
    """
    global _backwards, _backward_log, _differentiates
    cdef mt_tls *t = mt_get()
    cdef mt_log *previous_log = _backward_log
    cdef bint outer = _differentiates
    cdef uint32_t base = t.base
    cdef uint8_t phase
    if _look != NULL:
        _look(t)
    phase = t.phase
    no_constructor()
    if _n_hooks:
        tell(PHASE_CHANGE, 0, PHASE_BACKWARD)
    t.between = 0
    t.base = t.depth
    t.phase = PHASE_BACKWARD
    if t.log != NULL:
        _backward_log = t.log
    _backwards += 1
    if not t.differentiates:
        t.differentiates = 1
        first_pass()
    try:
        _differentiates, within = _begin_backward(*args, **kwargs)
        if _differentiates:
            note_seen(t)
        if within is None:
            found = _original_backward(*args, **kwargs)
        else:
            with within:
                found = _original_backward(*args, **kwargs)
        if found:
            found = _end_backward(found, *args, **kwargs)
    finally:
        t.phase = PHASE_BACKWARD               # an optimizer's step in a hook has ended it
        if _n_hooks:
            tell(PHASE_CHANGE, 0, phase)
        _backwards -= 1
        _backward_log = previous_log
        if _differentiates and t.log != NULL:
            log_boundary(t, t.module)
        _differentiates = outer
        t.phase = phase
        t.base = base
    if phase != PHASE_BACKWARD:
        for call in _after_backward:
            call()
    return found


cdef dict _differentiating = {}                # by number: threads that began a backward pass, while they live


cdef object first_pass():
    """The calling thread's."""
    for number, thread in _differentiating.copy().items():
        if not thread.is_alive():
            _differentiating.pop(number, None)
    _differentiating[threading.get_ident()] = threading.current_thread()


def differentiates_elsewhere():
    """Is there a thread, besides the calling one, that began a backward pass in its life?

    Torch writes and frees gradients without the GIL: what gets at another thread's meanwhile may crash.
    """
    own = threading.get_ident()
    for number, thread in _differentiating.copy().items():
        if number != own and thread.is_alive():
            return True
    return False


def optimizer_begin(optimizer):
    """An optimizer's step starts. A step that raised never ended: meeting the same optimizer again ends it."""
    cdef mt_tls *t = mt_get()
    if _look != NULL:
        _look(t)
    optimizer_end(optimizer)
    if t.n_opt == 0:
        t.opt[0] = <void *> optimizer          # the hook asks whose step begins
    if _n_hooks:
        tell(PHASE_CHANGE, 0, PHASE_OPTIMIZER)
    if t.n_opt < 8:
        t.opt[t.n_opt] = <void *> optimizer
        t.before[t.n_opt] = t.phase if t.n_opt else <uint8_t> PHASE_OTHER
        t.n_opt += 1
    t.between = 0
    t.phase = PHASE_OPTIMIZER


def optimizer_end(optimizer):
    cdef mt_tls *t = mt_get()
    cdef int i
    for i in range(t.n_opt):
        if t.opt[i] == <void *> optimizer:
            t.n_opt = i
            if t.phase == PHASE_OPTIMIZER and t.before[i] != PHASE_OPTIMIZER:
                if _n_hooks:
                    tell(PHASE_CHANGE, 0, t.before[i])
                t.phase = t.before[i]
            return


def call_closure(closure, args, kwargs):
    """``closure(*args, **kwargs)``, which an optimizer's step calls: there phases are as outside of a step."""
    cdef mt_tls *t = mt_get()
    cdef uint8_t steps = t.n_opt
    if t.phase != PHASE_OPTIMIZER:
        return closure(*args, **kwargs)
    if _n_hooks:
        tell(PHASE_CHANGE, 0, PHASE_OTHER)
    t.phase = PHASE_OTHER
    try:
        return closure(*args, **kwargs)
    finally:
        if t.n_opt >= steps:                   # else the closure has stepped the same optimizer, which ended its step
            if _n_hooks:
                tell(PHASE_CHANGE, 0, PHASE_OPTIMIZER)
            t.between = 0
            t.phase = PHASE_OPTIMIZER


def enter_stage(phase):
    """Announce what the calling thread does from here on, a phase above "optimizer" or "other"; the phase until now.

    Outermost module calls and what happens between them belong to it, until the phase returned is entered again.
    """
    cdef mt_tls *t = mt_get()
    cdef uint8_t previous
    if not 0 <= phase < PHASE_CANDIDATE:
        raise ValueError(f"[enter_stage] expected a phase in 0..{PHASE_CANDIDATE - 1}, got {phase}")
    if _look != NULL:
        _look(t)
    previous = t.phase
    if _n_hooks:
        tell(PHASE_CHANGE, 0, <uint8_t> phase)
    if phase != PHASE_DATA and previous != PHASE_DATA:     # a batch that is loaded is no end of a loss
        t.between = 0
    t.phase = <uint8_t> phase
    return previous


def forget_loss():
    """What the calling thread does from here on is no loss of the forward pass that it saw last."""
    mt_get().between = 0


# ---------------------------------------------------------------- from Python

def track_calls(function, original):
    """Make calls of the Python function `function` keep the module path and then call `original`.

    Only the function's vectorcall changes. It stays an ordinary Python function to whoever inspects or traces it
    (Dynamo refuses to trace compiled functions), and its own body must call `tracked_call` with its arguments: the
    interpreter may run the body instead, as it does for ``super().__call__(x)`` in 3.11.
    """
    global _original_call
    if not isinstance(function, FunctionType):
        raise TypeError(f"[track_calls] expected a Python function, got {type(function).__name__}")
    _original_call = original
    mt_set_vectorcall(<PyObject *> function, <void *> module_call)


def tracked_call(*args, **kwargs):
    """The original call, with the module path kept while it runs."""
    cdef tuple names = tuple(kwargs)
    cdef tuple values = args + tuple(kwargs.values())
    return mt_result(module_call(NULL, mt_items(<PyObject *> values), len(args),
                                 <PyObject *> names if names else NULL))


def constructs(code):
    """That code is the ``__init__`` of a class of modules: a module called while it runs is part of construction."""
    _constructors[<uintptr_t> <PyObject *> code] = code


def trained_in_constructors():
    """How many backward passes have begun in constructors of modules so far."""
    return _trained_in_constructors


def track_own_calls(function):
    """As `track_calls`, of a class's own ``__call__``, which is the `__wrapped__` of `function`."""
    if not isinstance(function, FunctionType):
        raise TypeError(f"[track_own_calls] expected a Python function, got {type(function).__name__}")
    mt_set_vectorcall(<PyObject *> function, <void *> own_call)


def tracked_own_call(original, *args, **kwargs):
    """That one, with the module path kept while it runs."""
    cdef tuple names = tuple(kwargs)
    cdef tuple values = args + tuple(kwargs.values())
    return mt_result(own_call_of(<PyObject *> original, mt_items(<PyObject *> values), len(args),
                                 <PyObject *> names if names else NULL))


def set_run_backward(original, begin, end, after):
    """The function that `tracked_backward` calls; begin(*args, **kwargs): before it, (whether its results are to be
    differentiated themselves, a context manager that it is to run in or None); end(found, *args, **kwargs): of what
    it found, if that is anything, what is to be handed on; after: a list of what is called when a pass that is within
    no other has ended."""
    global _original_backward, _begin_backward, _end_backward, _after_backward
    _original_backward, _begin_backward, _end_backward, _after_backward = original, begin, end, after


def followed(func, after):
    """`func`, after which `after` is called with its arguments; no frame of it is on the stack, see above."""
    def both(*args, **kwargs):
        found = func(*args, **kwargs)
        after(*args, **kwargs)
        return found
    return both


def configure(sequence_nr, current_node, grad_enabled, module_class, parameter_owner=None):
    """Hand in torch's ``_get_sequence_nr``, ``_current_autograd_node``, ``is_grad_enabled`` and ``nn.Module``.

    ``parameter_owner(tensor)`` gives the path id of the module that owns a parameter, 0 for none.
    """
    global _sequence_nr, _current_node, _grad_enabled, _parameter_owner, _module_class
    _module_class = module_class
    _sequence_nr = sequence_nr
    _current_node = current_node
    _grad_enabled = grad_enabled
    _parameter_owner = parameter_owner


def get_module():
    return current_module()


def get_phase():
    return current_phase()


get_location = _location.get_location
location = _location.location
class_name = _paths.class_name
intern_path = _paths.intern_path
new_path = _paths.new_path
module_path = _paths.module_path
path_parent = _paths.path_parent
path_root = _paths.path_root
path_name = _paths.path_name
path_class = _paths.path_class
path_count = _paths.path_count


def read_as(phase):
    """The index in `PHASES` of a phase: that of "forward" for what is told apart from it only within this package."""
    return PHASE_FORWARD if phase == PHASE_CANDIDATE or phase == PHASE_INFERENCE else phase


def phase_name(id):
    return PHASES[read_as(id)]


def table_bytes():
    """Bytes held by the tables of paths, source lines and autograd numbers; names and code belong to the program."""
    return _paths.table_bytes() + _location.table_bytes() + _node_log.table_bytes()


def log_entries():
    """Entries in the calling thread's log of sequence numbers (for tests)."""
    cdef mt_tls *t = mt_get()
    return 0 if t.log == NULL else t.log.n
