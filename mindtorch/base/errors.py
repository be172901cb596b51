"""Exceptions of the public contract (SPEC L9). Each also subclasses the builtin a user would catch."""

from __future__ import annotations

import copyreg
import functools
from typing import Any, cast


class LazyTensorError(RuntimeError):
    """Base of every error that the lazy engine raises about its own work."""


class _ByKind(type):
    """The class of `MaterializationError`: those made by `also` are pickled by what they are made of."""


class MaterializationError(LazyTensorError, metaclass=_ByKind):
    """A recorded operation failed when it was run.

    The message names the op, the module path and the user's source line that recorded it;
    ``__cause__`` is torch's own error. It is of that error's class, too (`also`), so that ``except IndexError`` and
    ``except torch.linalg.LinAlgError`` mean what they mean in eager.
    """

    #: Should the operation have written to a tensor that there is? Then whoever reads next has to hear of it.
    lost_write = False

    #: The class that torch's error has, where that is not in this class's name.
    also_a: type[Exception] | None = None

    @staticmethod
    def also(kind: type[Exception]) -> type[MaterializationError]:
        """The MaterializationError that is also a ``kind``; this class where a RuntimeError is all that ``kind`` says,
        and where Python has no such class."""
        return kind if issubclass(kind, MaterializationError) else _also(cast(Any, kind))

    def __str__(self) -> str:
        return RuntimeError.__str__(self)  # a KeyError would show its argument's repr

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), self.__dict__


@functools.lru_cache(256)
def _also(kind: type[Exception]) -> type[MaterializationError]:
    if issubclass(MaterializationError, kind):
        return MaterializationError
    named = {"__module__": __name__, "__doc__": MaterializationError.__doc__, "also_a": kind}
    try:
        made = _ByKind("MaterializationError", (MaterializationError, kind), named)
        made("")
    except Exception:  # noqa: BLE001 - a class of the program's, which may ask for anything when it is made
        return MaterializationError
    return cast("type[MaterializationError]", made)


def _again(kind: type[MaterializationError], args: tuple[Any, ...]) -> MaterializationError:
    return kind(*args)


def _reduced(kind: Any) -> Any:
    return kind.__qualname__ if kind.also_a is None else (MaterializationError.also, (kind.also_a,))


copyreg.pickle(_ByKind, _reduced)


class SessionLost(MaterializationError):
    """What computes recordings elsewhere is gone, or cannot be relied on, and with it the values that it had."""


class UnsupportedOperationError(LazyTensorError, NotImplementedError):
    """Neither the engine nor eager torch can run the operation on these inputs."""


class NoDataError(NotImplementedError):
    """The value of a meta tensor was asked for; ``meta tensor has no data``. A RuntimeError, as in torch."""


class UsageError(ValueError):
    """Something cannot be done as the user asked (bad target, bad ``--input`` …).

    The command line prints it as one line and exits with code 2.
    """


class NPUError(RuntimeError):
    """An AscendCL function failed: ``function``, ``code``, the code's ``name`` in the headers, ``detail`` as the
    library puts it.

    ``operation`` and ``line`` are the op that the program called and its line, where it called one. A device tells of
    work that failed when it is waited for: ``in_flight`` then has (op, line) of what was under way on ``device``, in
    the order of its calls, since that was last found without an error. One of these failed.
    """

    operation: str | None = None
    line: str | None = None
    device: str | None = None
    in_flight: tuple[tuple[str, str], ...] = ()
    #: Whether there was more in flight, before what ``in_flight`` has.
    more_before = False

    def __init__(self, function: str, code: int, name: str, detail: str) -> None:
        super().__init__(f"[{function}] error {code} ({name})" + (f": {detail}" if detail else ""))
        self.function, self.code, self.name, self.detail = function, code, name, detail

    def called(self, operation: str, line: str) -> None:
        """It was ``operation`` that the program called, at ``line`` (empty: not known). The first who says it knows."""
        if self.operation is None:
            self.operation, self.line = operation, line

    def __str__(self) -> str:
        text = super().__str__()
        if self.operation is not None:
            text += f"; {'reported at' if self.in_flight else 'in'} {_at(self.operation, self.line or '')}"
        if self.in_flight:
            text += f"; caused by a call in flight on {self.device}: {_several(self.in_flight, self.more_before)}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        kind = NPUOutOfMemoryError if isinstance(self, NPUOutOfMemoryError) else NPUError
        return kind, (self.function, self.code, self.name, self.detail), self.__dict__


_MOST_TOLD = 8


def _at(operation: str, line: str) -> str:
    return f"{operation} ({line})" if line else operation


def _several(calls: tuple[tuple[str, str], ...], more: bool) -> str:
    """Calls, each once; the first and the last of many."""
    counts: dict[str, int] = {}
    for operation, line in calls:
        each = _at(operation, line)
        counts[each] = counts.get(each, 0) + 1
    told = [each if count == 1 else f"{count} times {each}" for each, count in counts.items()]
    if len(told) > _MOST_TOLD:
        half = _MOST_TOLD // 2
        told[half:-half] = [f"{len(told) - _MOST_TOLD} more (all: in_flight of this error)"]
    return ("calls before, " if more else "") + ", ".join(told)


class NPUOutOfMemoryError(NPUError):
    """The device, or the host's pinned memory, has not enough. Where torch is loaded, what is raised is also a
    ``torch.OutOfMemoryError``."""
