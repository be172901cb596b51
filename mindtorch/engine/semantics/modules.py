"""The module path of every op, without hooks on any module.

``torch.nn.Module.__call__`` is replaced by a function that runs in C (`_ext.context.track_calls`), and so is the
``__call__`` of each class of modules that has its own, which need not call torch's (`_ClassCalls`). A path is the class
name of a model, then attribute names: ``GPT2.h.0.attn``. The model is what a module called while none runs belongs to:
the outermost one that holds it, whether that is ever called or not (`owners`), or the module itself, until a model that
holds it is called. A child is named by the module that calls it; if it is held further out (a shared embedding), by
that holder; if no running module holds it when it is first called, by its class in parentheses, until its caller does.
What the constructor of a module calls is construction, and has no path: nobody holds it yet. Where somebody listens, a
module runs, too, whose ``forward`` is called by that name (`_ext.named_forwards`).
Models of one class have paths of their own, of the same name; a new one takes over that of one that is gone (see
`_model_path`). A generator returned by ``forward`` runs under its consumer's path.

Backward work belongs to the module whose forward made the autograd node, gradient accumulation to the module that
owns the parameter; nodes that a pass with ``create_graph=True`` makes, to the module whose node it passes. A known
limit: nodes made by a thread that itself runs no backward are looked up in the log of the thread that does.
"""

import functools
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from mindtorch._ext import context, named_forwards, paths
from mindtorch.base import torch_facts
from mindtorch.base.patching import Patch, Patches
from mindtorch.engine.semantics import owners
from mindtorch.engine.semantics.owners import first_parameter, named_modules

log = logging.getLogger(__name__)

_original: Callable[..., Any] | None = None
_replacement: Callable[..., Any] | None = None
_held = Patches(yields=True)
_roots: list[tuple["weakref.ref[torch.nn.Module]", int]] = []
_owners: dict[int, tuple["weakref.ref[torch.Tensor]", int]] = {}
_misses = 0
_listeners: list[Callable[[torch.nn.Module, int], None]] = []

#: So many models of one class are told apart though they are gone, while somebody listens; and so many at all.
MOST_GONE, MOST_APART = 16, 256


class _Instance(NamedTuple):
    """A model, its path, how often listeners had come when it was met, and its first parameter, if one listened."""

    ref: "weakref.ref[torch.nn.Module]"
    path: int
    audience: int
    first: "weakref.ref[torch.Tensor] | None"


_instances: dict[str, list[_Instance]] = {}
#: Models that another model was seen to hold after they had been called by themselves, by address; each once, so that a
#: wrapper that is made anew in each call costs nothing.
_within: dict[int, "weakref.ref[torch.nn.Module]"] = {}
_audience = 0


def patch() -> None:
    """Put a tracking function in the place of ``torch.nn.Module.__call__``."""
    global _original, _replacement
    original = torch.nn.Module.__call__

    @functools.wraps(original)
    def __call__(*args: Any, **kwargs: Any) -> Any:
        return context.tracked_call(*args, **kwargs)

    __call__._torchdynamo_inline = original  # type: ignore[attr-defined]  # what torch.compile traces instead
    context.track_calls(__call__, original)
    named_forwards.configure(torch.nn.Module, getattr(original, "__code__", None))
    _original, _replacement = original, __call__
    _held.put([(torch.nn.Module, "__call__", __call__)])
    _tell_dynamo(original, __call__)
    _held.put_when_loaded("torch._dynamo.trace_rules", _leave_ours_alone)
    _class_calls.patch()


def unpatch() -> None:
    """Put torch's own function back, unless other code has wrapped ours in the meantime."""
    if (torch.nn.Module, "__call__") in _held and torch.nn.Module.__call__ is not _replacement:
        log.warning("torch.nn.Module.__call__ was replaced by other code; module tracking stays underneath it")
    _held.undo()
    _tell_dynamo(_replacement, _original)
    _class_calls.unpatch()
    _roots.clear()
    _within.clear()
    _owners.clear()
    owners.forget()
    paths.forget()


class _ClassCalls:
    """Those that classes of modules have of their own: of all there are, and of each class when it is made."""

    def __init__(self) -> None:
        self._replaced: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()  # what there was, by class

    def patch(self) -> None:
        @classmethod  # type: ignore[misc]
        def __init_subclass__(kind: Any, **options: Any) -> None:
            super(torch.nn.Module, kind).__init_subclass__(**options)
            self._replace(kind)

        if "__init_subclass__" not in vars(torch.nn.Module):
            _held.put([(torch.nn.Module, "__init_subclass__", __init_subclass__)])
        todo, seen = [torch.nn.Module], {torch.nn.Module}
        for kind in todo:
            new = [below for below in type.__subclasses__(kind) if below not in seen]
            todo += new
            seen.update(new)
            self._replace(kind)

    def unpatch(self) -> None:
        while self._replaced:
            kind, original = self._replaced.popitem()
            if getattr(vars(kind).get("__call__"), "__wrapped__", None) is original:  # else the program has replaced it
                type.__setattr__(kind, "__call__", original)

    def _replace(self, kind: type) -> None:
        for code in _constructors(kind):
            context.constructs(code)
        for holder in kind.__mro__[: kind.__mro__.index(torch.nn.Module)]:  # what is mixed in, too
            original = vars(holder).get("__call__")
            if isinstance(original, FunctionType) and holder not in self._replaced:
                self._replaced[holder] = original
                type.__setattr__(holder, "__call__", self._tracking(original))

    @staticmethod
    def _tracking(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(*args: Any, **kwargs: Any) -> Any:
            return context.tracked_own_call(original, *args, **kwargs)

        __call__._torchdynamo_inline = original  # type: ignore[attr-defined]
        context.track_own_calls(__call__)
        return __call__


def _constructors(kind: type) -> Iterator[CodeType]:
    """The code of the class's own ``__init__``, also under a decorator's."""
    init = vars(kind).get("__init__")
    while isinstance(init, FunctionType):
        if init.__code__.co_name == "__init__":
            yield init.__code__
        init = vars(init).get("__wrapped__")


_class_calls = _ClassCalls()


def _leave_ours_alone(trace_rules: Any) -> list[Patch]:
    torch_facts.leave_ours_alone(trace_rules)
    return []


def _tell_dynamo(old: Any, new: Any) -> None:
    """Dynamo inlines ``forward`` only where ``__call__`` is the one it knows; let it know ours, and forget it again."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        known = sys.modules.get(name)
        if known is not None and getattr(known, "unpatched_nn_module_call", None) is old:
            known.unpatched_nn_module_call = new  # type: ignore[attr-defined]


def add_listener(listener: Callable[[torch.nn.Module, int], None]) -> None:
    """Call ``listener(model, path_id)`` for each model when it, or a module in it, is first called."""
    global _audience
    _audience += 1
    owners.forget()
    _listeners.append(listener)
    named_forwards.want(True)


def remove_listener(listener: Callable[[torch.nn.Module, int], None]) -> None:
    _listeners.remove(listener)
    named_forwards.want(False)


def roots() -> list[tuple[torch.nn.Module, int]]:
    """The models seen that are still alive, with their path ids, in order of first call."""
    alive = [(ref(), path) for ref, path in _roots]
    return [(module, path) for module, path in alive if module is not None]


def is_alone(module: torch.nn.Module) -> None:
    """Say that nobody holds the module, so that no holder is searched for when it is called."""
    _model_path(module)


def outermost_path(module: torch.nn.Module) -> int:
    """Path of a module that is called while none runs: within the model that it belongs to."""
    name = context.class_name(module)
    if any(instance.ref() is module for instance in _instances.get(name, ())) and not _is_within(module):
        return _model_path(module)
    model, steps = owners.of(module, sorted((known for known, _ in roots() if known is not module), key=_is_within))
    path, holder = _model_path(model), model
    for step in steps:
        holder = holder._modules[step]  # type: ignore[assignment]
        path = context.intern_path(path, step, context.class_name(holder))
    return path


def _is_within(module: torch.nn.Module) -> bool:
    """Was it called before there was the model that holds it?"""
    return id(module) in _within and _within[id(module)]() is module


def _take_in(model: torch.nn.Module) -> None:
    """From now on, what it holds of the models that were met before is part of it."""
    met = {id(module) for module, _ in roots() if module is not model and not _is_within(module)}
    todo, seen, taken = [model] if met else [], {id(model)}, False
    for holder in todo:  # grows while it is read
        for module in list(holder._modules.values()):
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                todo.append(module)
                if id(module) in met:
                    _within[id(module)] = weakref.ref(module)
                    taken = True
    if taken:
        paths.forget()


def _model_path(module: torch.nn.Module) -> int:
    """Path of a model.

    What a model leaves behind is taken over by the next one of its class, or there would be ever more paths in
    programs that make their loss function anew each time. But models that come one after the other while somebody
    listens are told apart, if they have parameters, not the same ones (a library's wrapper around the program's model,
    made anew in each call), and are few.
    """
    name = context.class_name(module)
    known = _instances.setdefault(name, [])
    for instance in known:
        if instance.ref() is module:
            return instance.path
    try:
        ref = weakref.ref(module)
    except TypeError:  # a class without weak references
        return context.intern_path(0, name, name)
    first = first_parameter(module) if _listeners else None
    first_ref = None if first is None else weakref.ref(first)
    listened = sum(instance.audience == _audience for instance in known)
    for i, instance in enumerate(known):
        other = instance.first is None or instance.first() is not first
        apart = first is not None and other and instance.audience == _audience and listened < MOST_GONE
        if instance.ref() is None and not apart:
            known[i] = _Instance(ref, instance.path, _audience, first_ref)
            return instance.path
    if len(known) >= MOST_APART:
        return known[-1].path
    path = context.new_path(0, name, name) if known else context.intern_path(0, name, name)
    known.append(_Instance(ref, path, _audience, first_ref))
    return path


def saw_root(module: torch.nn.Module, path: int) -> None:
    """A module of that path is called while none runs, for the first time: listeners hear of its model."""
    global _misses
    top = context.path_root(path)
    if top != path:
        models = [instance.ref() for instance in _instances[context.path_name(top)] if instance.path == top]
        module, path = next(model for model in models if model is not None), top
    if any(ref() is module for ref, _ in _roots):
        return
    _take_in(module)
    if len(_roots) % 64 == 63:
        _roots[:] = [entry for entry in _roots if entry[0]() is not None]
    _roots.append((weakref.ref(module), path))
    if first_parameter(module) is not None:
        _misses = 0  # there are parameters to be found again
    for listener in list(_listeners):
        listener(module, path)


def recomputed_path(module: torch.nn.Module, near: int) -> int:
    """Path of a module that checkpointing calls again, for an autograd node made in the module of path `near`.

    Looked for among the modules that led to `near`, then under them, the innermost first; 0 when it is nowhere there.
    """
    ids = [near]
    while parent := context.path_parent(ids[-1]):
        ids.append(parent)
    for root, path in roots():
        if path != ids[-1]:
            continue
        holders = [(root, path)]
        for id in reversed(ids[:-1]):
            below = holders[-1][0]._modules.get(context.path_name(id))
            if below is None:
                break
            holders.append((below, id))
        for holder, path in reversed(holders):
            if holder is module:
                return path
        for holder, path in reversed(holders):
            for name, candidate in named_modules(holder):
                if candidate is module:
                    for step in name.split("."):
                        holder = holder._modules[step]
                        path = context.intern_path(path, step, context.class_name(holder))
                    return path
    return 0


def held_now(table: Any) -> list[tuple[str, Any]]:
    """Name and value of what is in ``_modules``, ``_parameters`` or ``_buffers``, as it is now: another thread may put
    more there. TorchScript's modules have tables of their own, which give a list."""
    return list((table.copy() if isinstance(table, dict) else table).items())


def walk(module: torch.nn.Module, path: int) -> list[tuple[torch.nn.Module, int]]:
    """Every module under `module`, each once, parents first, with its path id."""
    found = [(module, path)]
    seen = {id(module)}
    for parent, parent_path in found:
        for name, child in held_now(parent._modules):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append((child, context.intern_path(parent_path, name, context.class_name(child))))
    return found


def parameter_owner(tensor: torch.Tensor) -> int:
    """Path id of the module that owns a parameter (the first one, when tied); 0 when none is known."""
    global _misses
    entry = _owners.get(id(tensor))
    if entry is not None and entry[0]() is tensor:
        return entry[1]
    # A new model, or a leaf that no module owns: look again, but ever more rarely while no model comes and that
    # finds nothing.
    _misses += 1
    if _misses & (_misses - 1) == 0 or _misses % 1024 == 0:
        _index_parameters()
        entry = _owners.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            _misses = 0
            return entry[1]
    _owners[id(tensor)] = (weakref.ref(tensor), 0)
    return 0


def _index_parameters() -> None:
    _owners.clear()
    for root, path in roots():
        for module, module_path in walk(root, path):
            for parameter in list(module._parameters.values()):
                if parameter is not None:
                    _owners.setdefault(id(parameter), (weakref.ref(parameter), module_path))
