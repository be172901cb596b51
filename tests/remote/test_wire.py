"""R3: messages: what goes in comes out, and nothing but a message is taken."""

from __future__ import annotations

import math
import random
import struct

import pytest
import torch

from mindtorch.engine.remote import functions, wire
from mindtorch.engine.remote.wire import HERE, Hole, Reference, WireError, dumps, loads

from ..executors import greeted
from .mutations import scrambled

VALUES = [
    None, True, False, 0, -1, 1, 127, 128, -129, 1 << 40, -(1 << 70), 0.0, -0.0, 1.5, math.inf, 2 + 3j, "", "aéß", b"",
    b"\x00\xff", (), (1, "a", None), [1, [2, (3,)]], torch.Size([2, 3]), {"a": 1, "b": [2]}, Ellipsis,
    torch.float32, torch.strided, torch.channels_last, HERE, Reference(3), Reference(200, True), torch.device("cpu"),
    slice(1, None, 2), Hole.INT, Hole.COMPLEX,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_R3_values_come_out_as_they_went_in(value: object) -> None:
    found = loads(dumps(value))
    assert type(found) is type(value) and repr(found) == repr(value)


@pytest.mark.parametrize("bits", [6, 7, 8, 13, 14, 15, 31, 32, 62, 63, 64, 128])
def test_R3_numbers_and_lengths_at_the_limits_of_their_bytes(bits: int) -> None:
    for n in (2**bits - 2, 2**bits - 1, 2**bits, 2**bits + 1):
        for value in (n, -n):
            assert loads(dumps(value)) == value
            if bits <= 15:
                assert loads(dumps(b"x" * n)) == b"x" * n and loads(dumps([0] * n)) == [0] * n
        assert len(dumps(n)) - len(dumps(0)) == (2 * n).bit_length() // 7 - ((2 * n).bit_length() % 7 == 0)


def test_R3_a_size_ends_within_a_hundred_bytes() -> None:
    assert wire._Reader(b"\x80" * 100 + b"\x01").size() == 1 << 700
    with pytest.raises(WireError, match="is too long"):
        wire._Reader(b"\x80" * 101 + b"\x01").size()


def test_R3_sequences_are_65_deep_at_most() -> None:
    nested: list[object] = []
    for _ in range(64):
        nested = [nested]
    assert loads(dumps(nested)) == nested
    with pytest.raises(WireError, match="expected sequences at most 64 deep"):
        loads(dumps([nested]))


@pytest.mark.parametrize(
    "value", [object(), len, torch.ones(1), {1, 2}, torch.Generator(), lambda: 1], ids=lambda v: type(v).__name__
)
def test_R3_what_has_no_form_is_refused(value: object) -> None:
    with pytest.raises(WireError, match=f"got {type(value).__name__}"):
        dumps([value])


def message() -> bytes:
    """A message with one of each request that has tensors."""
    numbers = struct.pack(
        "<qdqqqq", 1, 2.0, 2, 0, 2, 0
    )  # storage, alpha; sizes and offsets: of the sum, of what is there
    definition = (
        "op aten::add.Tensor", (Reference(0), Reference(1)), {"alpha": Hole.FLOAT}, -1, False, (), True, (0,),
        ((torch.float32, 1, False),),
    )  # fmt: skip
    return bytes(
        dumps(
            [
                ("upload", 1, torch.ones(2).numpy().tobytes()),
                ("define", [definition]),
                ("plan", [(0, True, 0, 0)], [(torch.float32, 1, False, 0)], [0]),
                ("run", 0, 2, struct.pack("<6I", *range(6)), numbers, False),
                ("fetch", (2, torch.float32, (2,), (1,), 0, 0)),
                ("free", [1]),
            ]
        )
    )


def test_R3_a_worker_answers_a_message() -> None:
    answers = loads(greeted().handle(message()))
    assert answers[3] == ([], [], [], [], [], 0, (0, 0, 0, 0)) and answers[4][0] == "values"
    assert torch.frombuffer(bytearray(answers[4][2]), dtype=torch.float32).tolist() == [3.0, 3.0]


def test_R3_bytes_that_are_no_message_are_refused_and_nothing_else_happens() -> None:
    good = message()
    draw = random.Random(0)
    refused = 0
    for _ in range(20_000):
        try:
            loads(scrambled(good, draw))
        except WireError:
            refused += 1
    assert refused > 10_000


@pytest.mark.parametrize(
    ("requests", "why"),
    [
        ([("open", "/etc/passwd")], "a list of requests"),
        ({"a": 1}, "a list of requests"),
        ([("fetch", (9, torch.float32, (2,), (1,), 0, 0))], "the number of a storage, got 9"),
        ([("upload", 1, b"abcd"), ("fetch", (1, torch.float32, (2,), (1,), 0, 0))], "within the 4 bytes"),
        ([("upload", 1, b"abcd"), ("fetch", (1, torch.float32, (1,), (1,), -1, 0))], "of at least 0, got -1"),
        ([("define", [("os.system", (), {}, -1, False, (), True, (), ())])], "the name of an operation"),
    ],
)
def test_R3_a_worker_refuses(requests: object, why: str) -> None:
    with pytest.raises(WireError, match=why):
        greeted().handle(dumps(requests))


@pytest.mark.parametrize(
    "name", ["torch.load", "torch.hub", "functional.importlib", "Tensor.__reduce_ex__", "op os::x."]
)
def test_R3_only_operations_have_names(name: str) -> None:
    with pytest.raises(WireError):
        functions.called(name)
