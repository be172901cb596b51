"""The slower ways in the place of names that a release of torch does not have: see `torch_facts`.

Each does what torch's own does, by other means of torch's: documented ones where there are such. One fact is missing at
a time, or few: a way may rest on the others.

One file: a list of ways, each a few lines.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

_c: Any = torch._C
_state = threading.local()


class Made(NamedTuple):
    """What stands in is found when it is needed."""

    make: Callable[[], Any]


def way(name: str) -> Any:
    """What stands in: something of this module, or ``refuse WHAT``."""
    verb, _, what = name.partition(" ")
    if what:
        return refusing(what)
    found = globals()[verb]
    return found.make() if isinstance(found, Made) else found


class Nothing:
    """In the place of a class that is gone: nothing is an instance of it."""


class NoJagged(Nothing):
    """The same, of jagged tensors, whose methods are replaced."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def refusing(what: str) -> Callable[..., Any]:
    """In the place of a function that nothing else can do: an error that says so."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"{what}: expected a torch release that mindtorch knows, got {torch.__version__}")

    return refuse


def as_it_is(*_args: Any, **_kwargs: Any) -> Any:
    """In the place of a function or context that only refines: nothing is done."""
    return contextlib.nullcontext()


def invariants_checked() -> bool:
    """`_check_sparse_tensor_invariants`."""
    return bool(torch.sparse.check_sparse_tensor_invariants.is_enabled())


def no(*_args: Any) -> bool:
    return False


def zero() -> int:
    return 0


none_early = zero


def no_level(_t: Any) -> int:
    return -1


def no_node() -> None:
    """There is no node of autograd's running, as far as anybody knows."""


def task_unknown() -> int:
    return -1


def no_functions() -> set[Any]:
    return set()


# ---- modes -----------------------------------------------------------------------------------------------------------
def count_function_modes() -> int:
    """`_len_torch_function_stack`: they are taken off and put back."""
    return len(_taken_off())


def function_mode_at(index: int) -> Any:
    """`_get_function_stack_at`."""
    return _taken_off()[index]


def function_modes() -> list[Any]:
    """`overrides._get_current_function_mode_stack`, the outermost first."""
    if "_get_function_stack_at" in vars(_c) and _c._get_function_stack_at is not function_mode_at:
        return [_c._get_function_stack_at(i) for i in range(_c._len_torch_function_stack())]
    return _taken_off()


def _taken_off() -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(_c._pop_torch_function_stack())
        except RuntimeError:  # there are no more
            break
    found.reverse()
    for mode in found:
        _c._push_on_torch_function_stack(mode)
    return found


class _Any(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def modes_unseen() -> bool:
    """`_is_torch_function_all_disabled`: would a mode see a call?"""
    _c._push_on_torch_function_stack(_Any())
    try:
        return not overrides.has_torch_function((1,))
    finally:
        _c._pop_torch_function_stack()


class _Asked(torch.Tensor):
    """A class that wants to know of calls."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


#: Made here, since a profile would count what makes it.
_asked = torch.Tensor._make_subclass(_Asked, torch.empty(0, device="cpu"))  # type: ignore[attr-defined]


def functions_seen() -> bool:
    """`_is_torch_function_enabled`: would a class see a call?"""
    modes = _taken_off()
    for _ in modes:
        _c._pop_torch_function_stack()
    try:
        return overrides.has_torch_function((_asked,))
    finally:
        for mode in modes:
            _c._push_on_torch_function_stack(mode)


class _Guard:
    """A context manager that is entered once."""

    def __enter__(self) -> None:
        self._held = contextlib.ExitStack()
        self._begin(self._held)

    def __exit__(self, *_: Any) -> None:
        self._held.close()

    def _begin(self, held: contextlib.ExitStack) -> None:
        raise NotImplementedError


def _with_state(held: contextlib.ExitStack, name: str) -> None:
    before = _c._get_torch_function_state()
    if before != _c._TorchFunctionState.ALL_DISABLED:
        _c._set_torch_function_state(getattr(_c._TorchFunctionState, name))
    held.callback(_c._set_torch_function_state, before)


class NoFunctions(_Guard):
    """`DisableTorchFunction`: neither modes nor classes see functions."""

    def _begin(self, held: contextlib.ExitStack) -> None:
        _with_state(held, "ALL_DISABLED")


class NoSubclasses(_Guard):
    """`DisableTorchFunctionSubclass`: classes do not see functions."""

    def _begin(self, held: contextlib.ExitStack) -> None:
        _with_state(held, "SUBCLASSES_DISABLED")


class NoDispatch(_Guard):
    """`_DisableTorchDispatch`: classes do not see kernels."""

    def _begin(self, held: contextlib.ExitStack) -> None:
        keys = _c.DispatchKeySet(_c.DispatchKey.Python) | _c.DispatchKeySet(_c.DispatchKey.PythonTLSSnapshot)
        held.enter_context(_c._ExcludeDispatchKeyGuard(keys))


def dispatch_modes() -> list[Any]:
    """`_get_current_dispatch_mode_stack`, the outermost first."""
    return [_c._get_dispatch_stack_at(i) for i in range(_c._len_torch_dispatch_stack())]


def count_dispatch_modes() -> int:
    """`_len_torch_dispatch_stack`: as many as can be named."""
    count = 0
    while True:
        try:
            _c._get_dispatch_stack_at(count)
        except RuntimeError:
            return count
        count += 1


def enter_dispatch_mode(mode: Any) -> None:
    _python_dispatch._push_mode(mode)


def leave_dispatch_mode(*_key: Any) -> Any:
    return _python_dispatch._pop_mode()


def push_mode(mode: Any) -> None:
    _c._push_on_torch_dispatch_stack(mode)


def pop_mode(*_key: Any) -> Any:
    return _c._pop_torch_dispatch_stack(None)


@contextlib.contextmanager
def no_modes() -> Iterator[Any]:
    """`_disable_current_modes`."""
    modes = [_c._pop_torch_dispatch_stack(None) for _ in range(_c._len_torch_dispatch_stack())]
    try:
        yield modes
    finally:
        for mode in reversed(modes):
            _c._push_on_torch_dispatch_stack(mode)


def is_wrapper(t: Any) -> bool:
    """`is_traceable_wrapper_subclass`."""
    return (
        isinstance(t, torch.Tensor)
        and type(t) is not torch.Tensor
        and hasattr(t, "__tensor_flatten__")
        and hasattr(t, "__tensor_unflatten__")
    )


# ---- autocast, gradients ---------------------------------------------------------------------------------------------
_AUTOCAST = ("cpu", "cuda", "xpu", "hpu", "mps", "mtia", "xla", "ipu")


def _autocast_on() -> list[str]:
    return [kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)]


def any_autocast() -> bool:
    """`_is_any_autocast_enabled`."""
    return bool(_autocast_on())


class NoAutocast(_Guard):
    """`_DisableAutocast`."""

    def _begin(self, held: contextlib.ExitStack) -> None:
        for kind in _autocast_on():
            held.callback(torch.set_autocast_enabled, kind, True)
            torch.set_autocast_enabled(kind, False)


def set_grad(on: bool) -> None:
    """`_set_grad_enabled`."""
    torch.set_grad_enabled(on)


# ---- torch.func ------------------------------------------------------------------------------------------------------
def transform_level() -> int | None:
    """`peek_interpreter_stack`, as far as it is asked whether there is one."""
    level: int | None = _c._functorch.maybe_current_level()
    return level


def is_transformed(t: Any) -> bool:
    """`is_functorch_wrapped_tensor`."""
    level = _c._functorch.maybe_get_level(t)
    return level is not None and level != -1


class NoTransforms(_Guard):
    """`_DisableFuncTorch`."""

    def _begin(self, held: contextlib.ExitStack) -> None:
        from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

        held.enter_context(temporarily_clear_interpreter_stack())


# ---- the dispatcher --------------------------------------------------------------------------------------------------
class Keys:
    """`DispatchKey`: keys by their names."""

    def __getattr__(self, name: str) -> Any:
        return _c._parse_dispatch_key(name)


def key_of(name: str) -> Any:
    """`_parse_dispatch_key`."""
    return getattr(_c.DispatchKey, name, None)


class NoKeys:
    """In the place of a set of dispatch keys, and of the question for one."""

    def has(self, _key: Any) -> bool:
        return False

    def remove(self, _key: Any) -> NoKeys:
        return self


def keys_of(_t: Any) -> NoKeys:
    return NoKeys()


def _key(key: Any) -> Any:
    return _c._parse_dispatch_key(key) if isinstance(key, str) else key


def is_excluded(key: Any) -> bool:
    """`_dispatch_tls_is_dispatch_key_excluded`."""
    return bool(_c._dispatch_tls_local_exclude_set().has(_key(key)))


def set_excluded(key: Any, on: bool) -> None:
    """`_dispatch_tls_set_dispatch_key_excluded`. What others excluded stays so."""
    guards: dict[str, Any] = _state.__dict__.setdefault("guards", {})
    name = str(key)
    if on and name not in guards and not is_excluded(key):
        guards[name] = _c._ExcludeDispatchKeyGuard(_c.DispatchKeySet(_key(key)))
        guards[name].__enter__()
    elif not on and name in guards:
        guards.pop(name).__exit__(None, None, None)


def has_kernel(name: str) -> bool:
    """`_dispatch_has_kernel`: does anything of the dispatcher's run it?"""
    return bool(re.search(r"^\w+(\[alias\])?: ", _text(_c._dispatch_dump, name), re.MULTILINE))


def has_kernel_for(name: str, key: Any) -> bool:
    """`_dispatch_has_kernel_for_dispatch_key`."""
    return bool(re.search(rf"^{_named(key)}(\[alias\])?: ", _text(_c._dispatch_dump, name), re.MULTILINE))


def has_computed_kernel_for(name: str, key: Any) -> bool:
    """`_dispatch_has_computed_kernel_for_dispatch_key`."""
    return bool(re.search(rf"^{_named(key)}: ", _text(_c._dispatch_dump_table, name), re.MULTILINE))


def _named(key: Any) -> str:
    return re.escape(str(getattr(key, "name", key)))


def _text(dump: Callable[[str], str], name: str) -> str:
    try:
        return dump(name)
    except RuntimeError:  # there is no such operator
        return ""


def schemas_of(qualified: str) -> list[str]:
    """`_jit_get_schemas_for_operator`, as far as it is asked whether there are any."""
    namespace, _, name = qualified.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return [] if packet is None else packet.overloads()


# ---- tensors ---------------------------------------------------------------------------------------------------------
def text_of_values(t: torch.Tensor, indent: int = 0) -> str:
    """`_tensor_str._tensor_str`: what torch prints of a plain tensor, without what is around it."""
    text = repr(t.detach().resolve_conj().resolve_neg())
    start = text.index("(") + 1
    depth = 0
    for i, character in enumerate(text[start:], start):
        depth += (character == "[") - (character == "]")
        if depth == 0 and character in "],":
            text = text[: i + (character == "]")]
            break
    body = text[start:].removesuffix(")").replace("\n" + " " * start, "\n" + " " * indent)
    return body


def with_suffixes(text: str, suffixes: list[str], indent: int, force_newline: bool = False) -> str:
    """`_tensor_str._add_suffixes`."""
    return ", ".join([text, *suffixes]) + ")"


def state_of(obj: Any) -> Any:
    """`_utils._get_obj_state`."""
    return obj.__getstate__() if hasattr(obj, "__getstate__") else dict(obj.__dict__)


def set_state(obj: Any, state: Any) -> Any:
    """`_utils._set_obj_state`."""
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    obj.__dict__.update(attributes or {})
    for name, value in (slots or {}).items():
        setattr(obj, name, value)
    return obj


def is_dense(t: torch.Tensor) -> bool:
    """`_prims_common.is_non_overlapping_and_dense_or_false`."""
    expected = 1
    for stride, size in sorted((st, n) for st, n in zip(t.stride(), t.shape, strict=True) if n != 1):
        if stride != expected:
            return t.numel() == 0
        expected *= size
    return t.layout is torch.strided


def memory_format(t: torch.Tensor) -> torch.memory_format:
    """`_prims_common.suggest_memory_format`."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(t.dim())
    contiguous = t.is_contiguous()
    return (
        last if last is not None and not contiguous and t.is_contiguous(memory_format=last) else torch.contiguous_format
    )


# ---- what torch has under another name -------------------------------------------------------------------------------
inference_mode = torch.inference_mode
tensor_base = Made(lambda: torch.Tensor.__mro__[1])
storage_base = Made(lambda: torch.UntypedStorage.__mro__[1])
functions = Made(lambda: getattr(torch._VF, "vf", torch))
function_impl = Made(lambda: torch.nn.Parameter.__torch_function__)
dispatch_impl = Made(lambda: torch.Tensor.__torch_dispatch__)
parameter_meta = type(torch.nn.Parameter)
overload_class = Made(lambda: type(torch.ops.aten.add.Tensor))
packet_class = Made(lambda: type(torch.ops.aten.add))
backward_of_graph = Made(lambda: torch.autograd.graph._engine_run_backward)  # type: ignore[attr-defined]
backward_of_autograd = Made(lambda: vars(torch.autograd).get("_engine_run_backward", refusing("backward")))
keys = Made(Keys)
no_level_of_ad = 0  # which is one: a call takes the way on which gradients of any kind are right
empty_list = Made(list)
empty_tuple = ()
empty_dict = Made(dict)
