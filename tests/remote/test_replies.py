"""R3: a worker's reply is taken or ends the session, in one sentence, and never the program.

More of them: ``pytest tests/remote/test_replies.py --messages 100000``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch.base import torch_facts
from mindtorch.base.errors import SessionLost
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.wire import dumps, loads
from mindtorch.engine.remote.worker import Worker

from ..executors import using

LAZY = "remote_accelerator:0"
ROOT = Path(__file__).resolve().parents[2]
STATE = torch.Generator().get_state().numpy().tobytes()


def read(value: torch.Tensor) -> object:
    return value.tolist()


def uploaded(value: torch.Tensor) -> object:
    return (value + torch.arange(100).to(LAZY)).tolist()


def uniques(value: torch.Tensor) -> object:
    return value.unique().tolist()


def state(_value: torch.Tensor) -> object:
    return mindtorch.get_executor().generator_state(0)  # type: ignore[attr-defined]


def at(position: int, item: Any) -> Callable[[tuple], tuple]:
    """An answer with something else at a position."""
    return lambda answer: (*answer[:position], item, *answer[position + 1 :])


@pytest.mark.parametrize(
    ("request_name", "look", "change", "why"),
    [
        ("run", read, at(1, [(0, 7, (1,), 0)]), "an output in 0..0, got 7"),
        ("run", read, at(1, [(0, 1 << 33, (1,), 0)]), "an output in 0..0"),
        ("run", read, at(1, [(0, -1, (1,), 0)]), "an output in 0..0, got -1"),
        ("run", read, at(1, [(99, 0, (1,), 0)]), "a record in 0..1, got 99"),
        ("run", read, at(1, [(0, 0, (1, 1), 0)]), "sizes and strides"),
        ("run", read, at(1, [(0, 0, (-1,), 0)]), "at least 0, got -1"),
        ("run", read, at(1, [(0, 0, (1 << 47,), 0)]), "fewer elements"),
        ("run", read, at(0, [(0, 0, "IndexError", "no")]), "a new failure, got 0"),
        ("run", read, at(0, [(5, 1, "IndexError", "no")]), "a record in 0..1, got 5"),
        ("run", read, at(3, [(0, 4)]), "a failure that was reported, got 4"),
        ("run", read, at(4, [(0, 4, 1)]), "a failure that was reported, got 4"),
        ("run", read, at(5, 3), "did not run in 0..2, got 3"),
        ("run", read, at(6, (3, 0, 0, 0)), "what passes changed in 0..2, got 3"),
        ("run", read, at(6, (0, 3, 0, 0)), "what passes changed in 0..2, got 3"),
        ("run", read, at(6, (0, 0, -1, 0)), "what passes changed in 0.*got -1"),
        ("run", read, at(6, (0, 0, 0, 3)), "what passes changed in 0..2, got 3"),
        ("run", read, at(6, (0, 0, 0)), "expected 4 values"),
        ("run", read, at(2, [(1, 2)]), "times of 0 records, got 1"),
        ("run", read, lambda answer: answer[:5], "expected 7 values"),
        ("fetch", read, at(1, ()), "sizes and strides"),
        ("fetch", read, at(1, (3,)), "expected .* bytes, got"),
        ("fetch", read, at(2, b"abc"), "expected 400 bytes, got 3"),
        ("fetch", read, lambda _answer: ("failed", 3), "a failure that was reported, got 3"),
        ("fetch", read, lambda _answer: None, "expected 3 values"),
        ("call", uniques, lambda _answer: ("failed", 3), "a failure that was reported, got 3"),
        ("call", uniques, at(1, ("given", 5)), "a tensor in 0..0, got 5"),
        ("call", uniques, at(1, ("value", (1 << 40, torch.float32, (2,), (1,), 0, 0))), "the number of a storage"),
        ("call", uniques, at(1, ("tuple", "sys", [])), "return types, got 'sys'"),
        ("call", uniques, at(2, [(4, (1, torch.float32, (2,), (1,), 0, 0))]), "a tensor in 0..0, got 4"),
        ("call", uniques, lambda _answer: ("gone",), "got 'gone'"),
        ("upload", uploaded, lambda _answer: (0, "no"), "a failure in 0.*got -1"),
        ("upload", uploaded, lambda _answer: (1,), "expected 2 values"),
        ("get_state", state, lambda answer: answer[:-1], "the state of a generator"),
        ("get_state", state, lambda s: s[:8] + b"\x58\2" + s[10:16] + b"\x58\2" + s[18:], "the state of a generator"),
    ],
)  # fmt: skip
def test_R3_a_reply_that_cannot_be_is_the_end_of_the_session(
    request_name: str, look: Callable[[torch.Tensor], object], change: Callable[[Any], Any], why: str
) -> None:
    worker, lies = Worker(), [False]

    def send(message: bytearray) -> bytearray:
        requests, answers = loads(message), loads(worker.handle(message))
        for k, request in enumerate(requests):
            if request[0] == request_name and lies[0]:
                answers[k] = change(answers[k])
        return dumps(answers)

    with using(RemoteExecutor(send)):
        x = torch.arange(100.0).to(LAZY)
        before = (x + 1).tolist()
        y = (x * 2) + 1
        if request_name != "run":
            y.sum().item()
        lies[0] = True
        with pytest.raises(
            SessionLost, match=rf"session lost: the worker's answer to \[{request_name}\].*{why}"
        ) as told:
            look(y)
        assert "\n" not in str(told.value) and before[-1] == 100


def test_R3_states_of_generators_that_torch_would_read_beyond() -> None:
    generator = torch.Generator()
    for drawn in (0, 1, 623, 1, 700):
        torch.rand(drawn, generator=generator)
        assert torch_facts.is_state(generator.get_state().numpy().tobytes())
    torch.randn(3, generator=generator)
    assert torch_facts.is_state(generator.get_state().numpy().tobytes())
    for left, place in ((600, 600), (624, 624), (2, 624), (1, 1), (0, 0)):
        bad = STATE[:8] + left.to_bytes(4, "little") + STATE[12:16] + place.to_bytes(8, "little") + STATE[24:]
        assert not torch_facts.is_state(bad), (left, place)
    assert not torch_facts.is_state(b"") and not torch_facts.is_state(STATE + b"\0")


def test_R3_mutated_replies_never_end_the_program(pytestconfig: pytest.Config, forked: Callable[..., Any]) -> None:
    end = pytestconfig.getoption("--messages")
    end = end if end >= 100_000 else end // 160
    done = forked(str(ROOT / "tests" / "remote" / "mutated_replies.py"), "0", str(end), timeout=24 * 3600)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-3000:]
    *_, last = done.stdout.splitlines()
    assert "wrong" not in done.stdout, done.stdout
    ended = int(last.split()[1])
    assert end // 4 < ended < end, last
