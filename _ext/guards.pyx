"""Context managers that a signal handler cannot split: what they change is put back, wherever a handler raises.

A handler runs between two steps of Python code, so in the middle of a context manager that is written in Python, or of
an ExitStack: grad mode would stay off, or a generator would keep the numbers of another. Entering and leaving these
takes no step of Python code. Nor does leaving ask for memory, which there may be none of.
"""
from cpython.object cimport PyObject_CallObject

from .interpreter cimport mt_copy

cdef object set_grad_enabled, grad_enabled, DisableTorchFunction, any_autocast
cdef object dispatch_stack, pop_mode, push_mode, early_stack, disable_modes
cdef object get_state, set_state          # of generators: torch's own, also where the program's calls are hooked
cdef object DisableAutocast, functorch_stack, DisableFuncTorch, inference_enabled, InferenceMode, excluded, set_excluded
cdef tuple lazy_keys = (), on = (True,), off = (False,), no_error = (None, None, None)


def init(torch):
    """Called once."""
    global set_grad_enabled, grad_enabled, DisableTorchFunction, any_autocast
    global dispatch_stack, pop_mode, push_mode, early_stack, disable_modes
    global DisableAutocast, functorch_stack, DisableFuncTorch, inference_enabled, InferenceMode, excluded, set_excluded
    global get_state, set_state, lazy_keys
    c = torch._C
    get_state, set_state = mt_copy(c.Generator.get_state), mt_copy(c.Generator.set_state)
    set_grad_enabled, grad_enabled = c._set_grad_enabled, torch.is_grad_enabled
    DisableTorchFunction = c.DisableTorchFunction
    DisableAutocast, DisableFuncTorch = c._DisableAutocast, c._DisableFuncTorch
    dispatch_stack, any_autocast = c._len_torch_dispatch_stack, c._is_any_autocast_enabled
    pop_mode, push_mode = c._pop_torch_dispatch_stack, c._push_on_torch_dispatch_stack
    early_stack = torch._ops._len_torch_dispatch_stack_pre_dispatch
    disable_modes = torch.utils._python_dispatch._disable_current_modes
    functorch_stack = c._functorch.peek_interpreter_stack
    inference_enabled, InferenceMode = torch.is_inference_mode_enabled, c._InferenceMode
    excluded, set_excluded = c._dispatch_tls_is_dispatch_key_excluded, c._dispatch_tls_set_dispatch_key_excluded
    lazy_keys = (c.DispatchKey.Negative, c.DispatchKey.Conjugate, c.DispatchKey.ZeroTensor)


cdef class NoGrad:
    """torch.no_grad()."""
    cdef bint before

    def __enter__(self):
        self.before = grad_enabled()
        PyObject_CallObject(set_grad_enabled, off)

    def __exit__(self, kind, error, traceback):
        PyObject_CallObject(set_grad_enabled, on if self.before else off)


cdef class Modes:
    """With these dispatch modes on, the last one on top, and with no others.

    Torch's own ``_disable_current_modes`` is Python code: a mode would be lost between two of its steps. It still takes
    away modes before dispatch, which only tracers (``torch.export``) turn on.
    """
    cdef tuple modes
    cdef list outside      # from the top
    cdef object early

    def __init__(self, *modes):
        self.modes = modes

    def __enter__(self):
        cdef Py_ssize_t i, n
        if early_stack():      # Python code: nothing has changed yet
            self.early = disable_modes()
            self.early.__enter__()
        n = dispatch_stack()
        self.outside = [None] * n      # first: afterwards there may be no memory for it
        for i in range(n):
            self.outside[i] = pop_mode(None)
        for mode in self.modes:
            push_mode(mode)

    def __exit__(self, kind, error, traceback):
        for _ in self.modes:
            pop_mode(None)
        while self.outside:
            push_mode(self.outside.pop())
        if self.early is not None:
            self.early.__exit__(None, None, None)


cdef class Quiet:
    """Run torch code of our own: no modes of the user, no autocast, no functorch, normal tensors.

    `grad`: leave torch's grad mode as it is (the inputs don't require grad, but some kernels look at the mode).
    """
    cdef bint grad
    cdef list entered      # what leaves each, in order

    def __init__(self, bint grad=False):
        self.grad = grad

    def __enter__(self):
        self.entered = []
        try:
            self._enter_all()
        except BaseException:
            self._leave()
            raise
        return self

    cdef int _enter_all(self) except -1:
        cdef bint grad = self.grad
        self._enter(DisableTorchFunction())
        if dispatch_stack():
            self._enter(Modes())
        if any_autocast():
            self._enter(DisableAutocast())
        if functorch_stack() is not None:
            self._enter(DisableFuncTorch())
        if inference_enabled():
            self._enter(InferenceMode(False))      # which turns grad mode on
            grad = False
        if excluded(lazy_keys[0]):
            # Inside __torch_dispatch__ torch takes lazy conjugation and negation as done. For the op at hand, yes.
            self._enter(_LazyBits())
        if not grad:
            self._enter(NoGrad())
        return 0

    def also(self, guard):
        """Enter one more, which is left with the block."""
        self._enter(guard)

    cdef int _enter(self, object guard) except -1:
        self.entered.append(guard.__exit__)    # first: afterwards there may be no memory for it
        try:
            guard.__enter__()
        except BaseException:
            self.entered.pop()
            raise
        return 0

    def __exit__(self, kind, error, traceback):
        self._leave()

    cdef int _leave(self) except -1:
        cdef list entered = self.entered
        while entered:
            try:
                PyObject_CallObject(entered.pop(), no_error)
            except BaseException:
                self._leave()
                raise
        return 0


cdef class Unseen(Quiet):
    """Run torch code of our own that the modes of the user are not to see: all else stays as it is."""

    cdef int _enter_all(self) except -1:
        self._enter(DisableTorchFunction())
        if dispatch_stack():
            self._enter(Modes())
        return 0


cdef class Together(Quiet):
    """These, in order: ``with a, b:`` for a function that is to return one block."""
    cdef tuple guards

    def __init__(self, *guards):
        self.guards = guards

    cdef int _enter_all(self) except -1:
        for guard in self.guards:
            self._enter(guard)
        return 0


cdef class _LazyBits:
    def __enter__(self):
        for key in lazy_keys:
            set_excluded(key, False)

    def __exit__(self, kind, error, traceback):
        for key in lazy_keys:
            set_excluded(key, True)


cdef class Drawing:
    """`generator` draws what device `index` draws next: its state, `states[index]`, is swapped in, and back.

    Blocks for one index nest; `swapped_in` is the set of those that are open. Within a transform of the program's,
    states are no part of it.
    """
    cdef object generator, states, index, outside
    cdef Quiet quiet
    cdef set swapped_in

    def __init__(self, generator, states, index, set swapped_in):
        self.generator = generator
        self.states = states
        self.index = index
        self.swapped_in = swapped_in

    def __enter__(self):
        cdef Quiet quiet
        if self.index in self.swapped_in:
            return
        quiet = self.quiet = Quiet()
        quiet.__enter__()
        try:
            state = self.states[self.index]    # may be made now, in Python code: nothing has changed yet
            outside = get_state(self.generator)
            set_state(self.generator, state)
            self.outside = outside
            self.swapped_in.add(self.index)
        finally:
            quiet._leave()

    def __exit__(self, kind, error, traceback):
        cdef Quiet quiet
        if self.outside is None:
            return
        self.swapped_in.discard(self.index)
        quiet = self.quiet
        try:
            quiet.__enter__()                  # where there is no memory for it, the state is lost, not the program's
            self.states[self.index] = get_state(self.generator)
        finally:
            set_state(self.generator, self.outside)
            self.outside = None
            quiet._leave()


cdef class Held:
    """``with Held(owner, name):`` the attribute is the block's own, this object, and then again what it was."""
    cdef object owner, name, before

    def __init__(self, owner, str name):
        self.owner = owner
        self.name = name

    def __enter__(self):
        self.before = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self)
        return self

    def __exit__(self, kind, error, traceback):
        setattr(self.owner, self.name, self.before)
        self.before = None
        self.left()

    def left(self):
        """Called afterwards."""
