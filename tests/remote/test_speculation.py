"""R1: what a loop is likely to ask for next runs ahead on the worker. What it does not ask for leaves nothing."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch
from mindtorch._ext.encoder import encode
from mindtorch.base.errors import SessionLost
from mindtorch.engine.remote import client, speculation
from mindtorch.engine.remote.client import RemoteExecutor
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.engine.remote.wire import WireError
from mindtorch.engine.remote.worker import Worker

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


def worker_of(executor: LoopbackExecutor) -> Worker:
    return executor._send.__self__  # type: ignore[attr-defined, no-any-return]


def names(sent: list[tuple]) -> list[str]:
    return [name for name, *_ in sent]


def named(run: Callable[..., object], number: int) -> Callable[[str], object]:
    """The random program of this number, which says in a failure which it is."""
    program = functools.partial(run, number=number)
    program.__name__ = f"{run.__name__} {number}"  # type: ignore[attr-defined]
    return program


def grows(device: str, steps: int, waits: Callable[[], int] = int) -> tuple[torch.Tensor, list[int]]:
    """A loop over a sequence that grows, until a sum is large enough; and the waits after each step."""
    x, w = torch.ones(1, 4).to(device), torch.linspace(0.1, 1, 16).view(4, 4).to(device)
    counts = []
    while True:
        x = torch.cat([x, (x[-1:] @ w).sigmoid()])
        done = bool(x.shape[0] * (x > 0).sum() >= 4 * steps * steps)
        counts.append(waits())
        if done:
            return x, counts


@pytest.mark.usefixtures("slow")
def test_R1_a_loop_that_stops_by_a_test_waits_once_in_eleven_steps(
    elsewhere: RemoteExecutor, same_as_eager: Same
) -> None:
    same_as_eager(lambda device: grows(device, 60)[0])
    counts = grows(LAZY, 100, lambda: elsewhere.waits)[1]
    assert len(counts) == 99
    waited = [after - before for before, after in itertools.pairwise(counts)]
    assert set(waited) == {0, 1} and waited[-50:].count(1) in (4, 5) and sum(waited) <= 0.15 * 99, waited
    gaps = [at for at, n in enumerate(waited) if n]
    assert [b - a for a, b in itertools.pairwise(gaps)][-4:] == [11] * 4


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_R1_generation_with_an_end_token_waits_at_most_0_15_times_a_token(
    sample: bool, elsewhere: RemoteExecutor, same_as_eager: Same
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=160, bos_token_id=0)
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(config).eval()
    waits: list[int] = []

    def program(device: str) -> object:
        model.to(device)
        torch.manual_seed(2)
        ids = torch.arange(10).view(2, 5).to(device)
        given = {"do_sample": sample, "pad_token_id": 0, "eos_token_id": 49}
        found = []
        for n in (120, 120, 17):
            before = elsewhere.waits
            found.append(model.generate(ids, max_new_tokens=n, **given))
            found.append(torch.rand(3, device=device))  # goes on from where the program's own draws have ended
            if device == LAZY:
                waits.append(elsewhere.waits - before)
        return found

    same_as_eager(program)
    assert waits[1] <= 0.15 * 120, waits


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_R1_an_end_token_that_comes_ends_what_was_run_ahead(
    sample: bool, loopback: LoopbackExecutor, same_as_eager: Same, sent: list[tuple]
) -> None:
    """At each token, the first of which are waited for; then generators and memory are as if it had not been."""
    mirrors = loopback._mirrors

    def program(device: str, last: int) -> object:
        torch.manual_seed(last)
        generated = torch.zeros(1, 1, dtype=torch.int64).to(device)
        table = torch.linspace(-2, 2, 90).view(30, 3).to(device)
        for step in range(100):
            scores = (table[generated].sum(1) @ table.t()).softmax(-1)
            token = torch.multinomial(scores, 1, generator=None) if sample else scores.argmax(-1, keepdim=True)
            generated = torch.cat([generated, token], 1)
            if bool((token * 0 + step >= last).all()):
                break
        return generated, torch.rand(4, device=device), torch.randn(2, device=device)

    for last in range(3, 24):
        same_as_eager(lambda device, last=last: program(device, last))
    assert "speculate" in names(sent) and ("undo" in names(sent)) is sample
    loopback.sync()
    loopback.sync()  # the second takes along what died with the first
    worker = worker_of(loopback)
    assert set(worker._storages) == set(mirrors.alive) and not worker._overwritten


def fails(x: torch.Tensor, device: str) -> torch.Tensor:
    with pytest.raises((IndexError, mindtorch.MaterializationError)):
        x[torch.tensor([9]).to(device)].sum().item()
    return x


CHANGES: dict[str, Callable[[torch.Tensor, str], object]] = {
    "another number": lambda x, _: x.add(0.25),
    "another shape": lambda x, _: x.view(4, 1).sum(1),
    "a write": lambda x, _: x.mul_(2),
    "an upload": lambda x, device: x + torch.tensor([1.0, 2, 3, 4]).to(device),
    "a draw": lambda x, device: x + torch.rand(4, device=device),
    "a seed": lambda x, _: (torch.manual_seed(7), x)[1],
    "a read": lambda x, _: x + x[2].item(),
    "all read": lambda x, device: torch.tensor(x.tolist()).to(device),
    "an error": lambda x, device: fails(x, device),
    "no error": lambda x, _: x,
    "a setting": lambda x, _: (torch.set_grad_enabled(not torch.is_grad_enabled()), x)[1],
    "flush": lambda x, _: (torch.set_flush_denormal(True), x * 1e-39, torch.set_flush_denormal(False))[1],
    "a call that cannot wait": lambda x, _: x + x.unique().sum(),
    "a copy": lambda x, _: x.clone(),
    "nothing else": lambda x, _: x + 0,
}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("draws", [False, True], ids=["", "draws"])
def test_R1_what_is_done_otherwise_is_done_so(
    change: str, draws: bool, loopback: LoopbackExecutor, same_as_eager: Same, sent: list[tuple]
) -> None:
    def program(device: str) -> object:
        torch.manual_seed(5)
        x, seen = torch.arange(4.0).to(device), []
        for step in range(24):
            if step in (9, 10, 17):
                x = CHANGES[change](x, device)  # type: ignore[assignment]
            y = x.cos() + torch.rand(4, device=device) if draws else x.cos()
            x = y * 0.75 + 0.5
            seen.append(bool(x.sum() > 3))
        return x, seen, torch.rand(3, device=device)

    with torch.random.fork_rng():
        try:
            same_as_eager(program)
        finally:
            torch.set_grad_enabled(True)
    assert "speculate" in names(sent)


@pytest.mark.usefixtures("slow")
def test_R1_what_would_fail_ahead_fails_for_nobody(
    loopback: LoopbackExecutor, same_as_eager: Same, sent: list[tuple]
) -> None:
    """The loop ends before the table does; what runs ahead goes beyond it."""

    def program(device: str, n: int) -> object:
        table, at = torch.ones(n).to(device), torch.zeros(1, dtype=torch.int64).to(device)
        total = torch.zeros(1).to(device)
        while bool(total < n - 1):
            total, at = total + table[at], at + 1
            total = total.clone().add_(0)  # writes to what is new
        return total, at

    for n in range(18, 24):
        same_as_eager(functools.partial(program, n=n))
    failed = [answer for name, _, answer in sent if name == "speculate" and answer is not None and answer[0]]
    assert failed
    loopback.sync()
    loopback.sync()
    assert not worker_of(loopback)._overwritten and set(worker_of(loopback)._storages) == set(loopback._mirrors.alive)
    assert (torch.arange(3.0).to(LAZY) + 1).tolist() == [1, 2, 3]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("how", ["writes", "uploads", "calls"])
def test_R1_steps_that_do_more_than_make_values_are_not_run_ahead(
    how: str, loopback: LoopbackExecutor, same_as_eager: Same, sent: list[tuple]
) -> None:
    def program(device: str) -> object:
        x, total = torch.ones(3).to(device), torch.zeros(1).to(device)
        for step in range(20):
            if how == "writes":
                x.mul_(0.5)
            elif how == "uploads":
                x = x + torch.full((3,), float(step)).to(device)
            else:
                x = x + x.unique().sum()
            if bool(x.sum() > 1e9):
                break
        return x, total

    same_as_eager(program)
    assert "speculate" not in names(sent)


# ---- reads with something between them ------------------------------------------------------------------------------
def small_model(device: str) -> torch.nn.Module:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(device)
    torch.manual_seed(4)
    return model


def acts(device: str, steps: int, waits: Callable[[], int]) -> tuple[object, list[int]]:
    """A policy that samples what it does, with torch's own checks, from what its environment shows it."""
    model, seen, counts = small_model(device), [], []
    shown = torch.zeros(4)
    for _ in range(steps):
        policy = torch.distributions.Categorical(logits=model(shown.to(device)))
        action = policy.sample()
        seen.append((action.item(), policy.log_prob(action)))
        shown = shown * 0.9 + seen[-1][0]
        counts.append(waits())
    return (seen, torch.rand(3, device=device)), counts


def looks(device: str, steps: int, waits: Callable[[], int]) -> tuple[object, list[int]]:
    """Training that looks whether the loss is a number, and logs it and the norm of the gradients."""
    model, seen, counts = small_model(device), [], []
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        x, y = torch.linspace(-1, 1, 32).add(step).view(8, 4), torch.arange(8) % 3
        loss = torch.nn.functional.cross_entropy(torch.dropout(model(x.to(device)), 0.1, True), y.to(device))
        if torch.isnan(loss):
            break
        seen.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen.append(norm.item())
        counts.append(waits())
    return (seen, list(model.parameters()), torch.rand(3, device=device)), counts


def logs(device: str, steps: int, waits: Callable[[], int]) -> tuple[object, list[int]]:
    """Training as Hugging Face's Trainer does it, with a log line at each step."""
    model, seen, counts = small_model(device), [], []
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 1000)
    total = torch.tensor(0.0).to(device)
    for step in range(steps):
        x, y = torch.linspace(-1, 1, 32).add(step).view(8, 4), torch.arange(8) % 3
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        one = loss.detach()
        total = total + total / (1 + step) if torch.isnan(one) or torch.isinf(one) else total + one
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seen.append(total.mean().item())
        total -= total
        seen.append(norm.item())
        counts.append(waits())
    return (seen, list(model.parameters())), counts


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("program", "most"), [(acts, 1), (looks, 1), (logs, 2)])
def test_R1_reads_that_follow_each_other_wait_once(
    program: Callable[..., Any], most: int, elsewhere: RemoteExecutor, same_as_eager: Same
) -> None:
    """What comes after a read, up to the next one, runs ahead, whatever else a step does: uploads, writes."""
    same_as_eager(lambda device: program(device, 12, int)[0])
    counts = program(LAZY, 30, lambda: elsewhere.waits)[1]
    waited = [after - before for before, after in itertools.pairwise(counts)]
    assert len(waited) == 29 and max(waited[8:]) <= most, waited


@pytest.mark.usefixtures("slow")
def test_R1_a_step_that_ends_at_its_first_read_is_as_if_the_next_had_not_run_ahead(
    elsewhere: RemoteExecutor, same_as_eager: Same
) -> None:
    def program(device: str, last: int) -> object:
        model, seen = small_model(device), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(last + 4):
            x = torch.linspace(-1, 1, 32).add(0 if step < last else torch.nan).view(8, 4).to(device)
            loss = torch.dropout(model(x), 0.5, True).square().mean()
            seen.append(bool(torch.isnan(loss)))
            if seen[-1]:
                continue
            optimizer.zero_grad()
            (loss * torch.rand((), device=device)).backward()
            seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
        return seen, list(model.parameters()), torch.rand(3, device=device)

    for last in range(4, 12):
        same_as_eager(functools.partial(program, last=last))


@pytest.mark.usefixtures("slow")
def test_R1_what_runs_ahead_takes_little_memory(
    loopback: LoopbackExecutor, monkeypatch: pytest.MonkeyPatch, sent: list[tuple]
) -> None:
    grows(LAZY, 30)
    most = max(len(list(group)) for name, group in itertools.groupby(names(sent)) if name == "speculate")
    assert most == 10
    sent.clear()
    monkeypatch.setattr(speculation, "_ROOM", 4 * 31 * 4 * 3)
    grows(LAZY, 30)
    groups = [len(list(group)) for name, group in itertools.groupby(names(sent)) if name == "speculate"]
    assert 1 <= max(groups) < 10


def test_R1_what_a_worker_may_not_run_ahead_ends_no_session(
    loopback: LoopbackExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever number of a plan was guessed wrong: the next ones are told as what differs from that."""
    seen: list[Any] = []
    monkeypatch.setattr(client, "encode", lambda segment: seen.append(encode(segment)) or seen[-1])
    x = torch.arange(6.0).to(LAZY)
    assert x.view(2, 3).mul(2).sum(0).tolist() == [6.0, 10.0, 14.0]
    numbers = memoryview(seen[0].numbers).cast("q").tolist()
    worker, base, refused = worker_of(loopback), itertools.count(1 << 40, 1 << 8), 0
    for at, value in itertools.product(range(len(numbers)), (-2, 0, 5, 999, 1 << 50)):
        place, found = at.to_bytes(4, "little"), []
        for number in (value, numbers[at]):
            data = number.to_bytes(8, "little", signed=True)
            loopback._ask("speculate", 0, next(base), place, data, answer=found.append)
            loopback.sync()
            assert worker._plans[0].ints[at] == number
        assert found[1] is not None and not found[1][0] and not found[1][1], (at, value)
        refused += found[0] is None
    assert refused > len(numbers) and not worker._checks.refused
    with pytest.raises(WireError, match="expected the number of a storage, got 999"):
        worker._checks.message([("run", 0, next(base), bytes(4), (999).to_bytes(8, "little"), False)])


def test_R1_generators_go_back_to_before_what_was_run_ahead() -> None:
    worker = Worker()
    worker.seed(3, [])
    first = worker.get_state(0)
    worker._before[7] = {0: worker._local.state(0).clone()}
    worker.seed(4, [])
    worker.undo(8)
    assert worker.get_state(0) != first and not worker._before, "of another guess"
    worker._before[7] = {0: torch.frombuffer(bytearray(first), dtype=torch.uint8)}
    worker.undo(7)
    assert worker.get_state(0) == first and not worker._before


# ---- random loops ----------------------------------------------------------------------------------------------------
OPS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.cos(), lambda x: x * 0.5 + 1, lambda x: torch.cat([x, x[-1:]])[-40:], lambda x: x.flip(0),
    lambda x: (x.sum() + x).sigmoid(), lambda x: x[: max(1, x.shape[0] // 2)].repeat(2), lambda x: x.view(1, -1).sum(0),
    lambda x: torch.rand(x.shape, device=x.device) + x, lambda x: x + torch.randn((), device=x.device),
    lambda x: torch.nn.functional.dropout(x, 0.3), lambda x: x.clone().mul_(2).clamp(-5, 5), lambda x: x.sort().values,
]  # fmt: skip
RARE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.add_(1), lambda x: x + torch.ones(1).to(x.device), lambda x: x.unique().float(),
    lambda x: x + x[0].item(), lambda x: x.detach().cpu().to(x.device), lambda x: x * 3,
]  # fmt: skip


def loop(device: str, number: int) -> object:
    """A loop of some calls, which at times does something else, and stops by a test on values."""
    draw = random.Random(number)
    often, count = draw.choice((0, 0, 0.2)), itertools.count()
    uploads = [lambda x: x + torch.full((1,), 0.01 * next(count)).to(x.device)]
    body = [draw.choice(OPS if draw.random() >= often else RARE + uploads * 4) for _ in range(draw.randrange(1, 7))]
    tests = draw.choice((1, 1, 1, 2))
    rare = draw.choice((0, 0, 0.03, 0.1))
    torch.manual_seed(number)
    x, seen = torch.linspace(-1, 1, draw.randrange(1, 9)).to(device), []
    for _ in range(draw.choice((2, 3))):
        for step in range(draw.randrange(8, 30)):
            for op in body:
                x = op(x)
                if draw.random() < rare:
                    x = draw.choice(RARE)(x)
            stop = [bool(x.sum() + step * k > 25) for k in range(tests)]
            seen.append(stop)
            if stop[-1]:
                x = x * 0.1
                break
        seen.append(x.tolist())
    return x, seen, torch.rand(2, device=device)


@pytest.mark.usefixtures("slow")
def test_R1_random_loops_have_eagers_bits(
    loopback: LoopbackExecutor, same_as_eager: Same, pytestconfig: pytest.Config, sent: list[tuple]
) -> None:
    for number in range(pytestconfig.getoption("--programs") or 60):
        same_as_eager(named(loop, number))
    assert names(sent).count("speculate") > names(sent).count("run") / 10 and "undo" in names(sent)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("name", "change", "why"), [
    ("speculate", lambda found: found[:5], "answer to .speculate.: .* expected 7 values"),
    ("speculate", lambda found: ([(0, 0, "IndexError", "no")], *found[1:]), "a new failure, got 0"),
    ("speculate", lambda found: (*found[:5], 99, found[6]), "did not run in 0.*got 99"),
    ("speculate", lambda found: (*found[:3], [(99, 1)], *found[4:]), "an output in 0.*got 99"),
    ("learn", lambda found: [data and data[:-1] for data in found], r"expected \d+ bytes of storage \d+, got"),
])  # fmt: skip
def test_R3_what_a_worker_may_not_say_of_what_ran_ahead_ends_the_session(
    name: str, change: Callable[[Any], Any], why: str, loopback: LoopbackExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner: type = speculation.Guess if name == "learn" else Worker
    does, ahead = getattr(owner, name), []

    def do(self: Any, *given: Any) -> Any:
        ahead.append(given)
        return does(self, change(given[0])) if name == "learn" else change(does(self, *given))

    monkeypatch.setattr(owner, name, do)
    with pytest.raises(SessionLost, match=why):
        grows(LAZY, 20)
    assert ahead
    monkeypatch.undo()
    mindtorch.set_executor(None)
