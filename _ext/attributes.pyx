"""What torch's tensors tell without running anything, told of ours.

Function modes of the program see these asked, as they do of torch's own tensors.
"""
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject

from .interpreter cimport mt_ask, mt_attribute
from .lazy cimport get_tape, handle_of
from .local_state cimport function_modes, hide_functions, show_functions
from .structs cimport MetaS
from .tape cimport Handle, Tape
from .lazy import may_require_grad

cdef extern from "Python.h":
    object PyObject_CallNoArgs(object callable)

cdef Tape tape = None
cdef object modes_on, functions_on, mode_at, harmless, device_at, below, handle_torch_function
cdef object give_nodes, device_type

cdef enum:
    # KIND: is it on a device of this type? BELOW: torch itself knows. GRADIENT: so it does, if that is one of ours
    # NODE: so it does, if there can be one
    SHAPE, DTYPE, DEVICE, DIMENSIONS, KIND, BELOW, GRADIENT, NODE

cdef dict KINDS = {"shape": SHAPE, "dtype": DTYPE, "device": DEVICE, "ndim": DIMENSIONS,
                   "is_cpu": KIND, "is_cuda": KIND, "is_meta": KIND, "grad": GRADIENT, "grad_fn": NODE, "is_leaf": NODE}


def init(torch, default_device, place, nodes):
    """Hand in torch, the class of modes that set a default device, and what names the device of a place.

    nodes: what gives views of integers the nodes that torch cannot make (engine.record.integer_views).

    Called once, after lazy.init().
    """
    global tape, modes_on, functions_on, mode_at, harmless, device_at, below, handle_torch_function
    global give_nodes, device_type
    tape = get_tape()
    modes_on = torch._C._len_torch_function_stack
    functions_on = torch._C._is_torch_function_enabled
    mode_at = torch._C._get_function_stack_at
    harmless = default_device
    device_at, device_type = place, torch.device
    give_nodes = nodes
    below = torch._C._disabled_torch_function_impl
    handle_torch_function = torch.overrides.handle_torch_function


cdef dict devices = {}                 # by place: torch's objects, of which there is one for good


cdef object device_of(int place):
    cdef object number = place
    cdef PyObject *known = PyDict_GetItem(devices, number)
    if known != NULL:
        return <object>known
    found = device_at(place)
    if place >= 0 and type(found) is device_type:
        devices[number] = found
    return found


cdef bint _asked() except -1:
    """Is there a function mode that wants to know? A default device is none: it looks at what makes tensors."""
    if not function_modes() or not PyObject_CallNoArgs(functions_on):
        return False
    return PyObject_CallNoArgs(modes_on) > 1 or type(mode_at(0)) is not harmless


cdef class Attribute:
    """Attribute `name` of tensors of ours, without the detour over ``__torch_function__``. `theirs`: torch's own.

    asks: of classes whose ``__torch_function__`` is the program's, and wants to know, too.
    """
    cdef object name, theirs, getter, setter
    cdef int kind
    cdef bint asks, in_c           # of torch's: is it C code that gets it?

    def __init__(self, str name not None, theirs, bint asks=False):
        self.name = name
        self.theirs = theirs
        self.getter, self.setter = theirs.__get__, theirs.__set__
        self.asks, self.in_c = asks, mt_attribute(<PyObject *>theirs) != NULL
        self.kind = KINDS.get(name, BELOW)

    def __get__(self, instance, owner):
        if instance is None:
            return self
        if _asked() or (self.asks and functions_on()):
            return self.theirs.__get__(instance)
        return self.known(instance)

    def __set__(self, instance, value):
        if value is None and self.kind == GRADIENT and not _asked() and not (self.asks and functions_on()):
            below(self.setter, (), (instance, None))   # an optimizer's zero_grad
            return
        self.setter(instance, value)               # all but gradients are refused, in torch's words
        if self.name == "requires_grad" and value and handle_of(instance) is not None:
            may_require_grad(handle_of(instance))  # also where classes have no say

    def __delete__(self, instance):
        self.theirs.__delete__(instance)

    def asking(self):
        """The same for classes with a ``__torch_function__`` of the program's."""
        return Attribute(self.name, self.theirs, True)

    cpdef known(self, t):
        """What it is of tensor `t`, whoever wants to know."""
        cdef Handle h
        cdef MetaS *m
        if self.kind == BELOW:
            return self.below(t)
        if self.kind == NODE:
            return self.node(t)
        if self.kind == GRADIENT:
            found = self.below(t)
            return found if found is None or handle_of(found) is not None else self.getter(t)
        h = handle_of(t)
        if h is None:
            raise AttributeError(f"[{self.name}] expected a tensor with a place on the tape, got a {type(t).__name__}")
        m = &tape.interner.metas[h.meta]
        if self.kind == SHAPE:
            return <object>m.size
        if self.kind == DTYPE:
            return <object>m.dtype
        if self.kind == DEVICE:
            return device_of(m.device)
        if self.kind == DIMENSIONS:
            return len(<tuple>m.size)
        return m.device < 0 and device_at(m.device).type == self.name[3:]

    cdef node(self, t):
        try:
            return self.below(t)
        except RuntimeError:
            if not give_nodes((t,)):
                raise
        return self.below(t)

    cdef below(self, t):
        """What torch says of it, and no class is asked."""
        cdef int hidden = hide_functions() if self.in_c else -1
        if hidden < 0:
            return below(self.getter, (), (t,))
        try:
            return mt_ask(self.theirs, t)
        finally:
            if hidden:
                show_functions()

    def answer(self, tuple args, dict kwargs):
        """What torch's getter gives, once modes and classes of the program have had their say."""
        return self.known(args[0]) if handle_of(args[0]) is not None else getattr(args[0], self.name)


def device_number(theirs):
    """The method `get_device` of tensors of ours. `theirs`: torch's own."""

    def get_device(self):
        cdef Handle h
        if _asked():
            return handle_torch_function(theirs, (self,), self)
        h = handle_of(self)
        return theirs(self) if h is None else tape.interner.metas[h.meta].device

    return get_device


def question(theirs):
    """A method that asks a tensor of ours something that torch itself knows of it. `theirs`: torch's own."""

    def method(self, *args, **kwargs):
        cdef int hidden
        if _asked():
            return handle_torch_function(theirs, (self,), self, *args, **kwargs)
        if args and type(args[0]) is not int:
            return theirs(self, *args, **kwargs)   # which torch may have to ask
        hidden = hide_functions()
        if hidden < 0:
            return below(theirs, (), (self,) + args, kwargs) if kwargs else below(theirs, (), (self,) + args)
        try:
            return theirs(self, *args, **kwargs)
        finally:
            if hidden:
                show_functions()

    return method
