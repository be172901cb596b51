"""Torch's own functions, asked first whether a device of ours is meant (SPEC L1, S4).

A function stays the object that it is: what is exchanged is the C function behind it. So ``torch.zeros`` is itself in
function modes, pickles, Dynamo's tables and names taken before the import. A call that does not concern us costs one
more C call and one dictionary probe.
"""
import sys

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from .interpreter cimport mt_attribute, mt_copy
from .lazy cimport device_index, handle_of, is_ours

cdef extern from *:
    """
    #define MT_SLOTS 84
    #define MT_METHODS 40
    /* What is exchanged: of a function, how it is called; its definition stays, since that is what its hash is made of.
       Of a method, the definition. Both kinds of entry know by their number whom they stand for. */
    typedef struct {
        PyObject *function, *hook;       /* owned; NULL: a free slot */
        PyMethodDef *torchs, ours;       /* live for good: calls may be under way, twins refer to torch's */
    } mt_slot;
    static mt_slot mt_slots[MT_SLOTS + MT_METHODS];
    static PyObject *mt_device_key, *mt_generator_key, *mt_pin_key;
    static int mt_pinning;  /* memory may have to be pinned by us: who asks for it has to be asked */
    static PyObject *mt_generator;  /* of generators of ours; NULL while there are none */
    static int mt_concerns(PyObject *hook, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                           int named);
    static PyObject *mt_answer(PyObject *hook, PyObject *owner, PyObject *args, PyObject *kwargs);

    /* A generator of ours is one on the CPU to torch: whoever is given one has to be asked. */
    static int mt_draws(PyObject *generator) {
        return generator != NULL && PyObject_TypeCheck(generator, (PyTypeObject *)mt_generator);
    }

    /* Torch's errors pass through here as they are, without a line of ours in the traceback. */
    static PyObject *mt_run(const mt_slot *s, int ours, PyObject *self, PyObject *args, PyObject *kwargs) {
        PyObject *out, *hook = s->hook;
        if (ours == 0) return ((PyCFunctionWithKeywords)(void *)s->torchs->ml_meth)(self, args, kwargs);
        if (ours < 0) return NULL;
        Py_INCREF(hook);  /* enable() may put another one there meanwhile */
        out = mt_answer(hook, self, args, kwargs);
        Py_DECREF(hook);
        return out;
    }
    static PyObject *mt_called(int slot, PyObject *f, PyObject *const *given, size_t flags, PyObject *names) {
        const mt_slot *s = &mt_slots[slot];
        const Py_ssize_t n = PyVectorcall_NARGS(flags), named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
        PyObject *out, *args, *name, *device = NULL, *kwargs = NULL;
        Py_ssize_t i;
        int ours = 0;
        for (i = 0; i < named; i++) {
            name = PyTuple_GET_ITEM(names, i);
            if (name == mt_generator_key && mt_generator != NULL) ours = mt_draws(given[n + i]);
            if (name == mt_pin_key && mt_pinning && given[n + i] == Py_True) ours = 1;
            if (name == mt_device_key || PyUnicode_Compare(name, mt_device_key) == 0) device = given[n + i];
        }
        if (!ours)
            ours = mt_concerns(s->hook, NULL, n > 0 ? given[0] : NULL, n > 1 ? given[1] : NULL, device, named > 0);
        args = PyTuple_New(n);
        if (args == NULL) return NULL;
        for (i = 0; i < n; i++) {
            Py_INCREF(given[i]);
            PyTuple_SET_ITEM(args, i, given[i]);
        }
        if (named > 0) {
            kwargs = PyDict_New();
            for (i = 0; i < named; i++) {
                if (kwargs == NULL || PyDict_SetItem(kwargs, PyTuple_GET_ITEM(names, i), given[n + i]) < 0) {
                    Py_DECREF(args);
                    Py_XDECREF(kwargs);
                    return NULL;
                }
            }
        }
        out = mt_run(s, ours, PyCFunction_GET_SELF(f), args, kwargs);
        Py_DECREF(args);
        Py_XDECREF(kwargs);
        return out;
    }
    static PyObject *mt_method(int slot, PyObject *self, PyObject *args, PyObject *kwargs) {
        const mt_slot *s = &mt_slots[MT_SLOTS + slot];
        PyObject *first = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : NULL;
        PyObject *second = PyTuple_GET_SIZE(args) > 1 ? PyTuple_GET_ITEM(args, 1) : NULL;
        const int named = kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0;
        PyObject *device = named ? PyDict_GetItem(kwargs, mt_device_key) : NULL;
        const int draws = named && mt_generator != NULL && mt_draws(PyDict_GetItem(kwargs, mt_generator_key));
        const int pins = named && mt_pinning && PyDict_GetItem(kwargs, mt_pin_key) == Py_True;
        const int ours = draws || pins ? 1 : mt_concerns(s->hook, self, first, second, device, named);
        return mt_run(s, ours, self, args, kwargs);
    }

    /* The same of a method that takes no argument (NULL), or one. */
    static PyObject *mt_short(int slot, PyObject *self, PyObject *given) {
        const mt_slot *s = &mt_slots[MT_SLOTS + slot];
        const int ours = mt_concerns(s->hook, self, given, NULL, NULL, 0);
        PyObject *out, *args;
        if (ours == 0) return s->torchs->ml_meth(self, given);
        args = ours < 0 ? NULL : given == NULL ? PyTuple_New(0) : PyTuple_Pack(1, given);
        if (args == NULL) return NULL;
        out = mt_run(s, ours, self, args, NULL);
        Py_DECREF(args);
        return out;
    }

    #define MT_ENTRY(n) static PyObject *mt_call_##n(PyObject *f, PyObject *const *a, size_t c, PyObject *k) { \
        return mt_called(n, f, a, c, k); }
    #define MT_METHOD(n) static PyObject *mt_method_##n(PyObject *s, PyObject *a, PyObject *k) { \
        return mt_method(n, s, a, k); } \
        static PyObject *mt_short_##n(PyObject *s, PyObject *a) { return mt_short(n, s, a); }
    #define MT_4(f, t) f(t##0) f(t##1) f(t##2) f(t##3)
    #define MT_10(f, t) MT_4(f, t) f(t##4) f(t##5) f(t##6) f(t##7) f(t##8) f(t##9)
    #define MT_84(f) MT_10(f, ) MT_10(f, 1) MT_10(f, 2) MT_10(f, 3) MT_10(f, 4) MT_10(f, 5) MT_10(f, 6) \
        MT_10(f, 7) MT_4(f, 8)
    MT_84(MT_ENTRY)
    #define MT_40(f) MT_10(f, ) MT_10(f, 1) MT_10(f, 2) MT_10(f, 3)
    MT_40(MT_METHOD)
    #define MT_NAME(n) mt_call_##n,
    #define MT_METHOD_NAME(n) mt_method_##n,
    #define MT_SHORT_NAME(n) mt_short_##n,
    static const vectorcallfunc mt_entries[MT_SLOTS] = { MT_84(MT_NAME) };
    static const PyCFunctionWithKeywords mt_methods[MT_METHODS] = { MT_40(MT_METHOD_NAME) };
    static const PyCFunction mt_shorts[MT_METHODS] = { MT_40(MT_SHORT_NAME) };

    static int mt_is_short(const PyMethodDef *def) { return def->ml_flags == METH_O || def->ml_flags == METH_NOARGS; }

    /* 1: a builtin function that takes keywords, 2: a method of a builtin type that does, or takes one argument at
       most; 0: neither. */
    static int mt_kind(PyObject *f) {
        PyMethodDef **def = mt_definition(f);
        if (def == NULL) return 0;
        if (((*def)->ml_flags & ~METH_STATIC) != (METH_VARARGS | METH_KEYWORDS))
            return mt_is_short(*def) && !PyCFunction_CheckExact(f) ? 2 : 0;
        return PyCFunction_CheckExact(f) ? 1 : 2;
    }
    static void mt_hook(int slot, PyObject *f, PyObject *hook) {
        mt_slot *s = &mt_slots[slot];
        if (s->function == NULL) {
            Py_INCREF(f);
            s->function = f;
            s->torchs = *mt_definition(f);
            s->ours = *s->torchs;
            if (slot >= MT_SLOTS && mt_is_short(&s->ours)) s->ours.ml_meth = mt_shorts[slot - MT_SLOTS];
            else if (slot >= MT_SLOTS) s->ours.ml_meth = (PyCFunction)(void *)mt_methods[slot - MT_SLOTS];
        }
        Py_INCREF(hook);
        Py_XSETREF(s->hook, hook);
        if (slot < MT_SLOTS) *mt_entry(f) = mt_entries[slot];
        else *mt_definition(f) = &s->ours;
    }
    static void mt_unhook(int slot) {
        PyObject *f = mt_slots[slot].function;
        if (slot < MT_SLOTS) *mt_entry(f) = NULL;  /* as of all that take a tuple */
        else *mt_definition(f) = mt_slots[slot].torchs;
    }
    static inline PyObject *mt_function_of(int slot) { return mt_slots[slot].function; }
    static inline PyObject *mt_hook_of(int slot) { return mt_slots[slot].hook; }

    /* An attribute, exchanged in the same way: one that is read, and one that is set, are enough. */
    typedef struct { PyGetSetDef *torchs, ours; } mt_attribute_slot;
    static mt_attribute_slot mt_read_slot, mt_set_slot;
    static PyObject *mt_inside(PyObject *self);
    static int mt_moves(PyObject *self, PyObject *value);
    static int mt_assign(PyObject *self, PyObject *value);
    static PyObject *mt_read(PyObject *self, void *closure) {
        PyObject *found = mt_inside(self);
        if (found != Py_None) return found;
        Py_DECREF(found);
        return mt_read_slot.torchs->get(self, closure);
    }
    static int mt_set(PyObject *self, PyObject *value, void *closure) {
        int ours = value == NULL ? 0 : mt_moves(self, value);
        if (ours == 0) return mt_set_slot.torchs->set(self, value, closure);
        return ours < 0 ? -1 : mt_assign(self, value);
    }
    static void mt_hook_attribute(PyObject *descriptor, int set) {
        PyGetSetDef **d = mt_attribute(descriptor);
        mt_attribute_slot *s = set ? &mt_set_slot : &mt_read_slot;
        if (s->torchs == NULL) {
            s->torchs = *d;
            s->ours = **d;
            if (set) s->ours.set = mt_set;
            else s->ours.get = mt_read;
        }
        *d = &s->ours;
    }
    static void mt_unhook_attribute(PyObject *descriptor) {
        PyGetSetDef **d = mt_attribute(descriptor);
        *d = *d == &mt_set_slot.ours ? mt_set_slot.torchs : mt_read_slot.torchs;
    }

    /* Constructors that name a device: asked again when the name was not known and somebody makes it known. */
    #define MT_TYPES 6
    static newfunc mt_torchs[MT_TYPES];
    static PyObject *mt_ask_about(int slot, PyObject *type, PyObject *args, PyObject *kwargs);
    static PyObject *mt_constructed(int slot, PyTypeObject *type, PyObject *args, PyObject *kwargs) {
        PyObject *kind, *error, *trace, *made = mt_torchs[slot](type, args, kwargs);
        if (made != NULL) return made;
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
        PyErr_Fetch(&kind, &error, &trace);
        made = mt_ask_about(slot, (PyObject *)type, args, kwargs);
        if (made == Py_None) {
            Py_DECREF(made);
            PyErr_Restore(kind, error, trace);
            return NULL;
        }
        Py_XDECREF(kind); Py_XDECREF(error); Py_XDECREF(trace);
        if (made != Py_True) return made;
        Py_DECREF(made);
        return mt_torchs[slot](type, args, kwargs);
    }
    #define MT_NEW(n) static PyObject *mt_new_##n(PyTypeObject *t, PyObject *a, PyObject *k) { \
        return mt_constructed(n, t, a, k); }
    MT_4(MT_NEW, ) MT_NEW(4) MT_NEW(5)
    static const newfunc mt_constructors[MT_TYPES] = {mt_new_0, mt_new_1, mt_new_2, mt_new_3, mt_new_4, mt_new_5};
    static void mt_take_constructor(int slot, PyObject *type) {
        newfunc torchs = *mt_constructor(type);
        if (torchs != mt_constructors[slot]) mt_torchs[slot] = torchs;
    }
    static void mt_exchange_constructor(int slot, PyObject *type, int hooked) {
        newfunc *made_by = mt_constructor(type), torchs = mt_torchs[slot], ours = mt_constructors[slot];
        if (*made_by == (hooked ? torchs : ours)) *made_by = hooked ? ours : torchs;
    }
    """
    int MT_SLOTS, MT_METHODS, MT_TYPES
    PyObject *mt_device_key
    PyObject *mt_generator_key
    PyObject *mt_pin_key
    int mt_pinning
    PyObject *mt_generator
    int mt_kind(object function) noexcept
    void mt_hook(int slot, object function, object hook) noexcept
    void mt_unhook(int slot) noexcept
    PyObject *mt_function_of(int slot) noexcept
    PyObject *mt_hook_of(int slot) noexcept
    void mt_hook_attribute(object descriptor, bint set) noexcept
    void mt_unhook_attribute(object descriptor) noexcept
    void mt_take_constructor(int slot, object type) noexcept
    void mt_exchange_constructor(int slot, object type, bint hooked) noexcept

cdef str _device_key = "device"
mt_device_key = <PyObject *>_device_key
cdef str _generator_key = "generator"
mt_generator_key = <PyObject *>_generator_key
cdef str _pin_key = "pin_memory"
mt_pin_key = <PyObject *>_pin_key


def take_generators(cls):
    """From now on there are generators of ours, of this class."""
    global mt_generator
    Py_INCREF(cls)                             # for good
    mt_generator = <PyObject *>cls


cdef object everything = None             # while tensors have no data anywhere: is torch at work for ourselves?
cdef object _subclasses_enabled = None    # torch's own question whether to look for any


def set_mode(mode):
    """Take devices for ours as `mode` (mindtorch.devices.mode) says.

    estimate: `create` and `slow` of all hooks decide about every call, not only those that name one of our devices,
    except while torch is at work for ourselves. A `meta` device is one of ours, too: torch's own functions make
    tensors of ours, where subclasses may be used. draws: what makes tensors on no device of ours is asked about, as
    is what draws (take_default).
    """
    global everything, moved, _subclasses_enabled, _last_foreign
    from torch import _C
    everything = _C._is_torch_function_all_disabled if mode.estimate is not None else None
    moved = None if mode.draws is None else _C._is_torch_function_all_disabled
    _subclasses_enabled = _C._is_torch_function_enabled
    _last_foreign = None


cdef object moved = None                  # while torch's default generator is ours: is torch at work for ourselves?
cdef object _default = None


def take_default(make):
    """`make(twin, args, kwargs)` answers what names no device of ours, while that may draw or be made there."""
    global _default
    _default = make


cdef object _meta_where = None             # asked about a `meta` device outside estimates: is it ours where this runs?


def take_meta_where(asked):
    """A `meta` device is one of ours wherever `asked()`."""
    global _meta_where, _last_foreign
    _meta_where, _last_foreign = asked, None


cdef bint _meta_is_ours() except -1:
    if everything is not None:
        return _subclasses_enabled()
    return _meta_where is not None and _meta_where()


cdef object _other_base = ()              # tensors of a device driven beside the recording one


def take_base(base):
    """Tensors of this class are ours, too."""
    global _other_base
    _other_base = base


cdef frozenset _ours = frozenset()


def take_types(frozenset types):
    """Devices of these types are ours (mindtorch.devices.places); ``meta`` is another question."""
    global _ours, _last_foreign
    _ours, _last_foreign = types, None


cdef object _numbers = None               # asked: does a bare integer mean a device of ours?


def take_numbers(asked):
    """A device that is given by a bare integer is one of ours while `asked()`."""
    global _numbers
    _numbers = asked


def take_pinning(bint ours):
    """Whether `create` of all hooks decides about calls with ``pin_memory=True``."""
    global mt_pinning
    mt_pinning = ours


cdef bint _names_us(object device) except -1:
    if type(device) is int:
        return _numbers()
    kind = type_of(device)
    return type(kind) is str and (kind in _ours or (kind == "meta" and _meta_is_ours()))


cdef object _hidden = None                 # asked about a tensor of torch's own: is one of ours inside?


def take_hidden(asked):
    """There are tensors of torch's own with one of ours inside, and `asked(tensor)` knows them. None: no more."""
    global _hidden
    _hidden = asked


cdef inline bint _hides_ours(PyObject *t) except -1:
    return _hidden is not None and t != NULL and _hidden(<object>t)


cdef class Hook:
    """What is asked before one of torch's functions runs. `concerns` must not fail for arguments torch refuses.

    owner: the tensor whose method it is; first, second: arguments by place; device: ``device=``. NULL: there is none.
    named: are there arguments by name?
    """
    cdef object twin                           # torch's function as it was: calls of it are not asked about

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return False

    cdef object answer(self, PyObject *owner, tuple args, dict kwargs):
        raise NotImplementedError


cdef class CreationHook(Hook):
    """Calls create(func, args, kwargs) when `device=` is one of ours."""
    cdef object create
    cdef object prepare                        # prepare(args, kwargs) -> both, as torch can take them; mostly None
    cdef bint takes_data                       # torch.tensor(lazy, device="cpu"): C++ thinks that it is there already

    def __init__(self, create, bint takes_data=False, prepare=None):
        self.create = create
        self.takes_data = takes_data
        self.prepare = prepare

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        if everything is not None:
            if everything():
                return False
            return device == NULL or type_of(<object>device) != "meta" or _names_us(<object>device)
        if moved is not None and not moved():
            return True
        return self.prepare is not None or self.named_us(first, device)

    cdef bint named_us(self, PyObject *first, PyObject *device) except -1:
        global _last_foreign
        if device == NULL or device == <PyObject *>None:
            return False
        if _hides_ours(first):
            return True
        if self.takes_data and first != NULL and (
            handle_of(<object>first) is not None or isinstance(<object>first, _other_base)
        ):
            return True
        if device == <PyObject *>_last_foreign:
            return False
        if _names_us(<object>device):
            return True
        # A meta device may be ours another time, and so may a bare integer.
        if type(<object>device) is not int and everything is None and (
            _meta_where is None or type_of(<object>device) != "meta"
        ):
            _last_foreign = <object>device
        return False

    cdef object answer(self, PyObject *owner, tuple args, dict kwargs):
        cdef object device = kwargs.get("device")
        cdef PyObject *first = <PyObject *>args[0] if args else NULL
        if everything is not None or self.named_us(first, <PyObject *>device) or (
            self.prepare is None and moved is None
        ):
            return self.create(self.twin, args, kwargs)
        if moved is not None and not moved():
            made = _default(self.twin, args, kwargs)
            if made is not NotImplemented:
                return made
        if self.prepare is None:
            return self.twin(*args, **kwargs)
        args, kwargs = self.prepare(args, kwargs)
        return self.twin(*args, **kwargs)


cdef class PythonHook(Hook):
    """What concerns us is answered in Python, by `slow`."""
    cdef object slow

    def __init__(self, slow):
        self.slow = slow


cdef class MoveHook(PythonHook):
    """Tensor.to: `slow(tensor, ...)` decides when a tensor of ours or a device by name is involved."""
    cdef object dtype, device                  # torch's types

    def __init__(self, slow, dtype, device):
        self.slow, self.dtype, self.device = slow, dtype, device

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        if named or first == NULL or everything is not None:
            return True
        if handle_of(<object>owner) is not None:
            return type(<object>first) is not self.dtype or second != NULL      # else it stays where it is
        if _hides_ours(owner):
            return True
        return not (type(<object>first) is self.dtype or (
            type(<object>first) is self.device and not _names_us(<object>first)
        ))

    cdef object answer(self, PyObject *owner, tuple args, dict kwargs):
        return self.slow(<object>owner, *args, **kwargs)


cdef class EveryHook(PythonHook):
    """A method: `slow(twin, tensor, ...)` answers every call."""

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return True

    cdef object answer(self, PyObject *owner, tuple args, dict kwargs):
        return self.slow(self.twin, <object>owner, *args, **kwargs)


cdef class AwayHook(EveryHook):
    """Tensor.cpu, Tensor.cuda: `slow(twin, tensor, ...)` moves what has a tensor of ours inside."""

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return _hides_ours(owner)


cdef class AcrossHook(AwayHook):
    """Tensor.copy_, Tensor.type_as: the same where one of the two has a tensor of ours inside."""

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return _hidden is not None and first != NULL and _hides_ours(owner) != _hides_ours(first)


cdef class MethodHook(EveryHook):
    """Tensor.new_zeros and its like: `slow(twin, tensor, ...)` is called for ours, and when a device is named."""

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return (device != NULL or everything is not None or handle_of(<object>owner) is not None
                or isinstance(<object>owner, _other_base))


cdef class DrawHook(PythonHook):
    """A function or `method` that draws: `slow(twin, args, kwargs)` is called where a generator of ours is given, and
    wherever torch's default generator is one of ours."""
    cdef bint method

    def __init__(self, slow, bint method):
        self.slow, self.method = slow, method

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return moved is not None and not moved()

    cdef object answer(self, PyObject *owner, tuple args, dict kwargs):
        return self.slow(self.twin, (<object>owner, *args) if self.method else args, kwargs)


cdef class SubclassHook(PythonHook):
    """Tensor._make_subclass(cls, data): `slow(cls, data, ...)` is called when class or data are ours."""

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return second != NULL and (handle_of(<object>second) is not None or is_ours(<object>first)
                                   or (first != <PyObject *>_other_base and isinstance(<object>second, _other_base)
                                       and not issubclass(<object>first, _other_base)))

    cdef object answer(self, PyObject *owner, tuple args, dict kwargs):
        return self.slow(*args, **kwargs)


cdef class AsSubclassHook(PythonHook):
    """Tensor.as_subclass: `slow(tensor, cls)` is called when tensor or class are ours."""

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return handle_of(<object>owner) is not None or (first != NULL and is_ours(<object>first))

    cdef object answer(self, PyObject *owner, tuple args, dict kwargs):
        return self.slow(<object>owner, *args, **kwargs)


cdef class WrapperHook(PythonHook):
    """Tensor._make_wrapper_subclass: `slow(twin, ...)` is called when the device is ours."""

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return device != NULL and device != <PyObject *>None and _names_us(<object>device)

    cdef object answer(self, PyObject *owner, tuple args, dict kwargs):
        return self.slow(self.twin, *args, **kwargs)


cdef class NameHook(Hook):
    """A question about a device type by name: of ours, it is asked about `stands_for` instead."""
    cdef str stands_for

    def __init__(self, str stands_for):
        self.stands_for = stands_for

    cdef bint concerns(self, PyObject *owner, PyObject *first, PyObject *second, PyObject *device,
                       bint named) except -1:
        return named or (first != NULL and self.meant(<object>first))

    cdef bint meant(self, value):
        return type(value) is str and type_of(value) in _ours

    cdef object answer(self, PyObject *owner, tuple args, dict kwargs):
        cdef list given = []
        cdef dict named = {}
        for value in args:
            given.append(self.stands_for if self.meant(value) else value)
        for name, value in kwargs.items():
            named[name] = self.stands_for if self.meant(value) else value
        return self.twin(*given, **named)


cdef class ReadHook(PythonHook):
    """An attribute that is read (Tensor.device): `slow(tensor)` is asked first; None: torch's own knows."""


cdef class AssignHook(PythonHook):
    """Tensor.data: `slow(tensor, source)` when one of the two is ours and the other is not, or only one holds data.

    Torch's own setter does not ask the right-hand side: it would leave a plain tensor without any memory.
    """


cdef class ConstructorHook(PythonHook):
    """A class that takes a device, and those that have taken its constructor over: where torch refuses a call,
    `slow(type, args, kwargs)` gives the object; True: torch is to try once more; None: torch is right."""


cdef int _concerns "mt_concerns"(PyObject* hook, PyObject* owner, PyObject* first, PyObject* second,
                                 PyObject *device, int named) except -1:
    return (<Hook>hook).concerns(owner, first, second, device, named)


cdef object _answer "mt_answer"(PyObject* hook, PyObject* owner, PyObject* args, PyObject* kwargs):
    return (<Hook>hook).answer(owner, <tuple>args, <dict>kwargs if kwargs else {})


cdef int _n_functions = 0, _n_methods = 0      # slots are not given back: enable() hooks the same functions again


def hook(target, Hook asked):
    """Ask `asked` about every call of `target`: a builtin, or a method of a builtin type, called with keywords.

    Of an attribute of a builtin type, with a ReadHook or an AssignHook: about every use. Of a class, with a
    ConstructorHook. TypeError for any other.
    """
    global _n_functions, _n_methods, _inside, _assign, _tensor
    cdef int slot, kind
    if isinstance(asked, ConstructorHook):
        slot = _types.index(None)              # ValueError: MT_TYPES are not enough
        _types[slot] = target, asked
        mt_take_constructor(slot, target)
        _exchange_constructors(slot, target, True)
        return
    if isinstance(asked, (ReadHook, AssignHook)):
        if mt_attribute(<PyObject *>target) == NULL:
            raise TypeError(f"[hook] expected an attribute of a builtin type, got {target!r}")
        if isinstance(asked, ReadHook):
            _inside = (<PythonHook>asked).slow
        else:
            _assign, _tensor = (<PythonHook>asked).slow, target.__objclass__
        mt_hook_attribute(target, isinstance(asked, AssignHook))
        return
    slot, kind = _slot_of(target), mt_kind(target)
    if kind == 0:
        raise TypeError(f"[hook] expected a builtin function that takes keywords, or a builtin method, got {target!r}")
    if slot >= 0:
        asked.twin = original(target)
    elif kind == 1 and _n_functions < MT_SLOTS:
        asked.twin = mt_copy(target)
        slot = _n_functions
        _n_functions += 1
    elif kind == 2 and _n_methods < MT_METHODS:
        asked.twin = mt_copy(target)
        slot = MT_SLOTS + _n_methods
        _n_methods += 1
    else:
        raise RuntimeError(f"[hook] expected at most {MT_SLOTS} functions and {MT_METHODS} methods, got one more")
    mt_hook(slot, target, asked)


def unhook(target):
    """Let `target` be torch's own again."""
    cdef int slot
    if isinstance(target, type):
        for slot in range(MT_TYPES):
            if _types[slot] is not None and _types[slot][0] is target:
                _exchange_constructors(slot, target, False)
                _types[slot] = None
    elif mt_attribute(<PyObject *>target) != NULL:
        mt_unhook_attribute(target)
    else:
        mt_unhook(_slot_of(target))


cdef list _types = [None] * MT_TYPES           # (class, its hook)


cdef int _exchange_constructors(int slot, object base, bint hooked) except -1:
    """Of the class and those that have it from there; later ones take it over by themselves."""
    mt_exchange_constructor(slot, base, hooked)
    for derived in type.__subclasses__(base):
        _exchange_constructors(slot, derived, hooked)
    return 0


cdef object _asked_about "mt_ask_about"(int slot, PyObject* type, PyObject* args, PyObject* kwargs):
    if _types[slot] is None:                   # unhooked meanwhile
        return None
    return (<PythonHook>_types[slot][1]).slow(<object>type, <object>args, <object>kwargs if kwargs else {})


def twin(function):
    """A function of its own that does what torch's builtin `function` does, hooked or not: what the engine calls."""
    return mt_copy(original(function))


def original(function):
    """Torch's `function` as it was before it was hooked; itself where it never was."""
    cdef int slot = _slot_of(function)
    return function if slot < 0 else (<Hook><object>mt_hook_of(slot)).twin


cdef int _slot_of(object function) noexcept:
    cdef int slot
    for slot in range(_n_functions):
        if mt_function_of(slot) == <PyObject *>function:
            return slot
    for slot in range(MT_SLOTS, MT_SLOTS + _n_methods):
        if mt_function_of(slot) == <PyObject *>function:
            return slot
    return -1


cdef object _last_foreign = None      # a device seen not to be ours: programs pass the same object again and again


cdef dict _device_types = {}               # of torch's, which writes them anew each time
cdef object _device_class = None           # torch.device, once one was met


cpdef object type_of(object device):
    """``"cuda"`` of ``"cuda:0"``, of a torch.device, of a mindtorch.device; None of what is no device.

    Also of ``"cuda0"``: whoever reads the index says what is wrong with it.
    """
    if isinstance(device, str):
        return (<str>device).split(":", 1)[0].rstrip("0123456789")
    return _type_of_torchs(device) if type(device) is _device_class else _type_of_any(device)


cdef object _type_of_torchs(object device):
    cdef PyObject *known = PyDict_GetItem(_device_types, device)
    if known != NULL:
        return <object>known
    kind = device.type
    if kind != "privateuseone":            # it may get another name, once
        _device_types[device] = kind
    return kind


cdef object _type_of_any(object device):
    global _device_class
    if type(device) is getattr(sys.modules.get("torch"), "device", None):
        _device_class = type(device)
    return getattr(device, "type", None)


cdef object _assign = None, _inside = None     # of an AssignHook, of a ReadHook
cdef object _tensor = None                     # the class that has the attribute


cdef int _moves "mt_moves"(PyObject* target, PyObject* source) except -1:
    cdef bint ours = handle_of(<object>target) is not None
    cdef bint other = isinstance(<object>target, _other_base)
    if ours == (handle_of(<object>source) is not None) and other == isinstance(<object>source, _other_base) and (
        not ours or (device_index(<object>target) < 0) == (device_index(<object>source) < 0)
    ):
        return False
    return isinstance(<object>source, _tensor)     # torch refuses anything else, in its own words


cdef int _assigned "mt_assign"(PyObject* target, PyObject* source) except -1:
    _assign(<object>target, <object>source)
    return 0


cdef object _device_inside "mt_inside"(PyObject* tensor):
    return _inside(<object>tensor)
