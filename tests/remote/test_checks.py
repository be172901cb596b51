"""R3: a message is taken or refused as a whole, by looking at it; in a process of its own, what is taken runs or dies.

More of them: ``pytest tests/remote/test_checks.py --messages 100000``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.engine.remote.checks import Checks
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.engine.remote.wire import Reference, WireError, dumps, loads
from mindtorch.engine.remote.worker import Worker

from ..executors import greeted, using
from .mutations import mutated

LAZY = "remote_accelerator:0"
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def corpus() -> list[bytes]:
    """The messages of a program that trains, draws, takes views, writes, and calls what cannot be recorded."""
    executor = LoopbackExecutor()
    send, sent = executor._send, []

    def noted(message: bytearray) -> object:
        sent.append(bytes(message))
        return send(message)

    executor._send = noted  # type: ignore[method-assign, assignment]
    with using(executor):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)).to(LAZY)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for step in range(3):
            loss = nn.functional.cross_entropy(net(torch.rand(3, 4, device=LAZY)), torch.tensor([0, 1, 0]).to(LAZY))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert loss.item() > step - 10
        x = torch.rand(40).to(LAZY)
        x[3:7].view(2, 2).t().mul_(2)
        assert x[x > 0.5].unique().sum().item() > 0 and x.conj().tolist()
        assert torch.nn.functional.conv1d(x.view(1, 1, -1), torch.ones(1, 1, 3).to(LAZY)).sum().item() > 0
    return sent


def test_R3_messages_of_programs_are_taken_and_give_the_same_again(corpus: list[bytes]) -> None:
    first, second = Worker(), Worker()
    assert len(corpus) >= 6
    for message in corpus:
        assert first.handle(message) == second.handle(message)


def test_R3_mutated_messages_end_in_a_refusal_or_are_messages(corpus: list[bytes], pytestconfig: pytest.Config) -> None:
    n = pytestconfig.getoption("--messages")
    refused = 0
    for number in range(n):
        before, message = mutated(corpus, number)
        checks = Checks()
        checks.greeted = True  # which the worker knows when it has done a hello
        for each in before:
            _look(checks, each)
        try:
            _look(checks, message)
        except WireError:
            refused += 1
    assert n // 2 < refused < n, refused  # some change a number that may be another


def _look(checks: Checks, message: bytes) -> None:
    """Check a message, and let its calls have made what they may."""
    for name, *given in checks.message(loads(message)):
        if name == "call":
            for k in range(8):
                checks.made(given[0] + k)


def test_R3_mutated_messages_are_done_or_refused_in_a_child(
    corpus: list[bytes], pytestconfig: pytest.Config, tmp_path: Path, forked: Callable[..., Any]
) -> None:
    path = tmp_path / "corpus"
    path.write_bytes(pickle.dumps(corpus))
    at, end = 0, pytestconfig.getoption("--messages") // 20
    deaths = refused = 0
    while at < end:
        done = forked(str(HERE / "mutations.py"), str(path), str(at), str(end), timeout=1500)
        last = done.stdout.splitlines()[-1]
        if done.returncode == 0:
            refused += int(last.split()[1])
            break
        assert done.returncode < 0, done.stderr[-3000:]  # by a signal: no exception but a refusal comes out of a worker
        deaths += 1
        at = int(last) + 1
    assert deaths <= end // 100 + 1, deaths
    assert deaths or refused


DESCRIBED = (1, torch.float32, (1,), (1,), 0, 0)
UPLOAD = ("upload", 1, b"abcd")
RELU = ("op aten::relu.default", (Reference(0),), {}, -1, False, (), True, (0,), ((torch.float32, 1, False),))


@pytest.mark.parametrize(
    ("requests", "why"),
    [
        ([("upload", 1, "text")], "upload.*expected bytes"),
        ([("upload", 1)], "expected 2 values"),
        ([("upload", 0, b"")], "number of a storage, got 0"),
        ([UPLOAD, ("write", 1, b"abc")], "expected 4 bytes for storage 1, got 3"),
        ([("copy", 2, 1)], "number of a storage, got 1"),
        ([UPLOAD, ("free", [1]), ("storage", 1)], "number of a storage, got 1"),
        ([("run", 0, 1, b"", b"", False)], "a plan in 0"),
        ([("plan", [(0, True)], [], [])], "a definition in 0"),
        ([("define", [RELU]), ("plan", [(0, True)], [], [])], "expected 1 tensors for"),
        ([("define", [RELU]), ("plan", [(0, True, 0)], [], [])], "expected inputs among 0 tensors"),
        ([("define", [("op aten::from_file.default", *RELU[1:])])], "that checks its arguments"),
        ([("define", [(RELU[0], (Reference(1),), *RELU[2:])])], "holes in order"),
        ([("define", [(*RELU[:7], (None,), RELU[8])])], "expected results for 1 outputs"),
        ([("define", [(*RELU[:7], (0, 0), RELU[8])])], "expected results for 1 outputs"),
        ([UPLOAD, ("fetch", (1, torch.float32, (1,), (1,), 0, 1))], "complex dtype for a conjugated tensor"),
        ([("plan", [], [(torch.float32, 1, False, 1)], [])], "complex dtype for a conjugated tensor"),
        ([UPLOAD, ("call", 5, [DESCRIBED], RELU[0], (Reference(1),), {}, True, -1)], "a tensor in 0..0, got 1"),
        ([UPLOAD, ("fetch", (1, torch.float32, (-1,), (1,), 0, 0))], "of at least 0, got -1"),
        ([UPLOAD, ("fetch", (1, torch.float32, (1 << 60,), (1,), 0, 0))], "of at least 0"),
    ],
)  # fmt: skip
def test_R3_a_message_is_refused_before_any_of_it_is_done(requests: list[tuple], why: str) -> None:
    worker = greeted()
    with pytest.raises(WireError, match=why):
        worker.handle(dumps([("upload", 9, b"first"), *requests]))
    assert not worker.has(9)


FILE = ("file", 2, "path", 0, 4, bytes(32))


def fetched(**other: object) -> list[tuple]:
    """A tensor of all of a storage's 16 bytes, or another one."""
    named = {"number": 1, "dtype": torch.float32, "sizes": (4,), "strides": (1,), "offset": 0, "bits": 0, **other}
    return [("upload", 1, bytes(16)), ("fetch", tuple(named.values()))]


def parts(nbytes: int, begin: int) -> list[tuple]:
    """Two bytes of a storage that is filled later."""
    return [("reserve", 1, nbytes), ("fill", 1, begin, b"ab")]


def called(base: int = 5, random: int = -1) -> list[tuple]:
    """A call by a worker."""
    return [UPLOAD, ("call", base, [DESCRIBED], RELU[0], (Reference(0),), {}, True, random)]


def defined(*outputs: int | None, writes: tuple = (), random: int = -1, ndim: int = 1, n: int = 1) -> list[tuple]:
    """A call that gives so many new tensors and its outputs are these of them, or inputs."""
    predicted = ((torch.float32, ndim, False),) * n
    return [("define", [(*RELU[:3], random, False, writes, True, outputs, predicted)])]


def planned(ndim: int = 1, bits: int = 0, kept: int = 0) -> list[tuple]:
    """A plan of one call, on one tensor."""
    return [*defined(0), ("plan", [(0, True, 0)], [(torch.float32, ndim, False, bits)], [kept])]


def after_a_call(*then: tuple) -> list[tuple]:
    """Which may have resized storage 1."""
    return [*called(), *then]


@pytest.mark.parametrize(
    ("taken", "refused", "why"),
    [
        (defined(0, random=-1), defined(0, random=-2), "index of a generator, got -2"),
        (defined(0, random=127), defined(0, random=128), "index of a generator, got 128"),
        (defined(0, writes=(0,)), defined(0, writes=(1,)), "a hole in 0..0, got 1"),
        (defined(0, ndim=64), defined(0, ndim=65), "dimensions in 0..64, got 65"),
        (defined(0, ndim=0), defined(0, ndim=-1), "dimensions in 0..64, got -1"),
        (defined(0, None), defined(None), "results for 1 outputs"),
        (defined(-1, n=0), defined(-2, n=0), "an output in 0..0, got 1"),
        (defined(1, -1, 0, n=2), defined(1, -1, 2, n=2), "an output in 0..1, got 2"),
        (defined(1, 0, n=2), defined(1, 1, n=2), "results for 2 outputs"),
        (planned(ndim=64), planned(ndim=65), "dimensions in 0..64, got 65"),
        (planned(bits=2), planned(bits=4), "bits in 0..3, got 4"),
        ([("take", 1, (1 << 48) - 1, 5)], [("take", 1, 1 << 48, 5)], "bytes in 0"),
        ([("take", 1, 0, 5)], [("take", 1, -1, 5)], "bytes in 0"),
        ([("unpack", [1, 2], [0, 1], 5)], [("unpack", [1, 2], [0, -1], 5)], "bytes in 0"),
        ([("unpack", [1, 2], [0, 1], 5)], [("unpack", [1, 0], [0, 1], 5)], "number of a storage, got 0"),
        ([("unpack", [1, 2], [0, 1], 5)], [("unpack", [1, 2], [0], 5)], "one that cannot be read"),
        ([("unpack", [1, 2], [0, 1], 5)], [("unpack", [1, "2"], [0, 1], 5)], "number of a storage"),
        ([UPLOAD, ("pack", [1, 1], 5)], [UPLOAD, ("pack", [1, 2], 5)], "number of a storage, got 2"),
        ([UPLOAD, ("give", 1, 5)], [UPLOAD, ("give", 2, 5)], "number of a storage, got 2"),
        ([UPLOAD, ("copy", 2, 1), ("write", 2, b"abcd")], [UPLOAD, ("copy", 2, 1), ("write", 2, b"abc")], "4 bytes"),
        (after_a_call(("write", 1, bytes(5))), after_a_call(("fill", 1, -1, b"a")), "a part of the None bytes"),
        (
            after_a_call(("fetch", (1, torch.float32, (2,), ((1 << 48) - 2,), 0, 0))),
            after_a_call(("fetch", (1, torch.float32, (2,), ((1 << 48) - 1,), 0, 0))),
            "a tensor of fewer elements",
        ),
        (fetched(offset=3, sizes=(), strides=()), fetched(offset=4, sizes=(), strides=()), "within the 16 bytes"),
        ([("upload", (1 << 62) - 1, b"")], [("upload", 1 << 62, b"")], "number of a storage"),
        ([("upload", 1, b"")], [("upload", 0, b"")], "number of a storage, got 0"),
        ([("reserve", 1, (1 << 48) - 1)], [("reserve", 1, 1 << 48)], "bytes in 0"),
        ([("reserve", 1, 0)], [("reserve", 1, -1)], "bytes in 0"),
        (parts(4, 2), parts(4, 3), "a part of the 4 bytes of storage 1, got 2 from 3"),
        (parts(4, 0), parts(4, -1), "a part of the 4 bytes of storage 1, got 2 from -1"),
        ([("get_state", 127)], [("get_state", 128)], "a generator in 0..127, got 128"),
        ([("get_state", 0)], [("get_state", -1)], "a generator in 0..127, got -1"),
        ([("seed", 1, [0, 127])], [("seed", 1, [0, 128])], "a generator in 0..127, got 128"),
        (called(base=1), called(base=0), "number of a storage, got 0"),
        (called(base=(1 << 62) - 1), called(base=1 << 62), "number of a storage"),
        (called(random=-1), called(random=-2), "index of a generator, got -2"),
        (called(random=127), called(random=128), "index of a generator, got 128"),
        ([(*FILE[:3], (1 << 48) - 1, *FILE[4:])], [(*FILE[:3], 1 << 48, *FILE[4:])], "an offset in 0"),
        ([(*FILE[:4], (1 << 48) - 1, FILE[5])], [(*FILE[:4], 1 << 48, FILE[5])], "bytes in 0"),
        ([FILE], [(*FILE[:5], bytes(31))], "a digest, got 31 bytes"),
        ([FILE], [(*FILE[:5], bytes(33))], "a digest, got 33 bytes"),
        (fetched(), fetched(sizes=(5,)), "within the 16 bytes of storage 1"),
        (fetched(sizes=(3,), offset=1), fetched(offset=1), "within the 16 bytes of storage 1"),
        (fetched(sizes=(0,)), fetched(sizes=(-1,)), "of at least 0, got -1"),
        (
            fetched(sizes=((1 << 48) - 1,), strides=(0,)),
            fetched(sizes=(1 << 48,), strides=(0,)),
            "of at least 0, got 281474976710656",
        ),
        (
            fetched(sizes=(1,) * 64, strides=(1,) * 64),
            fetched(sizes=(1,) * 65, strides=(1,) * 65),
            "sizes and strides of a tensor",
        ),
        (fetched(), fetched(strides=(1, 1)), "sizes and strides of a tensor"),
        (fetched(bits=2), fetched(bits=3), "a complex dtype for a conjugated tensor"),
        (
            fetched(dtype=torch.complex64, sizes=(2,), bits=3),
            fetched(dtype=torch.complex64, sizes=(2,), bits=4),
            "bits in 0..3, got 4",
        ),
        ([UPLOAD, ("write", 1, bytes(4))], [UPLOAD, ("write", 1, bytes(5))], "expected 4 bytes for storage 1, got 5"),
    ],
)
def test_R3_messages_are_taken_up_to_their_limits(taken: list[tuple], refused: list[tuple], why: str) -> None:
    first = [("hello", None)]
    assert Checks().message(first + taken) == first + taken
    with pytest.raises(WireError, match=why):
        Checks().message(first + refused)


def test_R3_nothing_is_done_before_a_hello() -> None:
    checks = Checks()
    for requests in ([UPLOAD], [UPLOAD, ("hello", None)]):
        with pytest.raises(WireError, match=r"expected a hello first, got \[upload\]"):
            checks.message(requests)
    assert checks.message([("hello", None), UPLOAD]) and checks.message([]) == []
    with pytest.raises(WireError, match="a hello first"):
        checks.message([UPLOAD])  # whether the sides are alike, the worker says
    checks.greeted = True
    assert checks.message([UPLOAD]) == [UPLOAD]
