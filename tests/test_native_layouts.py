"""S7: where the arguments of a C++ function go, kind by kind, as the ABI of x86-64 says: registers, stack, memory."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mindtorch._ext.native_calls import (
    ADDRESS,
    FLOAT,
    HOLDS,
    LIST,
    MOST_BYTES,
    MOST_DOUBLES,
    MOST_WORDS,
    NOTHING,
    NUMBER,
    POINTS,
    TAKES,
    TUPLE,
)  # fmt: skip
from mindtorch._ext.native_calls import TENSOR as TENSOR_RESULT
from mindtorch.engine.passes import native
from mindtorch.engine.passes.calling import Layout, Unsuited
from mindtorch.engine.passes.segment_graph import Input, Number

TENSOR, SYM, OPTIONAL = ("at::Tensor",), ("c10::SymInt",), "std::optional"
TEXT = ("std::basic_string_view", "c", ("std::char_traits", "c"))
FULL = 0xFFFFFFFFFFFFFFFF
F64 = struct.Struct("d")


def q(*numbers: int) -> bytes:
    return struct.pack(f"{len(numbers)}q", *numbers)


def const(*kind: Any) -> tuple:
    return ("&", ("const", kind if len(kind) > 1 else kind[0]))


def laid(of: str, value: Any, *, list_refs: bool = False) -> tuple:
    """(type, words that are taken of those in registers, words on the stack, doubles, bytes, patches) of one argument.

    All is of the second word on: the first one says where the result goes.
    """
    layout = Layout(True, list_refs)
    layout.words[0] = 7
    layout.add(of, value)
    assert layout.words[0] == 7 and layout.words[layout.used : 6] == [0] * (6 - layout.used)
    (kind,) = layout.types
    return kind, layout.words[1 : layout.used], layout.words[6:], layout.doubles, bytes(layout.bytes), layout.patches


#: Argument -> its type, words in registers, words on the stack, doubles, bytes, patches.
ARGUMENTS: list[tuple[str, Any, tuple]] = [
    ("Tensor", Input(3), (const(TENSOR), [0], [], [], b"", [(TAKES, 1, 3)])),
    ("Tensor(a!)", Input(3), (("&", TENSOR), [0], [], [], b"", [(TAKES, 1, 3)])),
    ("Tensor?", Input(3), (const(OPTIONAL, TENSOR), [0], [], [], q(0, 1), [(HOLDS, 0, 3), (POINTS, 1, 0)])),
    ("Tensor?", None, (const(OPTIONAL, TENSOR), [0], [], [], q(0, 0), [(POINTS, 1, 0)])),
    ("int", -2, ("l", [FULL - 1], [], [], b"", [])),
    ("int", (1 << 63) - 1, ("l", [(1 << 63) - 1], [], [], b"", [])),
    ("int?", 5, ((OPTIONAL, "l"), [5, 1], [], [], b"", [])),
    ("int?", -1, ((OPTIONAL, "l"), [FULL, 1], [], [], b"", [])),
    ("int?", None, ((OPTIONAL, "l"), [0, 0], [], [], b"", [])),
    ("bool", True, ("b", [1], [], [], b"", [])),
    ("bool", False, ("b", [0], [], [], b"", [])),
    ("bool?", True, ((OPTIONAL, "b"), [0x101], [], [], b"", [])),
    ("bool?", False, ((OPTIONAL, "b"), [0x100], [], [], b"", [])),
    ("bool?", None, ((OPTIONAL, "b"), [0], [], [], b"", [])),
    ("float", 2.5, ("d", [], [], [2.5], b"", [])),
    ("float", 2, ("d", [], [], [2.0], b"", [])),
    ("float", Number(4), ("d", [], [], [0.0], b"", [(FLOAT, 0, 4)])),
    ("float?", 2.5, ((OPTIONAL, "d"), [1], [], [2.5], b"", [])),
    ("float?", None, ((OPTIONAL, "d"), [0], [], [0.0], b"", [])),
    ("SymInt", -3, (SYM, [0], [], [], q(-3, 1), [(POINTS, 1, 0)])),
    ("SymInt?", 3, ((OPTIONAL, SYM), [0], [], [], q(3, 1), [(POINTS, 1, 0)])),
    ("SymInt?", None, ((OPTIONAL, SYM), [0], [], [], q(0, 0), [(POINTS, 1, 0)])),
    ("ScalarType", torch.uint8, (("c10::ScalarType",), [0], [], [], b"", [])),
    ("ScalarType", torch.bfloat16, (("c10::ScalarType",), [15], [], [], b"", [])),
    ("ScalarType?", torch.bool, ((OPTIONAL, ("c10::ScalarType",)), [0x10B], [], [], b"", [])),
    ("ScalarType?", None, ((OPTIONAL, ("c10::ScalarType",)), [0], [], [], b"", [])),
    ("MemoryFormat?", torch.channels_last, ((OPTIONAL, ("c10::MemoryFormat",)), [0x102], [], [], b"", [])),
    ("Layout?", None, ((OPTIONAL, ("c10::Layout",)), [0], [], [], b"", [])),
    ("Device?", None, ((OPTIONAL, ("c10::Device",)), [0], [], [], b"", [])),
    ("Scalar", 3, (const(("c10::Scalar",)), [0], [], [], q(1, 0, 3, 0, 1, 0), [(POINTS, 1, 0)])),
    ("Scalar", True, (const(("c10::Scalar",)), [0], [], [], q(4, 0, 1, 0, 1, 0), [(POINTS, 1, 0)])),
    ("Scalar", 1.5, (const(("c10::Scalar",)), [0], [], [], q(0, 0) + F64.pack(1.5) + q(0, 1, 0), [(POINTS, 1, 0)])),
    ("Scalar", 1e300, (const(("c10::Scalar",)), [0], [], [], q(0, 0) + F64.pack(1e300) + q(0, 1, 0), [(POINTS, 1, 0)])),
    ("Scalar", Number(6), (
        const(("c10::Scalar",)), [0], [], [], q(0, 0, 0, 0, 1, 0), [(NUMBER, 16, 6), (POINTS, 1, 0)]
    )),
    ("Scalar?", 3, (const(OPTIONAL, ("c10::Scalar",)), [0], [], [], q(1, 0, 3, 0, 1, 0), [(POINTS, 1, 0)])),
    ("Scalar?", None, (const(OPTIONAL, ("c10::Scalar",)), [0], [], [], bytes(48), [(POINTS, 1, 0)])),
    ("str", "tanh", (TEXT, [4, 0], [], [], b"tanh\0", [(POINTS, 2, 0)])),
    ("str?", "ä", ((OPTIONAL, TEXT), [], [2, 0, 1], [], "ä\0".encode(), [(POINTS, 7, 0)])),
    ("str?", None, ((OPTIONAL, TEXT), [], [0, 0, 0], [], b"", [])),
    ("Generator?", None, ((OPTIONAL, ("at::Generator",)), [0], [], [], bytes(16), [(POINTS, 1, 0)])),
    ("bool[3]", (True, False, True), (("std::array", "b", "Lm3E"), [0x10001], [], [], b"", [])),
    ("bool[8]", (False,) * 7 + (True,), (("std::array", "b", "Lm8E"), [1 << 56], [], [], b"", [])),
    ("int[2]", (4, -5), (("c10::ArrayRef", "l"), [0, 2], [], [], q(4, -5), [(POINTS, 1, 0)])),
    ("int[1]", 4, (("c10::ArrayRef", "l"), [0, 1], [], [], q(4), [(POINTS, 1, 0)])),
    ("SymInt[]", (), (("c10::ArrayRef", SYM), [0, 0], [], [], b"", [(POINTS, 1, 0)])),
    ("int[1]?", [4], (("c10::OptionalArrayRef", "l"), [], [0, 1, 1], [], q(4), [(POINTS, 6, 0)])),
    ("SymInt[]?", None, (("c10::OptionalArrayRef", SYM), [], [0, 0, 0], [], b"", [])),
    ("Tensor[]", (Input(2), Input(5)), (
        ("c10::ArrayRef", TENSOR), [0, 2], [], [], q(0, 0), [(HOLDS, 0, 2), (HOLDS, 8, 5), (POINTS, 1, 0)]
    )),
]  # fmt: skip


@pytest.mark.parametrize(("of", "value", "expected"), ARGUMENTS)
def test_S7_an_argument_goes_where_cplusplus_looks_for_it(of: str, value: Any, expected: tuple) -> None:
    assert laid(of, value) == expected


def test_S7_lists_of_tensors_may_go_by_address() -> None:
    kind, words, stack, _doubles, data, patches = laid("Tensor[]", [Input(2), Input(5)], list_refs=True)
    assert (kind, words, stack) == (const("c10::IListRef", TENSOR), [0], [])
    assert data == q(0, 0) + q(0, 2, 0)
    assert patches == [(HOLDS, 0, 2), (HOLDS, 8, 5), (ADDRESS, 16, 0), (POINTS, 1, 16)]


@pytest.mark.parametrize(("of", "value"), [
    ("Tensor", None), ("Tensor", 3), ("Tensor?", 3), ("int", None), ("int", True), ("int", 1 << 63), ("int", "1"),
    ("int", -(1 << 63) - 1), ("bool", 1), ("bool", None), ("float", None), ("float", "1"), ("float", True),
    ("float", Input(1)), ("ScalarType", None), ("ScalarType", torch.complex32), ("ScalarType", 1),
    ("Layout?", torch.strided), ("Device?", torch.device("cpu")), ("Scalar", None), ("Scalar", 1 << 63),
    ("Scalar", 2j), ("Scalar", Input(1)), ("str", None), ("str", 3), ("str?", 3), ("Generator?", 3),
    ("Generator", None), ("bool[2]", (True,)), ("bool[9]", (True,) * 9), ("bool[1]", (1,)), ("float[]", (1.0,)),
    ("int[]", (1.0,)), ("int[]", None), ("Tensor[]", None), ("Tensor[]", (Input(1), None)), ("Storage", 3),
    ("SymInt", None), ("SymInt", 1 << 63),
])  # fmt: skip
def test_S7_what_is_no_such_argument_is_not_laid_out(of: str, value: Any) -> None:
    with pytest.raises(Unsuited):
        laid(of, value)


def test_S7_six_words_are_in_registers_and_a_pair_is_never_torn() -> None:
    layout = Layout(False, False)
    for n in range(1, 6):
        layout.add("int", n)
    layout.add("int?", 8)  # two words, of which one would have room
    assert layout.words == [1, 2, 3, 4, 5, 0, 8, 1]
    layout.add("int", 9)  # which has it
    layout.add("int", 10)
    assert layout.words == [1, 2, 3, 4, 5, 9, 8, 1, 10]
    full = Layout(False, False)
    for n in range(1, 5):
        full.add("int", n)
    full.add("int?", 8)
    assert full.words == [1, 2, 3, 4, 8, 1]
    assert Layout(True, False).used == 1 and Layout(False, False).used == 0


def test_S7_what_is_in_memory_is_aligned() -> None:
    layout = Layout(False, False)
    layout.add("str", "abc")
    layout.add("SymInt", 3)
    layout.add("Scalar", 4)
    assert bytes(layout.bytes) == b"abc\0\0\0\0\0" + q(3, 1) + bytes(8) + q(1, 0, 4, 0, 1, 0)
    assert layout.patches == [(POINTS, 1, 0), (POINTS, 2, 8), (POINTS, 3, 32)]
    for given, at in (("1234567", 8), ("12345678", 16)):
        other = Layout(False, False)
        other.add("str", given)
        other.add("SymInt", 3)
        assert other.patches[-1] == (POINTS, 2, at)


def test_S7_more_arguments_than_there_is_room_for_are_not_laid_out() -> None:
    words = Layout(False, False)
    for _ in range(MOST_WORDS):
        words.add("int", 1)
    with pytest.raises(Unsuited, match="too many"):
        words.add("int", 1)
    doubles = Layout(False, False)
    for _ in range(MOST_DOUBLES):
        doubles.add("float", 1.0)
    with pytest.raises(Unsuited, match="too many"):
        doubles.add("float", 1.0)
    for n, fits in ((MOST_BYTES // 8, True), (MOST_BYTES // 8 + 1, False)):
        layout = Layout(False, False)
        if fits:
            layout.add("int[]", (1,) * n)
        else:
            with pytest.raises(Unsuited, match="too many"):
                layout.add("int[]", (1,) * n)


aten = torch.ops.aten
#: Overload -> its arguments as its schema writes them.
SCHEMAS: dict[Any, list[tuple[str, str, Any]]] = {
    aten.add.Tensor: [("self", "Tensor", ...), ("other", "Tensor", ...), ("alpha", "Scalar", 1)],
    aten.add_.Tensor: [("self", "Tensor(a!)", ...), ("other", "Tensor", ...), ("alpha", "Scalar", 1)],
    aten.sum.dim_IntList: [
        ("self", "Tensor", ...), ("dim", "int[1]?", ...), ("keepdim", "bool", False), ("dtype", "ScalarType?", None)
    ],
    aten.gelu.default: [("self", "Tensor", ...), ("approximate", "str", "none")],
    aten.cat.default: [("tensors", "Tensor[]", ...), ("dim", "int", 0)],
    aten.native_layer_norm_backward.default: [
        ("grad_out", "Tensor", ...), ("input", "Tensor", ...), ("normalized_shape", "SymInt[]", ...),
        ("mean", "Tensor", ...), ("rstd", "Tensor", ...), ("weight", "Tensor?", ...), ("bias", "Tensor?", ...),
        ("output_mask", "bool[3]", ...),
    ],
}  # fmt: skip


@pytest.mark.parametrize("overload", SCHEMAS, ids=str)
def test_S7_arguments_are_read_from_the_schema(overload: Any) -> None:
    assert list(native._arguments(overload)) == SCHEMAS[overload]


@pytest.mark.parametrize(("overload", "args", "returns"), [
    (aten.add.Tensor, (Input(0), Input(1)), TENSOR_RESULT),
    (aten.add_.Tensor, (Input(0), Input(1)), NOTHING),
    (aten.max.dim, (Input(0), 1), TUPLE),
    (aten.unbind.int, (Input(0),), LIST),
])  # fmt: skip
def test_S7_what_an_operator_returns_says_whether_its_first_word_is_an_address(
    overload: Any, args: tuple, returns: int
) -> None:
    name, layout, found = native._laid_out(overload, args, {})
    assert found == returns and f"{overload._schema.name.removeprefix('aten::')}" in name
    first = next(word for kind, word, _number in layout.patches if kind == TAKES)
    assert first == (returns != NOTHING)


@pytest.mark.parametrize(("overload", "args", "kwargs", "why"), [
    (aten.add.Tensor, (Input(0),), {}, "other is missing"),
    (aten.add.Tensor, (Input(0), Input(1), 1, 2), {}, "too many arguments"),
    (aten.add.Tensor, (Input(0), Input(1)), {"beta": 2, "gamma": 1}, "beta, gamma is not among its arguments"),
    (aten.equal.default, (Input(0), Input(1)), {}, "what it returns"),
    (aten._local_scalar_dense.default, (Input(0),), {}, "what it returns"),
])  # fmt: skip
def test_S7_a_call_that_is_none_of_an_operators_is_not_laid_out(
    overload: Any, args: tuple, kwargs: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unsuited, match=why):
        native._laid_out(overload, args, kwargs)


def test_S7_arguments_by_name_go_where_those_by_position_do() -> None:
    by_position = native._laid_out(aten.add.Tensor, (Input(0), Input(1), 3), {})
    by_name = native._laid_out(aten.add.Tensor, (Input(0),), {"alpha": 3, "other": Input(1)})
    default = native._laid_out(aten.add.Tensor, (Input(0), Input(1)), {})
    assert by_position[0] == by_name[0] == default[0]
    assert vars(by_position[1]) == vars(by_name[1]) != vars(default[1])


def test_S7_overloads_with_out_are_no_candidates() -> None:
    for func in (torch.add, aten.add.Tensor):
        found = list(native._overloads(SimpleNamespace(func=func, name="aten::add")))
        assert str(found[0]) == "aten.add.Tensor" and aten.add.Scalar in found
        assert len(set(found)) == len(found) and aten.add.out not in found
    own = torch.ops.aten.relu.default
    assert list(native._overloads(SimpleNamespace(func=own, name="mine::relu"))) == [own]
