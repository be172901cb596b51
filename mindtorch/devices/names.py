"""Devices: the five types, the ``device`` value, and the thread's default device (SPEC D1-D3, D5).

torch is never imported here. When it is loaded, ``device`` compares equal to, and hashes like, its own
``torch.device``, and the default device is handed on to it as far as torch can express it.
"""

from __future__ import annotations

import functools
import operator
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch

__all__ = [
    "DEVICE_TYPES",
    "MAX_INDEX",
    "default_device_kept",
    "device",
    "get_default_device",
    "of_number",
    "register_numbered",
    "set_default_device",
]

# The number is torch's c10::DeviceType, part of torch's hash of a device. torch has one slot for foreign devices
# (PrivateUse1, 20): whichever of the two owns it, the hash is then the same as torch's; equality keeps them apart.
_TYPE_CODES = {"cpu": 0, "cuda": 1, "meta": 14, "npu": 20, "remote_accelerator": 20}
DEVICE_TYPES: tuple[str, ...] = tuple(_TYPE_CODES)
# torch keeps an index in a signed byte, and wraps what does not fit (``torch.device("cpu:255")`` is ``cpu``).
# Here an index that does not fit is refused.
MAX_INDEX = 127

_SPEC = re.compile(r"([a-z_]+)(?::(0|[1-9][0-9]*))?\Z")
_EXPECTED = f"Expected one of {', '.join(DEVICE_TYPES)}"
DeviceLike: TypeAlias = "device | torch.device | str"
_F = TypeVar("_F", bound=Callable[..., Any])


class _ArgumentError(RuntimeError, TypeError):
    """An argument of the wrong Python type: torch raises ``TypeError`` for it, SPEC D2 ``RuntimeError``."""


def _torch() -> Any:
    """The torch module when the program has (fully) imported it, else None."""
    module = sys.modules.get("torch")
    return module if module is not None and hasattr(module, "set_default_device") else None


def _is_torch_device(value: object) -> bool:
    cls = type(value)
    return cls.__name__ == "device" and cls.__module__ == "torch"


def _checked_type(name: str) -> str:
    if name not in _TYPE_CODES:
        if not name:
            raise RuntimeError(f"Device string must not be empty. {_EXPECTED}")
        raise RuntimeError(f"{_EXPECTED} device type at start of device string: {name}")
    return name


def _checked_index(index: Any, spec: str) -> int | None:
    if index is None:
        return None
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise _ArgumentError(
            f"device(): argument 'index' (position 2) must be int, not {type(index).__name__}. "
            f"{_EXPECTED} with an index from 0 to {MAX_INDEX}"
        )
    value = operator.index(index)
    if value < 0:
        raise RuntimeError(f"Device index must not be negative, got {value} for {spec!r}. {_EXPECTED}")
    if value > MAX_INDEX:
        raise RuntimeError(
            f"Device index {value} is too large, the largest is {MAX_INDEX}, in device {spec!r}. {_EXPECTED}"
        )
    return value


@functools.lru_cache(maxsize=128)
def _parse(spec: str) -> tuple[str, int | None]:
    match = _SPEC.match(spec)
    if match is None:
        head = spec.split(":", 1)[0]
        if head in _TYPE_CODES:
            raise RuntimeError(
                f"Invalid device string: {spec!r}. {_EXPECTED}, alone or followed by ':' and an index "
                f"from 0 to {MAX_INDEX} in ASCII digits without sign, space or leading zero"
            )
        return _checked_type(spec), None  # raises
    kind = match.group(1)
    if kind not in _TYPE_CODES:
        _checked_type(spec)
    digits = match.group(2)
    if digits is None:
        return kind, None
    if len(digits) > 18:  # int() of a huge digit string is quadratic, and refused by Python past 4300 digits
        raise RuntimeError(f"Could not parse device index {digits[:18]!r}... in device string. {_EXPECTED}")
    return kind, _checked_index(int(digits), spec)


class device:
    """A device: ``type`` and ``index`` (an int, or None for "the current one").

    ``device("npu:1")``, ``device("npu", 1)``, ``device(other)``, ``device(torch.device(...))``. Immutable and
    hashable; ``npu`` and ``npu:0`` are different values, as in torch. Also a context manager and a decorator that
    make it the calling thread's default device. Raises ``RuntimeError`` naming the valid types for anything else.
    """

    __slots__ = ("_hash", "_index", "_type")
    _type: str
    _index: int | None
    _hash: int

    def __new__(cls, type: Any, index: Any = None) -> device:
        if isinstance(type, str):
            if index is None:
                kind, number = _parse(type)
            else:
                if ":" in type:
                    raise RuntimeError(
                        f"type (string) must not include an index because index was passed explicitly: {type}. "
                        f"{_EXPECTED}"
                    )
                kind = _checked_type(type)
                number = _checked_index(index, type)
        elif isinstance(type, device) or _is_torch_device(type):
            if index is not None:
                raise _ArgumentError(
                    f"device(): argument 'type' (position 1) must be str when an index is given, not {type!r}. "
                    f"{_EXPECTED}"
                )
            kind = _checked_type(type.type)
            number = _checked_index(type.index, str(type))
        elif isinstance(type, int) and not isinstance(type, bool) and index is None and _torch() is not None:
            return device(of_number(type))
        else:
            raise _ArgumentError(f"device() expected a string or a device, got {type!r}. {_EXPECTED}")
        key = (kind, number)
        known = _INTERNED.get(key)
        if known is None:
            known = object.__new__(cls)
            object.__setattr__(known, "_type", kind)
            object.__setattr__(known, "_index", number)
            # torch's own formula: (type code << 16) | index as an unsigned byte, -1 for "no index".
            object.__setattr__(known, "_hash", _TYPE_CODES[kind] << 16 | (255 if number is None else number))
            known = _INTERNED.setdefault(key, known)
        return known

    @property
    def type(self) -> str:
        return self._type

    @property
    def index(self) -> int | None:
        return self._index

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"attribute {name!r} of 'mindtorch.device' objects is not writable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"attribute {name!r} of 'mindtorch.device' objects is not writable")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, device):
            return self is other  # interned
        if _is_torch_device(other):
            return other.type == self._type and other.index == self._index  # type: ignore[attr-defined]
        return NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self._type if self._index is None else f"{self._type}:{self._index}"

    def __repr__(self) -> str:
        if self._index is None:
            return f"device(type={self._type!r})"
        return f"device(type={self._type!r}, index={self._index})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (device, (self._type, self._index))

    def __copy__(self) -> device:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> device:
        return self

    def to_torch(self) -> torch.device:
        """The same device as a ``torch.device``. ``RuntimeError`` if torch has no such type (``npu`` without torch_npu,
        ``remote_accelerator`` if another backend owns torch's slot). Imports torch.
        """
        import torch

        try:
            return torch.device(str(self))
        except RuntimeError as error:
            raise RuntimeError(f"torch has no device {self} in this process: {error}") from error

    def __enter__(self) -> device:
        context = _torch_context(self)
        if context is not None:
            context.__enter__()
        _state.stack.append((self, context))
        return self

    def __exit__(self, *exc: Any) -> None:
        _, context = _state.stack.pop()
        if context is not None:
            context.__exit__(*exc)
        if _state.deferred and not _state.stack:
            _state.deferred = False
            _tell_torch(_state.default)

    def __call__(self, function: _F, location: str | None = None) -> _F:
        """Decorator: run ``function`` with this as the default device.

        With ``location``, what ``torch.load(map_location=device)`` asks of a callable: put a storage here.
        """
        if location is not None:
            import torch

            return torch.serialization.default_restore_location(function, str(self))  # type: ignore[arg-type]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


_numbered: Callable[[int], device | None] | None = None


def register_numbered(function: Callable[[int], device | None]) -> None:
    """``function(index)`` is the device that a bare integer means where torch has no accelerator, or None."""
    global _numbered
    _numbered = function


def of_number(index: int) -> Any:
    """The device that a bare integer means: of torch's accelerator, else of ours. Torch's own error without either."""
    found = _numbered(index) if _numbered is not None else None
    return _torch().device(index) if found is None else found


_INTERNED: dict[tuple[str, int | None], device] = {}
_CPU = device("cpu")


class _State(threading.local):
    """Per thread: the default device, and the ``with device(...)`` blocks being executed, innermost last."""

    def __init__(self) -> None:
        self.default: device = _CPU
        self.stack: list[tuple[device, Any]] = []
        self.deferred = False


_state = _State()


def _expressible(value: device) -> Any:
    """``value`` as torch.device, or None when torch is not loaded or has no such device."""
    torch = _torch()
    if torch is None:
        return None
    try:
        return torch.device(str(value))
    except RuntimeError:
        return None


def _torch_context(value: device) -> Any:
    """torch's own "default device" context, so that code calling ``torch.empty`` inside the block follows too."""
    if _torch() is None:
        return None
    from torch.utils._device import DeviceContext

    there = _expressible(value)
    if there is not None:
        return DeviceContext(there)
    context = DeviceContext("cpu")
    context.device = value  # type: ignore[assignment]  # mindtorch.patch.hooks, which know it, look at the context
    return context


def set_default_device(value: DeviceLike | None) -> None:
    """Make ``value`` the calling thread's default device; None puts ``cpu`` back.

    Within a ``with device(...)`` block, the block's device stays, as in torch. Also calls ``torch.set_default_device``,
    if torch can express the device.
    """
    chosen = _CPU if value is None else device(value)
    _state.default = chosen
    if _state.stack:
        _state.deferred = True  # torch's modes are a stack: what lies below the block is changed when it ends
    else:
        _tell_torch(chosen)


def _tell_torch(chosen: device) -> None:
    torch = _torch()
    if torch is None:
        return
    # None, not "cpu": torch then takes its function mode off again, which costs time on every call.
    there = None if chosen is _CPU else _expressible(chosen)
    torch.set_default_device(there)
    if there is None and chosen is not _CPU:
        context = _torch_context(chosen)
        context.__enter__()
        torch._GLOBAL_DEVICE_CONTEXT.device_context = context


@contextmanager
def default_device_kept() -> Iterator[None]:
    """What the block makes the calling thread's default device is that until it ends."""
    kept: Any = _torch()._GLOBAL_DEVICE_CONTEXT  # where torch has the function mode of its default device
    before, chosen = getattr(kept, "device_context", None), _state.default
    try:
        yield
    finally:
        now = getattr(kept, "device_context", None)
        if now is not before:
            if now is not None:
                now.__exit__(None, None, None)
            if before is not None:
                before.__enter__()
            kept.device_context = before
        _state.default = chosen


def get_default_device() -> device:
    """The calling thread's default device: that of the innermost ``with device(...)``, else the one that was set, else
    ``cpu`` (under ``genie run``: the device to which it moves programs).
    """
    stack = _state.stack
    if stack:
        return stack[-1][0]
    return _state.default if _everywhere is None or _state.default is not _CPU else _everywhere


_everywhere: device | None = None  # the default device of all threads that have set none


def set_default_everywhere(value: device | None) -> device | None:
    """Let threads that have set no default device have this one; returns which it was."""
    global _everywhere
    before, _everywhere = _everywhere, value
    return before
