"""``--input`` values: ``1x3x224x224``, ``1x128:int64``, ``ids=1x128:int64<50257`` made into tensors.

``batch.ids=1x128`` is an entry of a dict.

Parsing needs no torch, so that a mistyped value is refused before the slow imports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..base.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["GRAMMAR", "InputSpec", "check_names", "nested", "parse_input"]

GRAMMAR = (
    "[NAME=]SHAPE[:DTYPE][<BOUND], for example 1x3x224x224, 1x128:int64, 'ids=1x128:int64<50257' or scalar:float32; "
    "NAME.KEY=... is an entry of a dict"
)
T = TypeVar("T")

_FLOATS = ("float16", "float32", "float64", "bfloat16", "half", "float", "double", "complex64", "complex128")
_INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "short", "int", "long", "uint16", "uint32", "uint64")
_DTYPES = (*_FLOATS, *_INTEGERS, "bool")

# "<" needs quotes in a shell; a second colon does not, so both are taken.
_FORM = re.compile(
    r"(?:(?P<name>[^=]*)=)?(?P<shape>[^:<=]*)(?::(?P<dtype>[^:<]*))?(?:[<:](?P<bound>.*))?\Z", re.ASCII | re.DOTALL
)
_SHAPE = re.compile(r"(?:scalar|\d{1,18}(?:x\d{1,18})*)\Z", re.ASCII)


@dataclass(frozen=True)
class InputSpec:
    """One input: ``shape`` in elements, ``dtype`` as torch names it, integer values in ``[0, bound)``."""

    text: str
    name: str | None
    shape: tuple[int, ...]
    dtype: str
    bound: int | None

    def build(self, generator: torch.Generator | None = None) -> torch.Tensor:
        """Floats are drawn from the normal distribution, integers are 0 (below ``bound`` where one is given),
        booleans are True (as in a mask that hides nothing)."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        try:
            if self.dtype == "bool":
                return torch.ones(self.shape, dtype=dtype)
            if self.dtype in _INTEGERS:
                if self.bound is None:
                    return torch.zeros(self.shape, dtype=dtype)
                return torch.randint(0, self.bound, self.shape, generator=generator).to(dtype)
            return torch.randn(self.shape, dtype=dtype, generator=generator)
        except (RuntimeError, MemoryError) as error:
            raise UsageError(f"--input {self.text}: {str(error).splitlines()[0]}") from error

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.name + '=' if self.name else ''}{shape} ({self.dtype})"


def parse_input(text: str) -> InputSpec:
    """The input that ``text`` describes. Raises ``UsageError`` with the expected form and what came."""

    def refuse(why: str) -> UsageError:
        return UsageError(f"--input {text!r}: {why}; expected {GRAMMAR}")

    match = _FORM.match(text)
    if match is None:
        raise refuse("not understood")
    name, shape, dtype, bound = match.group("name", "shape", "dtype", "bound")
    if name is not None:
        parameter, *keys = name.split(".")
        if not parameter.isidentifier():
            raise refuse(f"{parameter!r} is not the name of a parameter")
        if not all(keys):
            raise refuse(f"{name!r} has an empty key")
    if not _SHAPE.match(shape):
        raise refuse(f"{shape!r} is not a shape (sizes joined by 'x', or 'scalar')" if shape else "there is no shape")
    if dtype is None:
        dtype = "float32" if bound is None else "int64"
    else:
        dtype = dtype.removeprefix("torch.")
        if dtype not in _DTYPES:
            raise refuse(f"unknown dtype {dtype!r}, one of {', '.join(_DTYPES)}")
    limit: int | None = None
    if bound is not None:
        if dtype not in _INTEGERS:
            raise refuse(f"a bound is for integers, not for {dtype}")
        if not re.fullmatch(r"\d{1,18}", bound, re.ASCII) or int(bound) == 0:
            raise refuse(f"the bound {bound!r} is not a positive integer")
        limit = int(bound)
    sizes = () if shape == "scalar" else tuple(int(size) for size in shape.split("x"))
    return InputSpec(text, name, sizes, dtype, limit)


def check_names(names: Iterable[str]) -> None:
    """Raises ``UsageError`` where two inputs are for the same place."""
    seen: dict[str, None] = {}
    for name in names:
        if name in seen:
            raise UsageError(f"--input {name}=...: given twice")
        seen[name] = None
    for name in seen:
        parts = name.split(".")
        for outer in (".".join(parts[:n]) for n in range(1, len(parts))):
            if outer in seen:
                raise UsageError(f"--input {outer}=... is a tensor, and {name}=... makes a dict of it: give one")


def nested(named: Iterable[tuple[str, T]]) -> dict[str, Any]:
    """Keyword arguments: what is named ``batch.ids`` is entry ``ids`` of the dict ``batch``."""
    found: dict[str, Any] = {}
    for name, value in named:
        *outer, key = name.split(".")
        place = found
        for part in outer:
            place = place.setdefault(part, {})
        place[key] = value
    return found
