"""The execution phase of every op: forward, backward, optimizer or other; prefill and decode.

- forward: inside an outermost module call; also, in grad mode, after such a call until the next backward or optimizer
  step, because that is where the loss is computed (a profile leaves out stretches of milliseconds without an op).
- backward: while autograd's engine runs, whatever it calls (hooks, and forward code run again by checkpointing).
- optimizer: inside ``Optimizer.step`` of any optimizer, the user's own included, and those that stand around another
  one and never call ``Optimizer.__init__``, which is where torch hooks steps; but not inside the closure that it calls,
  where phases are as outside of a step.
- data: while a DataLoader makes the next batch in this process, or waits for it; modules called there (a dataset's
  transforms) are no calls of a model.
- other: the rest (sampling, ``zero_grad``).
- prefill, decode: what would be forward or other within ``stage("prefill")``; where nobody announces it, calls that
  `generation.py` finds to be such.

A step that raises has ended, too: torch calls no hook then, so its function for steps is wrapped.
"""

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from mindtorch._ext import context
from mindtorch.base.patching import Patches
from mindtorch.engine.record import handlers, unwrapping

_torch_next: Callable[..., Any] | None = None
_held = Patches(yields=True)
_optimizers: dict[int, "weakref.ref[torch.optim.Optimizer]"] = {}  # those that stepped, by address
_constructed: dict[int, "weakref.ref[torch.optim.Optimizer]"] = {}  # all of torch's, stepped or not
_twice = 0  # backward passes so far that kept a graph of their own
#: Called with each optimizer that was not met yet, before its first step.
listeners: list[Callable[[torch.optim.Optimizer], None]] = []
#: Called before autograd's engine runs; when a pass of its, within no other, has ended; when an optimizer's step has.
before_backward: list[Callable[[], None]] = []
after_backward: list[Callable[[], None]] = []
after_step: list[Callable[[], None]] = []
_steps: "weakref.WeakKeyDictionary[type, Any]" = weakref.WeakKeyDictionary()  # torch's function for steps, by class
_unhooked: "weakref.WeakKeyDictionary[type, Any]" = weakref.WeakKeyDictionary()  # steps that torch has not hooked
_stepping: dict[tuple[int, int], int] = {}  # (thread, optimizer) of those that run: how many steps within each other
#: What steps are handed in place of closures, by address of the closure: it holds that, and is the same one as long as
#: an optimizer keeps it.
_closures: "weakref.WeakValueDictionary[int, Callable[..., Any]]" = weakref.WeakValueDictionary()
_DATA, _OPTIMIZER = map(context.PHASES.index, ("data", "optimizer"))
# torch.autograd imported the function by name, so it has a copy of its own.
_places = (torch.autograd.graph, torch.autograd)


def patch() -> None:
    global _torch_next
    original = torch.autograd.graph._engine_run_backward
    context.set_run_backward(original, _begin_backward, _end_backward, after_backward)
    _held.put(
        (place, "_engine_run_backward", context.tracked_backward)
        for place in _places if place._engine_run_backward is original  # type: ignore[attr-defined]
    )  # fmt: skip
    _held.put(
        [
            (torch.autograd.Function, "apply", classmethod(_apply)),
            (torch.optim.Optimizer, "_patch_step_function", _hook_steps),
            (torch.optim.Optimizer, "__init_subclass__", classmethod(_new_kind)),
        ]
    )
    for kind in _kinds(torch.optim.Optimizer):
        _wrap_step(kind)
    _torch_next = getattr(_LOADERS, "__next__", None)
    if _torch_next is not None:
        made = functools.wraps(_LOADERS.__init__)(context.followed(_LOADERS.__init__, _made))
        _held.put([(_LOADERS, "__next__", functools.wraps(_torch_next)(_next)), (_LOADERS, "__init__", made)])
    _held.after(register_optimizer_step_pre_hook(_begin).remove)
    _held.after(register_optimizer_step_post_hook(_end).remove)


def _begin_backward(outputs: Any, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
    """Before autograd's engine runs: whether what it finds is differentiated itself, and what it is to run within.

    Hooks and what checkpoints compute again see tensors of ours as they do torch's: on the way here, `backward` has
    switched off what classes say of calls.
    """
    global _twice
    for call in before_backward:
        call()
    keeps_graph = bool(args[2] if len(args) > 2 else kwargs.get("create_graph", False))
    _twice += keeps_graph
    asked = torch._C._is_torch_function_enabled() or torch._C._is_torch_function_all_disabled()
    within = None if asked else torch._C._EnableTorchFunction()  # type: ignore[attr-defined]
    return keeps_graph and unwrapping.differentiates(outputs), within


def _end_backward(found: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Zero gradients that C++ made itself are lazy tensors where the input is one; those that were accumulated in
    leaves: see handlers.py."""
    inputs = args[3] if len(args) > 3 else kwargs.get("inputs", ())
    return tuple(
        handlers.lazy_gradient(target, gradient)
        if isinstance(target, torch.Tensor) and isinstance(gradient, torch.Tensor) else gradient
        for target, gradient in zip(inputs, found, strict=True)
    )  # fmt: skip


#: What torch's own iterators of DataLoaders, and those made from them, are. Without it data loading is phase "other".
_LOADERS: Any = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)


class _WatchesLoaders(Protocol):
    """Told that a loader's iterator was made, and that one was asked for a batch, or for the end."""

    def made(self, iterator: Any, loader: Any) -> None: ...

    def asked(self, iterator: Any, began: int, is_last: bool) -> None: ...


watchers: list[_WatchesLoaders] = []


def _made(self: Any, loader: Any) -> None:
    for watcher in list(watchers):
        watcher.made(self, loader)


def _next(self: Any) -> Any:
    """torch's own, in phase "data"."""
    previous, began, is_last = context.enter_stage(_DATA), time.perf_counter_ns(), False
    try:
        return _torch_next(self)  # type: ignore[misc]
    except StopIteration:
        is_last = True
        raise
    finally:
        context.enter_stage(previous)
        for watcher in list(watchers):
            watcher.asked(self, began, is_last)


def twice() -> int:
    """How many backward passes began until now that are to be differentiated themselves (``create_graph``)."""
    return _twice


_torch_hook_steps = torch.optim.Optimizer._patch_step_function


def _kinds(kind: type[torch.optim.Optimizer]) -> set[type[torch.optim.Optimizer]]:
    found = {kind}
    for below in kind.__subclasses__():
        found |= _kinds(below)
    return found


def _new_kind(kind: Any, **options: Any) -> None:
    super(torch.optim.Optimizer, kind).__init_subclass__(**options)
    _wrap_step(kind)


@functools.wraps(_torch_hook_steps)
def _hook_steps(self: torch.optim.Optimizer) -> None:
    """torch's own, which makes the classes' steps call hooks; and end when they raise."""
    key = id(self)
    _constructed[key] = weakref.ref(self, lambda _: _constructed.pop(key, None))
    for kind in type(self).__mro__:
        _put_back(kind, _unhooked)
    _torch_hook_steps(self)
    for kind in type(self).__mro__:
        _wrap_step(kind)


def _wrap_step(kind: Any) -> None:
    step, held = vars(kind).get("step"), _steps.get(kind)
    # Held, and another one there: an estimate has ended, which had put its own in the place of the class's.
    if not callable(step) or (held is not None and getattr(step, "__wrapped__", None) is held):
        return
    if getattr(step, "hooked", False):
        _steps[kind] = step
        kind.step = _ending(step)
    # torch's own all come to Optimizer.__init__.
    elif kind not in _unhooked and issubclass(kind, torch.optim.Optimizer) and not kind.__module__.startswith("torch."):
        _unhooked[kind] = step
        kind.step = _phased(step)


def _ending(step: Any) -> Callable[..., Any]:
    @functools.wraps(step)
    def ending(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except BaseException:
            if args:
                _over(args[0])
            raise

    return ending


def _phased(step: Any) -> Callable[..., Any]:
    """What torch's hooks would do for it, of an optimizer whose class they never come to."""

    @functools.wraps(step)
    def phased(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            given, kwargs = _begin(self, (self, *args), kwargs) or ((self, *args), kwargs)
            found = step(*given, **kwargs)
        except BaseException:
            _over(self)
            raise
        _end(self, args, kwargs)
        return found

    return phased


def _put_back(kind: Any, held: "weakref.WeakKeyDictionary[type, Any]") -> None:
    step = held.pop(kind, None)
    if step is not None and getattr(vars(kind).get("step"), "__wrapped__", None) is step:  # else the program has
        kind.step = step  # replaced it


_torch_apply = vars(torch.autograd.Function)["apply"]


# A classmethod until torch 2.13, a descriptor in C from 2.14 on: what both are asked is to bind themselves.
@functools.wraps(getattr(_torch_apply, "__func__", _torch_apply))
def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's own; what a custom function returns may have got a gradient's history just now."""
    out = _torch_apply.__get__(None, cls)(*args, **kwargs)
    handlers.may_have_history(out)
    return out


def unpatch() -> None:
    _held.undo()
    for held in _steps, _unhooked:
        for ref in held.keyrefs():  # a list: other threads may make classes meanwhile
            if (kind := ref()) is not None:
                _put_back(kind, held)
    _optimizers.clear()
    _constructed.clear()


def optimizers() -> list[torch.optim.Optimizer]:
    """Those that stepped and are alive."""
    return [optimizer for ref in list(_optimizers.values()) if (optimizer := ref()) is not None]


def constructed() -> list[torch.optim.Optimizer]:
    """Those that were made while steps were hooked and are alive, whether they have stepped or not."""
    return [optimizer for ref in list(_constructed.values()) if (optimizer := ref()) is not None]


def stepper(number: int) -> torch.optim.Optimizer | None:
    """The one that a mark of a step names; None if it is gone, or none as torch has them."""
    ref = _optimizers.get(number)
    return None if ref is None else ref()


def used(optimizer: torch.optim.Optimizer) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(the parameters that an optimizer steps, the tensors of its state)"""
    stepped = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.Tensor)]
    state: list[torch.Tensor] = []
    todo: list[object] = list(optimizer.state.values())
    while todo:
        value = todo.pop()
        if isinstance(value, torch.Tensor):
            state.append(value)
        elif isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, (list, tuple)):
            todo.extend(value)
    return stepped, state


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Outermost module calls in the block, and what happens between them, are in phase ``name``: prefill or decode."""
    previous = context.enter_stage(context.PHASES.index(name))
    try:
        yield
    finally:
        context.enter_stage(previous)


def _begin(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    key = id(optimizer)
    running = threading.get_ident(), key
    if running in _stepping and context.get_phase() == _OPTIMIZER:  # a derived class's step, which calls its base's
        _stepping[running] += 1
    else:
        _stepping[running] = 1
        context.optimizer_begin(optimizer)
    if key not in _optimizers and hasattr(optimizer, "param_groups") and hasattr(optimizer, "state"):
        _optimizers[key] = weakref.ref(optimizer, lambda _: _optimizers.pop(key, None))
        for listener in list(listeners):
            listener(optimizer)
    if len(args) > 1 and _is_closure(args[1]):
        return (args[0], _in_phases(args[1]), *args[2:]), kwargs
    if _is_closure(kwargs.get("closure")):
        return args, {**kwargs, "closure": _in_phases(kwargs["closure"])}
    return None


def _is_closure(given: Any) -> bool:
    """And neither a class nor a model, which a user's optimizer may take."""
    return callable(given) and not isinstance(given, (type, torch.nn.Module))


def _in_phases(closure: Callable[..., Any]) -> Callable[..., Any]:
    if (known := _closures.get(id(closure))) is not None:
        return known

    @functools.wraps(closure)
    def called(*args: Any, **kwargs: Any) -> Any:
        return context.call_closure(closure, args, kwargs)

    _closures[id(closure)] = called
    return called


def _end(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    running = threading.get_ident(), id(optimizer)
    if _stepping.get(running, 1) > 1:
        _stepping[running] -= 1
        return
    _over(optimizer)
    for call in after_step:
        call()


def _over(optimizer: torch.optim.Optimizer) -> None:
    """All its steps that this thread is in are over."""
    _stepping.pop((threading.get_ident(), id(optimizer)), None)
    context.optimizer_end(optimizer)
