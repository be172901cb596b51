"""The C++ calling convention of x86-64 (Itanium ABI): names of functions, and where their arguments go.

Integers and addresses take words, six of them in registers and the rest on the stack; floating-point numbers are apart.
A value of two words is in registers as a whole, or on the stack; one of three is on the stack; what a class of C++
holds that cannot be copied bit by bit (`at::Tensor`, `c10::Scalar`, `c10::SymInt`) goes by address.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

from ..._ext.native_calls import ADDRESS, FLOAT, HOLDS, MOST_BYTES, MOST_DOUBLES, MOST_WORDS, NUMBER, POINTS, TAKES
from .segment_graph import Input, Number

__all__ = ["Layout", "Unsuited", "symbol"]

_REGISTERS = 6
_SCALAR_TAGS = {float: 0, int: 1, bool: 4}  # c10::Scalar::Tag
_SCALAR_TYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, None,
    torch.complex64, torch.complex128, torch.bool, None, None, None, torch.bfloat16,
)  # c10::ScalarType  # fmt: skip
_MEMORY_FORMATS = (
    torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d,
)  # c10::MemoryFormat  # fmt: skip
_INT64 = range(-(1 << 63), 1 << 63)
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


# ---- names of C++ functions ------------------------------------------------------------------------------------------
class _Name:
    """A function's name by the Itanium C++ ABI: what came before is not written out again."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def _remember(self, what: str) -> None:
        if what not in self.seen:
            n, digits = len(self.seen) - 1, ""
            while n >= 0 and (n or not digits):
                digits, n = _DIGITS[n % 36] + digits, n // 36
            self.seen[what] = f"S{digits}_"

    def prefix(self, parts: Sequence[str]) -> str:
        """Of namespaces and a class."""
        whole = "::".join(parts)
        if whole in self.seen:
            return self.seen[whole]
        out = (self.prefix(parts[:-1]) if len(parts) > 1 else "") + f"{len(parts[-1])}{parts[-1]}"
        self._remember(whole)
        return out

    def type(self, t: Any) -> str:
        """`t`: a letter for what C has; ("&" or "const", type); (name, *types) of a class, with its arguments."""
        if isinstance(t, str):
            return t
        if t in self.seen:
            return self.seen[t]
        head, *inner = t
        if head == "&":
            out = "R" + self.type(inner[0])
        elif head == "const":
            out = "K" + self.type(inner[0])
        elif head.startswith("std::"):
            name = head.removeprefix("std::")
            out = self.seen.get(head) or f"St{len(name)}{name}"
            self._remember(head)
            out += f"I{''.join(map(self.type, inner))}E"
        else:
            known = head in self.seen
            out = self.prefix(head.split("::"))
            if not inner:
                return out if known else f"N{out}E"  # and remembered, as a prefix
            out = f"N{out}I{''.join(map(self.type, inner))}EE"
        self._remember(t)
        return out


def symbol(name: str, types: Sequence[Any]) -> str:
    """Of `at::_ops::name::call`."""
    mangled = _Name()
    return f"_ZN{mangled.prefix(('at', '_ops', name))}4callE{''.join(map(mangled.type, types))}"


# ---- arguments -------------------------------------------------------------------------------------------------------
class Unsuited(Exception):
    """These arguments are none of this operator's, or not laid out here."""


_OPTIONAL = "std::optional"
_TENSOR_TYPE = ("at::Tensor",)
_CONST_TENSOR = ("&", ("const", _TENSOR_TYPE))
_SYM = ("c10::SymInt",)
_TEXT = ("std::basic_string_view", "c", ("std::char_traits", "c"))
_SMALL = {"ScalarType": _SCALAR_TYPES, "MemoryFormat": _MEMORY_FORMATS}  # one byte each


class Layout:
    """Arguments of one call, as C++ takes them."""

    def __init__(self, returns_memory: bool, list_refs: bool) -> None:
        self.list_refs = list_refs  # how it takes lists of tensors: the schema does not say
        self.types: list[Any] = []
        self.words = [0] * _REGISTERS
        self.used = 1 if returns_memory else 0  # of the registers; the first one then says where the result goes
        self.doubles: list[float] = []
        self.bytes = bytearray()
        self.patches: list[tuple[int, int, int]] = []

    # ---- where things go
    def _take(self, n: int, on_stack: bool = False) -> int:
        """The first of n words for one value: all of them in registers, or all on the stack."""
        if not on_stack and self.used + n <= _REGISTERS:
            self.used += n
            return self.used - n
        if len(self.words) + n > MOST_WORDS:
            raise Unsuited("too many arguments")
        self.words += [0] * n
        return len(self.words) - n

    def _word(self, value: int) -> None:
        self.words[self._take(1)] = value & 0xFFFFFFFFFFFFFFFF

    def _put(self, data: bytes, align: int = 8) -> int:
        """Where the data stands among the call's bytes."""
        self.bytes += bytes(-len(self.bytes) % align) + data
        if len(self.bytes) > MOST_BYTES:
            raise Unsuited("too many arguments")
        return len(self.bytes) - len(data)

    def _address(self, at: int, word: int | None = None) -> None:
        self.patches.append((POINTS, self._take(1) if word is None else word, at))

    # ---- one argument
    def add(self, of: str, value: Any) -> None:
        """An argument of a schema's type `of`."""
        name, optional = of.removesuffix("?"), of.endswith("?")
        plain = name.partition("(")[0] if "(" in name else name
        if plain == "Tensor":
            self._tensor(value, optional, written="!" in name)
        elif plain in ("int", "bool", "float", "SymInt") or plain in _SMALL or plain in ("Layout", "Device"):
            self._number(plain, value, optional)
        elif plain == "Scalar":
            self._scalar(value, optional)
        elif plain == "str":
            self._text(value, optional)
        elif plain == "Generator" and optional and value is None:
            self.types.append((_OPTIONAL, ("at::Generator",)))
            self._address(self._put(bytes(16)))
        elif plain == "Tensor[]":
            self._tensors(value)
        elif plain.startswith("bool["):
            self._flags(int(plain[5:-1]), value)
        elif "[" in plain:
            self._list(plain.partition("[")[0], value, optional)
        else:
            raise Unsuited(of)

    def _tensor(self, value: Any, optional: bool, written: bool) -> None:
        if isinstance(value, Input) and not optional:
            self.types.append(("&", _TENSOR_TYPE) if written else _CONST_TENSOR)
            self.patches.append((TAKES, self._take(1), int(value)))
        elif optional and (value is None or isinstance(value, Input)):
            self.types.append(("&", ("const", (_OPTIONAL, _TENSOR_TYPE))))
            at = self._put(struct.pack("qq", 0, value is not None))
            if value is not None:
                self.patches.append((HOLDS, at, int(value)))
            self._address(at)
        else:
            raise Unsuited("no tensor")

    def _number(self, of: str, value: Any, optional: bool) -> None:
        kind = {"int": "l", "bool": "b", "float": "d", "SymInt": _SYM}.get(of) or (f"c10::{of}",)
        self.types.append((_OPTIONAL, kind) if optional else kind)
        if of == "float" and optional and self.used == _REGISTERS:  # both words on the stack: the flag has no register
            if value is not None and type(value) is not float:
                raise Unsuited("no float")
            at = self._take(2, on_stack=True)
            self.words[at : at + 2] = [0, 0] if value is None else [*struct.unpack("Q", struct.pack("d", value)), 1]
            return
        if value is None and optional:
            if of == "SymInt":
                self._address(self._put(bytes(16)))
            elif of == "float":
                self._double(0.0)
                self._word(0)
            else:
                self._take(2 if of == "int" else 1)
            return
        if of == "float":
            self._double(value)
            if optional:
                self._word(1)
            return
        if of == "bool":
            number = _checked(value, bool)
        elif of in _SMALL:
            if value is None or value not in _SMALL[of]:
                raise Unsuited(f"{value}")
            number = _SMALL[of].index(value)
        elif of in ("Layout", "Device"):
            raise Unsuited("a layout or a device")
        else:
            number = _checked(value, int)
        if of == "SymInt":
            self._address(self._put(struct.pack("qq", number, 1)))
        elif of == "int" and optional:
            at = self._take(2)
            self.words[at : at + 2] = [number & 0xFFFFFFFFFFFFFFFF, 1]
        else:
            self._word(number | 0x100 if optional else number)

    def _double(self, value: Any) -> None:
        if len(self.doubles) == MOST_DOUBLES:
            raise Unsuited("too many arguments")
        if isinstance(value, Number):
            self.patches.append((FLOAT, len(self.doubles), int(value)))
        elif isinstance(value, Input) or type(value) not in (int, float):
            raise Unsuited("no float")
        self.doubles.append(0.0 if isinstance(value, Number) else float(value))

    def _scalar(self, value: Any, optional: bool) -> None:
        kind = ("c10::Scalar",)
        self.types.append(("&", ("const", (_OPTIONAL, kind) if optional else kind)))
        if value is None and optional:
            self._address(self._put(bytes(48), 16))
            return
        if isinstance(value, Number):
            data = struct.pack("qqdq", 0, 0, 0.0, 0)
        elif type(value) in _SCALAR_TAGS and (type(value) is float or value in _INT64):
            data = struct.pack("qqdq" if type(value) is float else "qqqq", _SCALAR_TAGS[type(value)], 0, value, 0)
        else:
            raise Unsuited("no number")
        at = self._put(data + struct.pack("qq", 1, 0), 16)
        if isinstance(value, Number):
            self.patches.append((NUMBER, at + 16, int(value)))
        self._address(at)

    def _text(self, value: Any, optional: bool) -> None:
        self.types.append((_OPTIONAL, _TEXT) if optional else _TEXT)
        if (value is not None and type(value) is not str) or (value is None and not optional):
            raise Unsuited("no text")
        at = self._take(3, on_stack=True) if optional else self._take(2)
        if value is not None:
            data = value.encode()
            self.words[at] = len(data)
            self._address(self._put(data + bytes(1)), at + 1)
            if optional:
                self.words[at + 2] = 1

    def _flags(self, n: int, value: Any) -> None:
        self.types.append(("std::array", "b", f"Lm{n}E"))
        if len(value) != n or n > 8:
            raise Unsuited("flags")
        self._word(sum(_checked(each, bool) << 8 * k for k, each in enumerate(value)))

    def _list(self, of: str, value: Any, optional: bool) -> None:
        kind = {"int": "l", "SymInt": _SYM}.get(of)
        if kind is None:
            raise Unsuited(f"list of {of}")
        self.types.append((f"c10::{'OptionalArrayRef' if optional else 'ArrayRef'}", kind))
        at = self._take(3, on_stack=True) if optional else self._take(2)
        if value is None and optional:
            return
        numbers = [_checked(each, int) for each in (value if isinstance(value, (list, tuple)) else (value,))]
        self._address(self._put(struct.pack(f"{len(numbers)}q", *numbers)), at)
        self.words[at + 1] = len(numbers)
        if optional:
            self.words[at + 2] = 1

    def _tensors(self, value: Any) -> None:
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, Input) for each in value):
            raise Unsuited("not a list of tensors")
        at = self._put(bytes(8 * len(value)))
        for k, each in enumerate(value):
            self.patches.append((HOLDS, at + 8 * k, int(each)))
        if not self.list_refs:
            self.types.append(("c10::ArrayRef", _TENSOR_TYPE))
            word = self._take(2)
            self._address(at, word)
            self.words[word + 1] = len(value)
            return
        self.types.append(("&", ("const", ("c10::IListRef", _TENSOR_TYPE))))
        header = self._put(struct.pack("qqq", 0, len(value), 0))  # the last word: a list without boxes
        self.patches.append((ADDRESS, header, at))
        self._address(header)


def _checked(value: Any, of: type[int]) -> int:
    if type(value) is not of or value not in _INT64:
        raise Unsuited(f"no {of.__name__}")
    return value
