"""What a graph is made of besides its nodes: calls, results, edges, segments, and constants kept of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, overload

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Hole:
    """Stands in ``args`` and ``kwargs`` for the node's input number ``index``."""

    index: int


@dataclass(frozen=True)
class Opaque:
    """Stands for an argument that is neither a tensor nor a plain constant (a generator, a compiled function)."""

    text: str


class Output(NamedTuple):
    """What an op returns or overwrites: sizes, element type, device."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


class Call(NamedTuple):
    """What nodes share: op name, arguments with holes for tensors, results; the overload, where it is known."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Output, ...]
    overload: str = ""


class Reading(NamedTuple):
    """How a tensor lies in the storage of the value that it is read from, where that is not as the value itself."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Edge(NamedTuple):
    """``target`` reads output number ``output`` of ``source`` as its input number ``input``."""

    source: int
    output: int
    target: int
    input: int


class Module(NamedTuple):
    """Where in the model: attribute names from the outermost module down, and the classes where known."""

    names: tuple[str, ...]
    classes: tuple[str, ...]

    @property
    def path(self) -> str:
        return ".".join(self.names)


class Segment(NamedTuple):
    """Nodes ``start`` to ``stop`` (excluded): a run of the program in which nothing was read.

    ``read_by`` names the op that read data at the end of it; empty if the program (or the capture) ended first.
    """

    number: int
    start: int
    stop: int
    read_by: str


class View(Sequence[T], Generic[T]):
    """A sequence whose items are made when asked for."""

    def __init__(self, size: Callable[[], int], item: Callable[[int], T]) -> None:
        self._size, self._item = size, item

    def __len__(self) -> int:
        return self._size()

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._item(i) for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"expected an index below {len(self)}, got {index}")
        return self._item(place)

    def __iter__(self) -> Iterator[T]:
        return map(self._item, range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} items>"


# ---- values of arguments ---------------------------------------------------------------------------------------------
_PLAIN = (
    int,
    float,
    complex,
    str,
    bool,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.layout,
    torch.memory_format,
    Hole,
    Opaque,
)


def constant(value: Any) -> Any:
    """What the graph keeps of an argument: constants as they are, nothing that would keep the user's objects alive."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (tuple, list)):
        items = [constant(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {str(key): constant(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(constant(value.start), constant(value.stop), constant(value.step))
    if isinstance(value, torch.device):
        return Opaque(str(value))
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    return Opaque(getattr(value, "__name__", None) or type(value).__name__)


def output_of(tensor: torch.Tensor) -> Output:
    """Sizes, element type and device of a tensor, without reading it."""
    return Output(tuple(tensor.shape), tensor.dtype, str(tensor.device))


def as_output(value: Any) -> Output:
    """An output given as a tensor or as (shape, dtype, device)."""
    if isinstance(value, torch.Tensor):
        return output_of(value)
    shape, dtype, device = value
    return Output(tuple(shape), dtype, str(device))
