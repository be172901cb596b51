"""R3: of each kind of answer what may just be and what may not: numbers at both ends, sizes, parts, names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mindtorch.engine.remote.replies import NEW_STORAGES, Known, check, check_warnings
from mindtorch.engine.remote.wire import WireError

F = torch.float32
STATE = torch.Generator().get_state().numpy().tobytes()
#: A failure was told, and two storages are known.
KNOWN = Known({5}, {1: 12, 2: 40})
FETCH = ("fetch", (1, F, (3,), (1,), 0, 0))
STORAGE, SMALL, DIGEST = ("storage", 2), ("small", [1, 2]), ("digest", [1, 2])
BASE = 100
CALL = ("call", BASE, [(1, F, (3,), (1,), 0, 0), (2, F, (10,), (1,), 0, 0)], "f", (), {}, -1, True)
ON_FIRST, ON_NEW = (1, F, (3,), (1,), 0, 0), (BASE, F, (2,), (1,), 0, 0)
COO = torch.sparse_coo


def gave(result: Any, changed: list | None = None, raised: Any = None) -> tuple:
    return "gave", result, changed or [], raised


def plain(layout: Any = COO, sizes: Any = (3, 4), coalesced: Any = True, parts: Any = None) -> tuple:
    return gave(("plain", (layout, sizes, coalesced, [part(), part()] if parts is None else parts)))


def part(shape: Any = (3,), strides: Any = (1,), offset: Any = 0, number: Any = 0, n: int = 12) -> tuple:
    return F, shape, strides, offset, number, bytes(n)


MAY: list[tuple[tuple, Any]] = [
    *[(FETCH, answer) for answer in (("values", (1,), bytes(12)), ("values", (1,), bytes(13)), ("failed", 5))],
    (FETCH, ("values", (2,), bytes(20))),
    (FETCH, ("values", (0,), bytes(4))),
    *[(STORAGE, answer) for answer in (("bytes", bytes(40)), ("bytes", bytes(41)), ("failed", 5))],
    (("storage", 9), ("bytes", b"")),  # of which nobody knows the size
    *[(SMALL, a) for a in ([bytes(12), bytes(40)], [None, bytes(40)], [bytes(13), None], [None, None])],
    (("small", [9]), [b""]),
    (("small", []), []),
    *[(request, ("memory", "why")) for request in (FETCH, STORAGE)],
    *[(DIGEST, answer) for answer in ([bytes(32), None], [None, None], [bytes(32)] * 2)],
    *[(CALL, a) for a in (("failed", 5), ("cannot", "why"), ("raised", "ValueError", "why"))],
    *[(CALL, gave(("given", k))) for k in (0, 1)],
    *[(CALL, gave(("value", (k, *ON_NEW[1:])))) for k in (1, 2, BASE, BASE + NEW_STORAGES - 1)],
    *[(CALL, gave(("constant", value))) for value in (3, 2.5, None, "text", (1, 2))],
    *[(CALL, gave((kind, "", [("value", ON_NEW), ("given", 1), ("constant", 1)]))) for kind in ("list", "tuple")],
    (CALL, gave(("tuple", "max", [("value", ON_NEW), ("value", ON_FIRST)]))),
    (CALL, gave(None, [], ("raised", "ValueError", "why"))),
    *[(CALL, gave(("given", 0), [(k, ON_FIRST), (0, ON_NEW)])) for k in (0, 1)],
    *[(CALL, plain(coalesced=value)) for value in (True, False, None)],
    *[(CALL, plain(layout, parts=[part()] * 3)) for layout in (torch.sparse_csr, torch.sparse_csc)],
    *[(CALL, plain(layout, parts=[part()] * 3)) for layout in (torch.sparse_bsr, torch.sparse_bsc)],
    *[(CALL, plain(parts=[part(number=k), part(n=13)])) for k in (0, 1, 2)],
    (CALL, plain(parts=[part(strides=(2,), n=20), part(offset=2, n=20)])),
    (CALL, plain(parts=[part(shape=(0,), n=0), part(shape=(), strides=(), n=4)])),
    (("hello", ()), ((), "a")),
    (("machine", 0), ("a", "b", "c", 0, 1, 2, 3)),
    *[(("file", "name"), answer) for answer in (None, True, False)],
    (("get_state", 0), STATE),
    *[(("get_generators",), (seed, each)) for seed in (None, 0, 3) for each in ([], [(0, STATE)], [(127, STATE)])],
    *[(("take", 1), answer) for answer in (None, (1, 0), (1, 7), ((1 << 62), (1 << 62) - 1))],
    *[(("unpack", [1, 2]), answer) for answer in ([None, None], [(1, 0), (2, "why")])],
    (("drop", [1]), None),
]

MAY_NOT: list[tuple[tuple, Any]] = [
    *[(FETCH, ("values", (1,), bytes(11))), (FETCH, ("values", (2,), bytes(19))), (FETCH, ("values", (0,), bytes(3)))],
    *[(FETCH, ("values", strides, bytes(12))) for strides in ((1, 1), (-1,), [1])],
    (FETCH, ("bytes", (1,), bytes(12))),
    *[(request, ("failed", k)) for request in (FETCH, STORAGE, CALL) for k in (0, 4, 6, True, "5")],
    *[(request, ("failed", 5, 5)) for request in (FETCH, STORAGE, CALL)],
    *[(request, answer) for request in (FETCH, STORAGE, SMALL, CALL) for answer in (None, (), "failed", 5)],
    *[(request, ("memory", *why)) for request in (FETCH, STORAGE) for why in ((), (1,), ("a", "b"))],
    *[(DIGEST, [each, None]) for each in (bytes(31), bytes(33), b"", "a" * 32)],
    *[(DIGEST, answer) for answer in (None, [None], [None] * 3, (None, None))],
    (STORAGE, ("bytes", bytes(39))),
    (STORAGE, ("values", bytes(40))),
    *[(SMALL, a) for a in ([bytes(11), None], [None, bytes(39)], [None], [None] * 3, [3, None], (None, None))],
    *[(CALL, a) for a in (("cannot", 1), ("cannot",), ("raised", "a"), ("raised", "a", 1), ("gone", "a"))],
    *[(CALL, gave(("given", k))) for k in (-1, 2, 3)],
    *[(CALL, gave(("value", (k, *ON_NEW[1:])))) for k in (0, 3, BASE - 1, BASE + NEW_STORAGES, -1)],
    *[(CALL, gave((kind, "", [("given", 0), ("given", 2)]))) for kind in ("list", "tuple")],
    *[(CALL, gave(("tuple", name, [("given", 0)] * 2))) for name in ("sys", "__name__", "Max", "svd")],
    *[(CALL, gave(("tuple", "max", [("given", 0)] * n))) for n in (1, 3)],
    *[(CALL, gave(result)) for result in (None, (), ("given",), ("set", "", []), ("list", "", ()))],
    (CALL, gave(("constant", torch))),
    (CALL, gave(None, [], ("raised", "ValueError"))),
    (CALL, gave(("given", 0), [], "ValueError")),
    *[(CALL, gave(("given", 0), [(k, ON_FIRST)])) for k in (-1, 2)],
    (CALL, gave(("given", 0), [(0, (3, *ON_FIRST[1:]))])),
    *[(CALL, plain(coalesced=value)) for value in (2, "yes", ())],
    *[(CALL, plain(parts=[part()] * n)) for n in (0, 1, 3)],
    *[(CALL, plain(torch.sparse_csr, parts=[part()] * n)) for n in (2, 4)],
    (CALL, plain(torch.strided)),
    *[(CALL, plain(sizes=sizes)) for sizes in ((-1,), (1 << 50,), ("a",))],
    *[(CALL, plain(parts=[part(), part(number=k)])) for k in (3, BASE, -1)],
    *[(CALL, plain(parts=[part(), each])) for each in (part(n=11), part(strides=(2,), n=19), part(offset=2, n=19))],
    *[(CALL, plain(parts=[part(), each])) for each in (part(strides=(1, 1)), part(offset=-1), part(shape=(-1,)), ())],
    *[(("hello", ()), answer) for answer in (None, ((),), ((), 1), ([], "a"))],
    *[(("machine", 0), answer) for answer in (None, ("a", "b", "c", 0, 1, 2), ("a", "b", "c", 0, 1, 2, "3"))],
    *[(("file", "name"), answer) for answer in (0, 1, "yes", ())],
    *[(("get_state", 0), answer) for answer in (None, b"", STATE[:-1], STATE + b"\0", "state")],
    *[(("get_generators",), a) for a in (None, (1,), ("1", []), (1, [(128, STATE)]), (1, [(-1, STATE)]))],
    *[(("get_generators",), (1, [each])) for each in ((0, b""), (0,), STATE)],
    *[(("take", 1), answer) for answer in ((0, 0), (-1, 0), (1, -1), ((1 << 62) + 1, 0), (1, 1 << 62), (1,), 3)],
    *[(("unpack", [1, 2]), answer) for answer in (None, [None], [None] * 3, [None, (0, 0)], (None, None))],
    *[(("drop", [1]), answer) for answer in (0, False, (), "done")],
]


@pytest.mark.parametrize(("request_", "answer"), MAY, ids=lambda each: repr(each)[:40])
def test_R3_answers_that_may_be_are_taken(request_: tuple, answer: Any) -> None:
    check(request_, answer, KNOWN)


@pytest.mark.parametrize(("request_", "answer"), MAY_NOT, ids=lambda each: repr(each)[:40])
def test_R3_answers_that_may_not_be_are_refused(request_: tuple, answer: Any) -> None:
    with pytest.raises(WireError, match=rf"^the worker's answer to \[{request_[0]}\]"):
        check(request_, answer, KNOWN)


def test_R3_warnings_are_pairs_of_texts() -> None:
    check_warnings([])
    check_warnings([("UserWarning", "text"), ("UserWarning", "")])
    for bad in (None, (), [("UserWarning",)], [("UserWarning", 1)], [("UserWarning", "text"), "text"]):
        with pytest.raises(WireError):
            check_warnings(bad)
