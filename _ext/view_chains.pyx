"""Views of views of tensors of ours, at the cost that torch's own have: the same for each.

With each view of a tensor that has a ``__torch_dispatch__``, torch keeps a function that makes it again from its base:
a copy of the one of the view that it was made from, and one step more. These functions keep all views in between alive
as well. So the n-th view of a view costs n steps and n copies. A view of a plain tensor has none: sizes and strides say
how to make it.

Here a view whose function has grown long is made below that layer of torch's (`shortened`), and then said to be what
it is by ``as_strided`` of its base, which adds one step to nothing (`linked`). Backward passes make views of views of
gradients in C++: there, what comes next in the graph first makes the view that it is given anew (`counted`).
"""
from cpython.ref cimport PyObject

from .lazy cimport get_tape, handle_of
from .structs cimport META_CONJ, META_NEG
from .tape cimport Handle, Tape

cdef extern from *:
    """
    /* Of this thread: is a view made below torch's layer of views? The tensor that the next as_strided gives. */
    typedef struct { int below; PyObject *given; } mt_linking;
    static __thread mt_linking mt_links;
    static inline mt_linking *mt_linked(void) { return &mt_links; }
    """
    ctypedef struct mt_linking:
        bint below
        PyObject *given
    mt_linking *mt_linked() noexcept

cdef enum:
    LONG = 4               # steps from which on a view is made in another way
    LONG_BACKWARD = 16     # those of a gradient: making it anew is one more op, which models should never see
    MOST = 255

cdef Tape tape = None
cdef object as_strided, alias, layer, excluded, set_excluded, base_of, below, strided
cdef object creation_of, set_creation, DEFAULT, SEVERAL, running_node, forward_ad, dispatch_stack, functorch_stack
cdef object inference
cdef bint ready = False
# Views that sizes and strides describe. The others (of another dtype, of conjugates …) have to be made again.
cdef frozenset STRIDED = frozenset(
    "aten::" + name for name in "_reshape_alias alias as_strided diagonal expand permute select slice split "
    "split_with_sizes squeeze t transpose unbind unfold unsqueeze view".split()
)


def init(torch):
    """Called once, after lazy.init(). False where torch lacks what this rests on: views then cost what torch says."""
    global tape, as_strided, alias, layer, excluded, set_excluded, base_of, below, strided, ready
    global inference
    global creation_of, set_creation, DEFAULT, SEVERAL, running_node, forward_ad, dispatch_stack, functorch_stack
    c = torch._C
    tape = get_tape()
    try:
        layer = c.DispatchKey.ADInplaceOrView
        excluded, set_excluded = c._dispatch_tls_is_dispatch_key_excluded, c._dispatch_tls_set_dispatch_key_excluded
        creation_of, set_creation = c._autograd._get_creation_meta, c._autograd._set_creation_meta
        DEFAULT, SEVERAL = c._autograd.CreationMeta.DEFAULT, c._autograd.CreationMeta.MULTI_OUTPUT_NODE
        running_node = c._current_autograd_node
        functorch_stack = c._functorch.peek_interpreter_stack
        dispatch_stack = c._len_torch_dispatch_stack
        base_of = c.TensorBase._base.__get__
    except AttributeError:
        return False
    as_strided, alias = c._VariableFunctions.as_strided, torch.ops.aten.alias.default
    below = c._disabled_torch_function_impl
    forward_ad, strided = torch.autograd.forward_ad, torch.strided
    inference = torch.is_inference_mode_enabled
    ready = True
    return True


def steps(tensor):
    """How many steps torch's function takes that makes this view again from its base; 0 of what is no view."""
    cdef Handle h = handle_of(tensor)
    return 0 if h is None else h.steps


# ---- calls of views --------------------------------------------------------------------------------------------------
cdef bint is_long(tuple args, dict kwargs) except -1:
    """Would the view that this call makes of its first argument be another of a long chain?"""
    cdef Handle h = handle_of(args[0] if args else next(iter(kwargs.values())) if kwargs else None)
    return h is not None and h.steps >= LONG and ready


def shortened(func, args, kwargs):
    """The call, its views made below torch's layer of views. Torch functions of ours must be out of the way."""
    cdef object view = args[0] if args else next(iter(kwargs.values()))
    cdef object base = base_of(view)
    cdef Handle h = handle_of(view), root = handle_of(base) if base is not None else None
    cdef mt_linking *links = mt_linked()
    cdef bint before = links.below
    if root is None:
        h.steps = 0                    # of what is no view nobody asks for a function
        return func(*args, **kwargs)
    if (
        inference() or dispatch_stack()
        or functorch_stack() is not None or forward_ad._current_level >= 0 or excluded(layer)
        or not _alike(h, root) or view.layout is not strided
    ):
        return func(*args, **kwargs)
    links.below = True
    set_excluded(layer, True)
    try:
        return func(*args, **kwargs)
    finally:
        set_excluded(layer, False)
        links.below = before


cdef bint _alike(Handle view, Handle base) noexcept:
    # Do sizes and strides say how to make the one from the other?
    cdef int lazy_bits = META_CONJ | META_NEG
    return (
        tape.interner.metas[view.meta].dtype == tape.interner.metas[base.meta].dtype
        and not (tape.interner.metas[view.meta].bits | tape.interner.metas[base.meta].bits) & lazy_bits
    )


# ---- at the dispatch level -------------------------------------------------------------------------------------------
cdef bint is_below() noexcept:
    """Does this thread make views below torch's layer of views?"""
    return mt_linked().below


cdef bint is_strided(str name) except -1:
    return name in STRIDED


def above(func, args, kwargs):
    """The call through torch's layer of views after all: its result cannot be described by sizes and strides."""
    cdef mt_linking *links = mt_linked()
    links.below = False
    set_excluded(layer, False)
    try:
        return func(*args, **kwargs)
    finally:
        set_excluded(layer, True)
        links.below = True


cdef object linked(object view, object out):
    """`out`, new views of `view` that torch takes for tensors of their own, as views of its base."""
    cdef object base = base_of(view), creation = DEFAULT
    if base is None:
        base = view
    else:
        creation = creation_of(view)
    if type(out) is tuple or type(out) is list:
        for one in out:
            _link(view, base, SEVERAL, one)
    else:
        _link(view, base, creation, out)
    return out


cdef int _link(object view, object base, object creation, object out) except -1:
    cdef mt_linking *links = mt_linked()
    if out is view or base_of(out) is not None:
        return 0                       # in inference mode, calls made of several come here as well
    links.below = False
    links.given = <PyObject *>out
    set_excluded(layer, False)
    try:
        as_strided(base, out.shape, out.stride(), out.storage_offset())
    finally:
        set_excluded(layer, True)
        links.given = NULL
        links.below = True
    if creation != DEFAULT and creation_of(out) == DEFAULT:
        set_creation(out, creation)
    (<Handle>handle_of(out)).steps = 1
    return 0


def take(args, kwargs):
    """What the as_strided of `linked` gives; NotImplemented to any other."""
    cdef mt_linking *links = mt_linked()
    if links.given == NULL:
        return NotImplemented
    out = <object>links.given
    links.given = NULL
    return out


cdef int counted(object view, object out) except -1:
    """Note how many steps torch's functions of new views of `view` take."""
    cdef Handle h = handle_of(view)
    cdef int steps
    if h is None:
        return 0
    steps = min(h.steps + 1, MOST)
    if type(out) is tuple or type(out) is list:
        for one in out:
            _count(one, steps)
    else:
        _count(out, steps)
    if steps >= LONG_BACKWARD and ready:
        _shorten_in_backward()
    return 0


cdef int _count(object out, int steps) except -1:
    cdef Handle h = handle_of(out)
    if h is not None:
        h.steps = steps
    return 0


cdef int _shorten_in_backward() except -1:
    """Have what is next in the backward pass make the views that it is given anew."""
    cdef object node = running_node()
    if node is None:
        return 0
    for following, _ in node.next_functions:
        if following is not None:
            _shorten_what_comes_to(following)
    return 0


def _shorten_what_comes_to(node):
    def shorten(gradients):
        hook.remove()
        made = []
        for g in gradients:
            made.append(_short(g))
        return tuple(made)

    hook = node.register_prehook(shorten)


cdef object _short(object gradient):
    cdef Handle h = handle_of(gradient)
    if h is None or h.steps < LONG_BACKWARD:
        return gradient
    return below(shortened, (), (alias, (gradient,), {}))
