"""What stands in the place of something of torch's: each is a `Patch`, put there and taken back in one way.

docs/PATCHES.md lists those in torch. A name that a release of torch does not have is left out by `existing`, or has a
slower way (`torch_names.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from .._ext.hooks import Hook, hook, unhook
from .import_hooks import when_loaded

__all__ = ["Patch", "Patches", "existing", "for_builtins", "for_good", "replaced", "with_names"]


#: (owner, name, value): ``owner.name`` is ``value`` from now on; of a dictionary, ``owner[name]``; in a list, ``value``
#: comes in at this place. Where it is a `Hook`, the function, attribute or class stays the object that it is, and asks.
Patch: TypeAlias = tuple[Any, Any, Any]


#: What has ever stood in the place of a compiled function of torch's: that function. `torch_facts.let_dynamo_know`.
for_builtins: WeakKeyDictionary[FunctionType, BuiltinFunctionType] = WeakKeyDictionary()


class Patches:
    """What was put there together is taken back together, the last first.

    yields: what somebody else has put there in the meantime stays.
    """

    def __init__(self, yields: bool = False) -> None:
        self._yields = yields
        self._undo: list[tuple[Any, Callable[[], object]]] = []
        self._places: set[Any] = set()

    def put(self, patches: Iterable[Patch]) -> None:
        for owner, name, value in patches:
            undo = _exchange(owner, name, value)
            if self._yields:
                undo = partial(_unless_replaced, owner, name, value, undo)
            self._undo.append(((id(owner), name), undo))
            self._places.add((id(owner), name))

    def put_when_loaded(self, module: str, patches: Callable[[Any], Iterable[Patch]]) -> None:
        """Put ``patches(module)`` there now, or once the program has loaded the module, unless taken back before."""
        self.after(when_loaded(module, lambda loaded: self.put(patches(loaded)), patches))

    def after(self, call: Callable[..., object], *args: Any) -> None:
        """Call this, too, when they are taken back."""
        self._undo.append((None, partial(call, *args)))

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()[1]()
        self._places.clear()

    def keep(self, owner: Any, name: str) -> None:
        """This one, if it is there, stays when they are taken back."""
        self._undo = [entry for entry in self._undo if entry[0] != (id(owner), name)]
        self._places.discard((id(owner), name))

    def __contains__(self, place: tuple[Any, str]) -> bool:
        return (id(place[0]), place[1]) in self._places


def _exchange(owner: Any, name: Any, value: Any) -> Callable[[], object]:
    """Put it there. Gives what takes it back."""
    if isinstance(owner, list):
        owner.insert(name, value)
        return lambda: owner.remove(value) if value in owner else None
    if isinstance(owner, dict):
        before = owner.get(name)
        owner[name] = value
        return partial(owner.pop, name, None) if before is None else partial(owner.__setitem__, name, before)
    if isinstance(value, Hook):
        torchs = getattr(owner, name)
        hook(torchs, value)
        return partial(unhook, torchs)
    own, before = name in vars(owner), vars(owner).get(name)
    if isinstance(value, FunctionType):
        if isinstance(before, BuiltinFunctionType):
            for_builtins[value] = before
        elif isinstance(before, FunctionType) and "_torchdynamo_inline" not in vars(value):
            value._torchdynamo_inline = before  # type: ignore[attr-defined]  # what torch.compile traces in its place
    setattr(owner, name, value)
    return partial(setattr, owner, name, before) if own else partial(delattr, owner, name)


#: By place: what would have been taken back, and what does that, while something else stood over it.
_covered: dict[tuple[int, Any], list[tuple[Any, Callable[[], object]]]] = {}


def _unless_replaced(owner: Any, name: Any, value: Any, undo: Callable[[], object]) -> None:
    """Take it back, and what it stood over if that is taken back already: profiles end in any order."""
    covered = _covered.setdefault((id(owner), name), [])
    covered.append((value, undo))
    while (now := next((entry for entry in covered if entry[0] is vars(owner).get(name)), None)) is not None:
        covered.remove(now)
        now[1]()
    if not covered:
        del _covered[id(owner), name]


@contextmanager
def replaced(patches: Iterable[Patch]) -> Iterator[None]:
    """They are there for the length of the block."""
    held = Patches()
    try:
        held.put(patches)
        yield
    finally:
        held.undo()


def for_good(patches: Iterable[Patch]) -> None:
    """They are there for the rest of the process."""
    Patches().put(patches)


def existing(owner: Any, values: Mapping[str, Any]) -> Iterator[Patch]:
    """Of these names, those that the installed torch has."""
    return ((owner, name, value) for name, value in values.items() if hasattr(owner, name))


def with_names(
    function: FunctionType, names: Mapping[str, Any], closure: tuple[CellType, ...] | None = None
) -> FunctionType:
    """The function again, to which these global names mean something else, and these cells if any are given."""
    known = {**function.__globals__, **names} if names else function.__globals__
    cells = function.__closure__ if closure is None else closure
    made = FunctionType(function.__code__, known, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made
