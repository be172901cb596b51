"""Values as bytes and back: numbers, strings, sequences, and torch's own constants (SPEC R3).

Nothing that is read is called or imported: a tag names one of a fixed set of forms, a constant is looked up in a table
made from torch. Bytes that are not such a value are a `WireError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

__all__ = ["HERE", "PROTOCOL", "Hole", "Reference", "WireError", "dumps", "loads"]

PROTOCOL = 6  # to be counted up with every change of what messages say, or how


class WireError(ValueError):
    """What was to be sent has no form on the wire, or what came is not a message."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor of the message: one of those that it lists, or an output of an earlier record (after those)."""

    index: int
    tracked: bool = False  # the call sees it as requiring grad


@dataclass(frozen=True, slots=True)
class Here:
    """Stands for the device on which the values are."""


HERE = Here()


class Hole(Enum):
    """In place of a number, in a call that is defined: those that belong there come with each run."""

    INT = "i"
    FLOAT = "f"
    COMPLEX = "c"  # two floats


#: Torch's constants by name.
CONSTANTS: dict[str, Any] = {
    str(value): value
    for kind in (torch.dtype, torch.layout, torch.memory_format)
    for value in list(vars(torch).values())  # other threads import what is in torch
    if isinstance(value, kind)
}
_MOST = 1 << 31  # elements of a sequence, and bytes of a string
_DEEPEST = 64  # sequences in sequences


def dumps(value: Any) -> bytearray:
    """The bytes of a value; WireError where it has no form."""
    out = bytearray()
    _put(out, value)
    return out


def loads(data: bytes | bytearray | memoryview) -> Any:
    """The value whose bytes these are, all of them; WireError where they are none."""
    reader = _Reader(memoryview(data).cast("B"))
    value = reader.value(0)
    if reader.at != len(reader.data):
        raise WireError(f"expected the end of a message at byte {reader.at}, got {len(reader.data) - reader.at} more")
    return value


# ---- writing ---------------------------------------------------------------------------------------------------------
def _size(out: bytearray, n: int) -> None:
    """A number of 0 and more, seven bits a byte, the lowest first."""
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)


def _put(out: bytearray, value: Any) -> None:
    write = _WRITERS.get(type(value))
    if write is not None:
        write(out, value)
        return
    for kind, write in _SUBCLASSES:
        if isinstance(value, kind):
            write(out, value)
            return
    raise WireError(f"expected numbers, strings, tensors and torch's constants, got {type(value).__name__}")


def _int(out: bytearray, value: int) -> None:
    out += b"i"
    _size(out, value * 2 if value >= 0 else -value * 2 - 1)


def _float(out: bytearray, value: float) -> None:
    out += b"f" + struct.pack("<d", value)


def _complex(out: bytearray, value: complex) -> None:
    out += b"c" + struct.pack("<dd", value.real, value.imag)


def _text(tag: bytes) -> Callable[[bytearray, str], None]:
    def write(out: bytearray, value: str) -> None:
        data = value.encode("utf-8", "surrogatepass")
        out += tag
        _size(out, len(data))
        out += data

    return write


def _bytes(out: bytearray, value: bytes) -> None:
    out += b"b"
    _size(out, len(value))
    out += value


def _items(tag: bytes) -> Callable[[bytearray, Any], None]:
    def write(out: bytearray, value: Any) -> None:
        out += tag
        _size(out, len(value))
        for item in value:
            _put(out, item)

    return write


def _mapping(out: bytearray, value: dict[Any, Any]) -> None:
    out += b"m"
    _size(out, len(value))
    for key, item in value.items():
        _put(out, key)
        _put(out, item)


def _slice(out: bytearray, value: slice) -> None:
    out += b":"
    for part in (value.start, value.stop, value.step):
        _put(out, part)


def _constant(out: bytearray, value: Any) -> None:
    _text(b"k")(out, str(value))


def _reference(out: bytearray, value: Reference) -> None:
    out += b"R" if value.tracked else b"r"
    _size(out, value.index)


_WRITERS: dict[type, Callable[[bytearray, Any], None]] = {
    type(None): lambda out, _: out.extend(b"n"),
    bool: lambda out, value: out.extend(b"t" if value else b"F"),
    int: _int,
    float: _float,
    complex: _complex,
    str: _text(b"s"),
    bytes: _bytes,
    bytearray: _bytes,
    tuple: _items(b"("),
    list: _items(b"["),
    torch.Size: _items(b"z"),
    dict: _mapping,
    slice: _slice,
    type(Ellipsis): lambda out, _: out.extend(b"."),
    Here: lambda out, _: out.extend(b"h"),
    Reference: _reference,
    Hole: lambda out, value: out.extend(b"#" + value.value.encode()),
    torch.dtype: _constant,
    torch.layout: _constant,
    torch.memory_format: _constant,
    torch.device: lambda out, value: _text(b"d")(out, str(value)),
}
# Whatever numbers a program hands in (numpy's, an IntEnum's): they are what torch takes them for.
_SUBCLASSES: tuple[tuple[type, Callable[[bytearray, Any], None]], ...] = (
    (int, lambda out, value: _int(out, int(value))),
    (float, lambda out, value: _float(out, float(value))),
    (str, lambda out, value: _text(b"s")(out, str(value))),
)


# ---- reading ---------------------------------------------------------------------------------------------------------
class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, n: int) -> memoryview:
        end = self.at + n
        if n > _MOST or end > len(self.data):
            raise WireError(f"expected {n} bytes at byte {self.at}, got {len(self.data) - self.at}")
        found = self.data[self.at : end]
        self.at = end
        return found

    def byte(self) -> int:
        try:
            found = self.data[self.at]
        except IndexError:
            raise WireError(f"expected 1 bytes at byte {self.at}, got 0") from None
        self.at += 1
        return found

    def size(self) -> int:
        value = shift = 0
        while (byte := self.byte()) > 0x7F:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 700:
                raise WireError(f"integer at byte {self.at} is too long")
        return value | byte << shift

    def text(self) -> str:
        try:
            return bytes(self.take(self.size())).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise WireError(f"expected UTF-8 before byte {self.at}: {error.reason}") from None

    def items(self, depth: int) -> list[Any]:
        n = self.size()
        if n > len(self.data) - self.at:  # each takes a byte at least
            raise WireError(f"expected {n} items at byte {self.at}, got {len(self.data) - self.at} bytes")
        return [self.value(depth) for _ in range(n)]

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise WireError(f"expected sequences at most {_DEEPEST} deep")
        tag = self.byte()
        read = _READERS.get(tag)
        if read is None:
            raise WireError(f"expected a tag at byte {self.at - 1}, got {tag:#04x}")
        return read(self, depth + 1)


def _read_int(r: _Reader, _depth: int) -> int:
    n = r.size()
    return -(n + 1 >> 1) if n & 1 else n >> 1


def _read_size(r: _Reader, depth: int) -> torch.Size:
    items = r.items(depth)
    if not all(type(item) is int for item in items):
        raise WireError("expected numbers in a size")
    return torch.Size(items)


def _read_mapping(r: _Reader, depth: int) -> dict[Any, Any]:
    n = r.size()
    out = {}
    for _ in range(n):
        key = r.value(depth)
        if not isinstance(key, (str, int)):
            raise WireError(f"expected a name or a number as a key, got {type(key).__name__}")
        out[key] = r.value(depth)
    return out


def _read_constant(r: _Reader, _depth: int) -> Any:
    name = r.text()
    if name not in CONSTANTS:
        raise WireError(f"expected a constant of torch's, got {name[:80]!r}")
    return CONSTANTS[name]


def _read_device(r: _Reader, _depth: int) -> torch.device:
    name = r.text()
    if name not in ("cpu", "meta"):
        raise WireError(f"expected the device cpu or meta, got {name[:80]!r}")
    return torch.device(name)


def _read_hole(r: _Reader, _depth: int) -> Hole:
    kind = bytes(r.take(1)).decode("latin-1")
    if kind not in _HOLES:
        raise WireError(f"expected the kind of a number at byte {r.at - 1}, got {kind!r}")
    return _HOLES[kind]


_HOLES = {hole.value: hole for hole in Hole}
_READERS: dict[int, Callable[[_Reader, int], Any]] = {
    ord("n"): lambda r, d: None,
    ord("t"): lambda r, d: True,
    ord("F"): lambda r, d: False,
    ord("i"): _read_int,
    ord("f"): lambda r, d: struct.unpack("<d", r.take(8))[0],
    ord("c"): lambda r, d: complex(*struct.unpack("<dd", r.take(16))),
    ord("s"): lambda r, d: r.text(),
    ord("b"): lambda r, d: bytes(r.take(r.size())),
    ord("("): lambda r, d: tuple(r.items(d)),
    ord("["): lambda r, d: r.items(d),
    ord("z"): _read_size,
    ord("m"): _read_mapping,
    ord(":"): lambda r, d: slice(r.value(d), r.value(d), r.value(d)),
    ord("."): lambda r, d: Ellipsis,
    ord("h"): lambda r, d: HERE,
    ord("r"): lambda r, d: Reference(r.size()),
    ord("R"): lambda r, d: Reference(r.size(), True),
    ord("#"): _read_hole,
    ord("k"): _read_constant,
    ord("d"): _read_device,
}
