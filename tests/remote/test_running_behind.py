"""R1: what comes between a read and the next write runs on the worker while the program hears of what it has read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.engine.remote.wire import WireError
from mindtorch.engine.remote.worker import Worker

from ..executors import using
from .test_speculation import LAZY, Same, named, names, worker_of


class Posts(LoopbackExecutor):
    """Runs a message when it is posted, as a worker elsewhere does while the program goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.worker, self._does, self._replies = worker_of(self), self._send, dict[int, Any]()
        self._send, self._post = self._reply, self._begin  # type: ignore[assignment]

    def _begin(self, message: bytearray) -> None:
        self._replies[id(message)] = self._does(message)

    def _reply(self, message: bytearray) -> Any:
        return self._replies.pop(id(message)) if id(message) in self._replies else self._does(message)


@pytest.fixture
def posts() -> Iterator[Posts]:
    with using(Posts()) as executor:
        yield executor


def looks_first(device: str, steps: int, executor: Posts | None = None) -> tuple[object, list[list[str]]]:
    """Training that looks at its loss before the backward pass; and the runs that began by the end of each pass."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(8, 8), torch.nn.Tanh()] * 3
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 3)).to(device)
    optimizer, seen, began = torch.optim.AdamW(model.parameters()), [], []
    x = torch.linspace(-1, 1, 64).view(8, 8)
    for step in range(steps):
        loss = torch.nn.functional.cross_entropy(model((x + step).to(device)), (torch.arange(8) % 3).to(device))
        seen.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        began.append(len(executor._line[:-1]) if executor is not None else 0)
        optimizer.step()
    return (seen, list(model.parameters())), began


@pytest.mark.usefixtures("slow")
def test_R1_a_backward_pass_runs_while_the_program_hears_of_its_loss(
    posts: Posts, same_as_eager: Same, sent: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for, does not run again when the program has recorded it, and takes no message of its own."""
    ran: list[int] = []
    monkeypatch.setattr(Worker, "_ran", lambda *given, does=Worker._ran: ran.append(given[2]) or does(*given))
    same_as_eager(lambda device: looks_first(device, 12)[0])
    sent.clear(), ran.clear()
    messages, waits = posts.stats["messages"], posts.waits
    looks_first(LAZY, 20, posts)
    posts.sync()
    assert names(sent)[-8:] == ["run", "speculate", "run", "run"] * 2, "forward, backward, that again, and the step"
    assert [given[1] for _name, given, _answer in sent[-3:-1]] == [sent[-3][1][1]] * 2
    assert len(ran) == len(set(ran)) < len(sent), "nothing has run twice"
    assert posts.waits - waits <= 21 and posts.stats["messages"] - messages <= 3 * 20 + 3


def test_R1_what_ran_ahead_runs_again_only_with_other_numbers(
    loopback: LoopbackExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(6.0).to(LAZY)
    assert (x * 2 + 1).tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    worker, base = worker_of(loopback), 1 << 40
    plan = worker._plans[0]
    before = plan.numbers()
    speculated = worker.speculate(0, base, b"", b"")
    assert speculated is not None and worker._ahead == {base: (0, before, speculated)}
    assert worker.run(0, base, b"", b"", False) is speculated and not worker._ahead and not worker._before
    assert worker.run(0, base, b"", b"", False) is not speculated, "once"
    speculated = worker.speculate(0, base, b"", b"")
    assert worker.run(0, base, b"", b"", True) is not speculated, "with times"
    worker._plans.append(plan)
    speculated = worker.speculate(0, base, b"", b"")
    assert worker.run(1, base, b"", b"", False) is not speculated, "another plan"
    given = plan.ints[0]
    for number, same in ((given, True), (999, False)):
        speculated = worker.speculate(0, base, b"", b"")
        assert speculated is not None
        try:
            answer = worker.run(0, base, bytes(4), number.to_bytes(8, "little"), False)
        except WireError:
            answer = None
        assert (answer is speculated) is same
    worker.run(0, base, bytes(4), given.to_bytes(8, "little"), False)
    for over in (lambda: worker.undo(base), lambda: worker.run(0, base + 1, b"", b"", False)):
        speculated = worker.speculate(0, base, b"", b"")
        over()
        assert not worker._ahead and not worker._before
    for base, failures, kept in ((1 << 41, [], True), (1 << 42, [(0, 1, "", "")], False)):
        monkeypatch.setattr(worker, "_ran", lambda *_, failures=failures: (failures, [], [], [], [], 0, ()))
        worker.speculate(0, base, b"", b"")
        assert (base in worker._ahead) is kept, "what failed, or was warned of, does so where the program asks for it"


def trains(device: str, number: int) -> object:
    """Training that looks at its loss before the backward pass, and does something else in some steps."""
    draw = random.Random(number)
    torch.manual_seed(number)
    width, drops, uploads = draw.choice((4, 8)), draw.random() < 0.3, draw.random() < 0.5
    layers = [torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Dropout(0.3 * drops)] * draw.randrange(4, 7)
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)).to(device)
    kinds: list[Callable[[Any], torch.optim.Optimizer]] = [
        torch.optim.AdamW, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.Adam(p, foreach=False)
    ]  # fmt: skip
    optimizer = draw.choice(kinds)(model.parameters())
    kind = draw.choice(("", "", "clip", "norm", "nan", "two", "keep"))
    ours, held, seen = torch.randn(5, width), list[Any](), list[Any]()
    torch.manual_seed(number)
    x = ours.to(device)
    for step in range(24):
        rare = draw.choice(
            [""] * 90 + ["skip", "eval", "rate", "draw", "hold", "put", "read", "write", "twice", "raise"]
        )
        x = (ours * (1 + 0.1 * step)).to(device) if uploads else x
        y = model(x)
        loss = y.square().mean() + (y * 0.1).sin().sum()
        if kind == "nan" and torch.isnan(loss):
            break
        seen.append(loss.item())
        if rare == "skip":
            continue
        if rare == "eval":
            seen.append(model(x).sum().item())
        if rare == "draw":
            seen.append(torch.rand(2, device=device))
        if rare == "raise":
            with pytest.raises(RuntimeError):
                (loss * torch.ones(3, device=device)).view(7)
        optimizer.zero_grad(kind != "keep")
        loss.backward(retain_graph=rare == "twice")
        if rare == "twice":
            loss.backward()
        weight = next(model.parameters())
        if rare == "hold":
            held.append(weight.grad)
        if rare == "put":
            weight.grad = torch.ones_like(weight)
        if rare == "read":
            seen.append(weight.grad.sum().item())  # type: ignore[union-attr]
        if rare == "write":
            x.add_(1)
        if kind in ("clip", "norm"):
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            seen.append(norm.item() if kind == "norm" else norm)
        if rare == "rate":
            optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.step()
        if kind == "two":
            seen.append(loss.item())
    return seen, held, list(model.parameters()), torch.rand(3, device=device)


@pytest.mark.usefixtures("slow")
def test_R1_random_training_loops_have_eagers_bits(
    posts: Posts, same_as_eager: Same, pytestconfig: pytest.Config, sent: list[tuple]
) -> None:
    for number in range(pytestconfig.getoption("--programs") or 20):
        same_as_eager(named(trains, number))
        posts.sync()
        posts.sync()  # the second takes along what died with the first
        assert set(posts.worker._storages) == set(posts._mirrors.alive) and not posts.worker._overwritten
    assert names(sent).count("speculate") > names(sent).count("run") / 30
