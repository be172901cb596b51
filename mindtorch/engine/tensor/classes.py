"""Classes of tensors of ours: for each class that a program's tensors have, one that is that class and ours (SPEC L3).

``x.as_subclass(S)``, ``S.to(device)`` and ``Module.to`` of a module whose parameter is of class P give tensors whose
class derives from S or P: their methods and attributes are there, ``isinstance`` says yes, and what ``S`` does to torch
calls (its ``__torch_function__``) is done. What such a class makes, copies and saves is of class S again.

One file: a class of ours is made with its ``__torch_function__``, and who else has one is asked in the same way.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

from ..._ext import intercept as _intercept
from ..._ext import kept_wrappers as _wrappers
from ..._ext import keys as _keys
from ..._ext import lazy as _core
from ..._ext.attributes import Attribute
from ..._ext.guards import NoGrad, Unseen
from ...base.errors import LazyTensorError
from ...base.patching import Patch

__all__ = [
    "Family", "RecordedMeta", "Slotted", "any_as_subclass", "as_parameter", "as_saved", "as_subclass", "class_for",
    "family", "has_own_function", "is_slotted", "make_subclass", "new_parameter", "of_tensor", "own_state",
    "parameters", "patches", "plain_class", "set_state", "twin",
]  # fmt: skip
_Parameter = torch.nn.Parameter
_disabled: Any = torch._C._disabled_torch_function_impl
_plain: dict[int, tuple[type, type]] = {}  # id of a class of ours -> (itself, what it is to the program)
_made: dict[tuple, type] = {}
_torch_new_parameter: Any = _Parameter.__new__
_torch_as_subclass = torch.Tensor.as_subclass
_torch_make_subclass = torch.Tensor._make_subclass  # type: ignore[attr-defined]


class Parameters:
    """Which kinds of parameters the program has had: plain ones, ones of ours."""

    plain = ours = False


parameters = Parameters()


class RecordedMeta(torch.nn.parameter._ParameterMeta):
    """``type(p)(data, requires_grad=...)`` makes what the program's own class makes, where the data is."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        plain: Any = plain_class(cls)
        if plain is not torch.Tensor:
            return plain(*args, **kwargs)
        return torch.Tensor(*args, **kwargs)  # of sizes: on the host, as of the class of a tensor on CUDA


class Slotted(torch.Tensor):
    """Layout of the objects that calls return: the handle is at a fixed place. Those that were plain once (parameters
    that ``Module.to`` has moved) cannot have one: see `_ext.lazy.adopt`."""

    __slots__ = ("_handle",)
    __class__: Any = property(type, _wrappers.assign_class)  # type: ignore[assignment]


class _Unannounced:
    """Of a class that the program did not write, its ``__init_subclass__`` is not told."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


@dataclass(frozen=True)
class Family:
    """The classes of one kind of tensors of ours, lazy ones or those without data."""

    base: type  # what has no slot
    parameter: type


def family(base: Any, parameter: Any) -> Any:
    """Make a family of two classes; returns the class of what calls return."""
    base._family = Family(base, parameter)
    fast: Any = RecordedMeta(
        base.__name__, (Slotted, base), {"__slots__": (), "__module__": base.__module__, "__doc__": base.__doc__}
    )
    for cls in fast, parameter:  # torch looks them up by name for each call, through all classes from the first on
        for name in ("__torch_function__", "__torch_dispatch__"):
            setattr(cls, name, next(vars(each)[name] for each in base.__mro__ if name in vars(each)))
    for cls, plain in ((base, torch.Tensor), (fast, torch.Tensor), (parameter, _Parameter)):
        _plain[id(cls)] = (cls, plain)
    _made[torch.Tensor, base._family, True] = fast
    return fast


def plain_class(cls: type) -> type:
    """What the program made of a class of ours; any other class is itself."""
    known = _plain.get(id(cls))
    return cls if known is None else known[1]


def is_slotted(cls: type) -> bool:
    """Do objects of the class have a slot for the handle? Others cannot become such, nor these others."""
    return issubclass(cls, Slotted)


def class_for(plain: type, family: Family | None, slotted: bool) -> type:
    """The class of tensors of ours that the program takes for ``plain``; without a family: of plain ones, with slot."""
    key = (plain, family, slotted)
    made = _made.get(key)
    if made is None:
        made = _made.setdefault(key, _make_class(plain, family, slotted))
    return made


def _make_class(plain: Any, family: Family | None, slotted: bool) -> type:
    if family is None and not slotted:
        return plain
    bases: tuple[Any, ...] = (_Unannounced, plain)
    inside: dict[str, Any] = {"__slots__": (), "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    kind: Any = type(plain)
    if slotted:
        bases = (Slotted, plain) if plain in (torch.Tensor, _Parameter) else (_Unannounced, plain, Slotted)
    if family is None:
        if plain is torch.Tensor:
            inside["__torch_function__"] = _disabled  # as torch's own class: nothing is to be asked
    else:
        if plain.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise LazyTensorError(
                f"[as_subclass] expected a class without a __torch_dispatch__ of its own, got {plain.__name__}: it "
                "would intercept this tensor's calls; wrap the tensor instead (_make_wrapper_subclass)"
            )
        kind = RecordedMeta
        if not issubclass(kind, type(plain)):
            kind = type("RecordedMeta", (RecordedMeta, type(plain)), {})
        base: Any = family.parameter if issubclass(plain, _Parameter) else family.base
        if plain in (torch.Tensor, _Parameter) and not slotted:
            return base
        if plain is not torch.Tensor and plain.__torch_function__ is not _disabled:
            base = _routed(base)
            inside["__torch_function__"] = classmethod(_function_of(plain))
        bases = tuple(b for b in bases if b not in (torch.Tensor, _Parameter)) + (base,)
    if "__slots__" not in plain.__dict__ and not slotted:
        del inside["__slots__"]
    made: Any = kind(plain.__name__, bases, inside)
    _plain[id(made)] = (made, plain)
    return made


# ---- what a class does to torch calls --------------------------------------------------------------------------------
class _Underneath(TorchFunctionMode):
    """Once a class's own ``__torch_function__`` has turned itself off, what it calls comes to the engine.

    Torch would go to the dispatcher at once, past what the engine does to whole calls.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._is_torch_function_enabled():
            return func(*args, **kwargs)
        first = args[0] if args else None
        base = _base_of(first)
        if base is not None:
            ours = _overridden(base).get(func)
            if ours is not None:
                return ours(*args, **kwargs)
        elif not any(_core.get_handle(t) is not None for t in _tensors((*args, *kwargs.values()))):
            return func(*args, **kwargs)
        return _intercept.torch_function(None, func, types, args, kwargs)


def _tensors(items: Any) -> Any:
    for a in items:
        if isinstance(a, torch.Tensor):
            yield a
        elif isinstance(a, (tuple, list)):
            yield from _tensors(a)


def _base_of(t: Any) -> Any:
    if _core.get_handle(t) is None:
        return None
    return type(t)._family.parameter if isinstance(t, type(t)._family.parameter) else type(t)._family.base


def _function_of(plain: Any) -> Callable[..., Any]:
    def __torch_function__(cls: Any, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        # The class asks whether it knows the others: it knows them as the program does.
        with _Underneath():
            return plain.__torch_function__(func, _as_known(func, types), args, kwargs or {})

    return __torch_function__


def _as_known(func: Any, types: Any) -> tuple[Any, ...]:
    """The classes of a call that torch would tell of without us: those of the program, and of functions that are
    written in Python its own, too."""
    known: dict[Any, None] = dict.fromkeys(plain_class(t) for t in types)
    in_python = isinstance(func, FunctionType)
    return tuple(t for t in known if t.__torch_function__ is not _disabled and (in_python or t is not torch.Tensor))


def ask_other(cls: Any, func: Any, types: Any, args: tuple, kwargs: Any) -> Any:
    """What a class that is not ours makes of a call with tensors of ours: it meets them as it meets torch's own.

    It need not be a class of tensors: who has a ``__torch_function__`` is asked. None of ours has a say here.
    """
    if getattr(cls, "_is_mindtorchs", False):
        return NotImplemented
    with _Underneath():
        return cls.__torch_function__(func, _as_known(func, types), args, kwargs or {})


def ask_strangers(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What operands make of a call that are no tensors, and that torch does not know to have a say in it: it would ask
    them within the call, for want of a plain tensor's ``__torch_function__``. NotImplemented: there are none."""
    if func is torch.Tensor.__contains__ or getattr(func, "__name__", "") in ("__set__", "__delete__"):
        return NotImplemented  # there is nobody to give the answer to
    types = strangers((*args, *kwargs.values()))
    if func is torch.Tensor.__eq__:
        func = torch.Tensor.eq  # as torch asks about it
    for cls in types:
        out = ask_other(cls, func, types, args, kwargs)
        if out is not NotImplemented:
            return out
    return NotImplemented


def strangers(items: Any) -> dict[type, None]:
    """The classes among ``items`` that are no tensors' and have a ``__torch_function__``."""
    found: dict[type, None] = {}
    for a in items:
        if isinstance(a, (tuple, list)):
            found |= strangers(a)
        elif not isinstance(a, torch.Tensor) and hasattr(type(a), "__torch_function__"):
            found[type(a)] = None
    return found


_keys.set_others(ask_other, ask_strangers)
_KEPT = frozenset({  # what is ours whatever the class says
    "__torch_function__", "__torch_dispatch__", "__deepcopy__", "__copy__", "__reduce_ex__", "__hash__", "__class__",
    "as_subclass", "__new__", "__init__", "__getattribute__", "__setattr__", "__init_subclass__", "__subclasshook__",
})  # fmt: skip
_routes: dict[Any, Any] = {}
_tables: dict[Any, dict[Any, Any]] = {}


def _methods(base: Any) -> dict[str, Any]:
    """Torch's methods that the class has in a way of its own."""
    found: dict[str, Any] = {}
    for cls in base.__mro__:
        if cls is torch.Tensor or cls is _Parameter:
            break
        for name, value in vars(cls).items():
            theirs = getattr(torch.Tensor, name, None)
            method = callable(value) and not isinstance(value, (type, classmethod))
            if method and callable(theirs) and name not in _KEPT:
                found.setdefault(name, value)
    return found


def _attributes_of(base: Any) -> dict[str, Attribute]:
    """Torch's attributes that the class answers itself."""
    return {n: a for cls in reversed(base.__mro__) for n, a in vars(cls).items() if isinstance(a, Attribute)}


def _overridden(base: Any) -> dict[Any, Any]:
    table = _tables.get(base)
    if table is None:
        found = ((getattr(torch.Tensor, name), ours) for name, ours in _methods(base).items())
        # What is torch's method by a shorter way is recorded by its call.
        table = _tables[base] = {
            theirs: ours for theirs, ours in found if getattr(ours, "__wrapped__", None) is not theirs
        }
    return table


def _routed(base: Any) -> Any:
    """``base`` with methods that ask the class's ``__torch_function__`` first, as torch's own do."""
    made = _routes.get(base)
    if made is None:
        _keys.class_asks_first()
        methods = {name: _asking(getattr(torch.Tensor, name), ours) for name, ours in _methods(base).items()}
        methods |= {name: a.asking() for name, a in _attributes_of(base).items()}
        methods["__hash__"] = base.__hash__  # Python takes it from a class that compares in its own way
        made = _routes.setdefault(base, RecordedMeta(base.__name__, (base,), {**methods, "_routed": True}))
    return made


def _asking(theirs: Any, ours: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (theirs if torch._C._is_torch_function_enabled() else ours)(self, *args, **kwargs)

    return method


def has_own_function(t: Any, given: tuple = ()) -> bool:
    """Has the program a say in this tensor's calls, by its class, by a mode or by what else the call is ``given``?"""
    if torch._C._len_torch_function_stack() and not torch._C._is_torch_function_all_disabled():
        return True
    if not torch._C._is_torch_function_enabled():
        return False
    cls = type(t)
    return (
        bool(strangers(given))
        or getattr(cls, "_routed", False)
        or not (cls.__torch_function__ is _disabled or cls is torch.Tensor or _core.get_handle(t) is not None)
    )


# ---- making them -----------------------------------------------------------------------------------------------------
def as_subclass(t: Any, cls: type) -> Any:
    """``t.as_subclass(cls)``: another name of ``t``, in its graph, of a class that is ``cls``."""
    if not (isinstance(cls, type) and issubclass(cls, torch.Tensor)):
        return _torch_as_subclass(torch.empty(0), cls)  # refuses, in torch's words
    with Unseen():
        return _dressed(torch.ops.aten.alias.default(t), plain_class(cls))


def of_tensor(cls: type, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``S(t)`` of a class of the program and a tensor of ours: as as_subclass. None if it is not that."""
    given = (*args, *kwargs.values())
    return as_subclass(args[0], cls) if args and len(given) == 1 and _core.get_handle(args[0]) is not None else None


def any_as_subclass(t: Any, cls: Any) -> Any:
    """As as_subclass, also for a plain ``t``: ``t.as_subclass(type(x))``, where ``x`` is ours."""
    return _torch_as_subclass(t, plain_class(cls)) if _core.get_handle(t) is None else as_subclass(t, cls)


def make_subclass(cls: type, data: torch.Tensor, require_grad: bool = False, **options: Any) -> Any:
    """``torch.Tensor._make_subclass(cls, data)`` where class or data are ours."""
    if _core.get_handle(data) is None:
        return _torch_make_subclass(plain_class(cls), data, require_grad, **options)
    with _new_leaf():
        return requiring(_dressed(data.detach(), plain_class(cls)), require_grad)


@functools.wraps(_torch_new_parameter)
def new_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    if data is None:
        data = torch.empty(0)
    if _core.get_handle(data) is not None and plain_class(type(data)) in (torch.Tensor, _Parameter):
        return as_parameter(cls, data, requires_grad)
    parameters.plain = True
    return _torch_new_parameter(cls, data, requires_grad)


def patches() -> list[Patch]:
    """(owner, name, stand-in) of what is written in Python among torch's ways to give a tensor a class."""
    # Of a class, since what `class` makes of __new__ does not say whose it is, where staticmethod() does.
    stand_in = vars(type("Parameter", (), {"__new__": new_parameter}))["__new__"]
    return [(_Parameter, "__new__", stand_in)]


def as_parameter(cls: type, data: Any, requires_grad: bool) -> Any:
    """``cls(data, requires_grad)`` for a class of parameters, and data of ours."""
    with _new_leaf():
        return requiring(twin(data.detach(), class_for(plain_class(cls), type(data)._family, False)), requires_grad)


@contextlib.contextmanager
def _new_leaf() -> Iterator[None]:
    """For what torch's C++ does below modes, classes and transforms: the program sees a new tensor only."""
    with Unseen(), NoGrad():
        if _functorch.peek_interpreter_stack() is None:
            yield
            return
        before = _functorch.get_inplace_requires_grad_allowed()
        _functorch.set_inplace_requires_grad_allowed(True)
        try:
            with torch._C._DisableFuncTorch():
                yield
        finally:
            _functorch.set_inplace_requires_grad_allowed(before)


def requiring(t: Any, requires_grad: bool) -> Any:
    """``t.requires_grad_(requires_grad)``, which modes of the program do not see, and recording hears of."""
    with Unseen():
        t.requires_grad_(requires_grad)
    if requires_grad and (handle := _core.get_handle(t)) is not None:
        handle.no_grad = False
        _core.may_require_grad(handle)
    return t


def _dressed(t: Any, plain: type) -> Any:
    """``t``, to which nobody else refers, as an object of the class that the program takes for ``plain``."""
    if issubclass(plain, _Parameter):
        return twin(t, class_for(plain, t._family, False))
    try:
        t.__class__ = class_for(plain, t._family, True)
    except TypeError:  # the class has slots itself
        return twin(t, class_for(plain, t._family, False))
    return t


def twin(t: Any, cls: Any) -> Any:
    """Another object, of a class without slot, for the C++ tensor behind ``t``."""
    if issubclass(cls, _Parameter):
        parameters.ours = True
    made = torch.Tensor._make_wrapper_subclass(cls, (0,))  # type: ignore[attr-defined]
    handle = _core.get_handle(t)
    torch._C._swap_tensor_impl(made, t)
    _core.adopt(made, handle)
    return made


# ---- what a program has put on a tensor ------------------------------------------------------------------------------
_OURS = frozenset({"_handle", "_is_param"})


def own_state(t: torch.Tensor) -> Any:
    """The state of the program's own that goes with a copy: attributes, or what its ``__getstate__`` says."""
    state = torch._utils._get_obj_state(t)
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # (attributes, slots)
        kept = (
            {k: v for k, v in (state[0] or {}).items() if k not in _OURS},
            {k: v for k, v in state[1].items() if k not in _OURS},
        )
        return kept if kept[1] else kept[0]
    return {k: v for k, v in state.items() if k not in _OURS} if isinstance(state, dict) else state


def as_saved(t: Any, value: torch.Tensor) -> Any:
    """``value``, a plain tensor, with class, attributes and requires_grad of ``t``."""
    plain, state = plain_class(type(t)), own_state(t)
    value.requires_grad_(t.requires_grad)
    if issubclass(plain, _Parameter) or isinstance(t, _Parameter):
        value = _torch_make_subclass(plain if issubclass(plain, _Parameter) else _Parameter, value, t.requires_grad)
    elif plain is not torch.Tensor:
        value = value.as_subclass(plain)
    return set_state(value, state)


def set_state(t: Any, state: Any) -> Any:
    """Give ``t`` what own_state() told of another tensor."""
    if not state:
        return t
    if getattr(type(t), "__setstate__", torch.Tensor.__setstate__) is not torch.Tensor.__setstate__:  # type: ignore[attr-defined]
        t.__setstate__(state)
        return t
    return torch._utils._set_obj_state(t, state)
