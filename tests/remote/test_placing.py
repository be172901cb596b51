"""R5: one device of the program's on several workers, where one has not enough memory for its model."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mindtorch
from mindtorch._ext import lazy as _core
from mindtorch.base.errors import SessionLost
from mindtorch.engine.execute import machine
from mindtorch.engine.remote import division, placing
from mindtorch.engine.remote.placing import PlacingExecutor
from mindtorch.engine.remote.run_time import Costs

from ..executors import Anywhere, mortal, using

DEVICE = "remote_accelerator:0"
pytestmark = pytest.mark.usefixtures("nothing_pending")


def over(workers: int, limit: int) -> PlacingExecutor:
    return PlacingExecutor([mindtorch.LoopbackExecutor() for _ in range(workers)], limit)


def same(program: Callable[[str], Any]) -> Any:
    """The program on the device gives what it gives on the CPU, bit for bit."""
    torch.manual_seed(5)
    expected = program("cpu")
    torch.manual_seed(5)
    found = program(DEVICE)
    torch.testing.assert_close(_home(found), _home(expected), rtol=0, atol=0, equal_nan=True)
    return found


def _home(a: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return a.detach().cpu()
    return [_home(item) for item in a] if isinstance(a, (list, tuple)) else a


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Language(nn.Module):
    """Its head is its embedding."""

    def __init__(self, width: int = 32, layers: int = 6, words: int = 50) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


class UNet(nn.Module):
    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.d1, self.d2, self.d3 = (
            nn.Conv2d(3, c, 3, 1, 1),
            nn.Conv2d(c, 2 * c, 3, 2, 1),
            nn.Conv2d(2 * c, 4 * c, 3, 2, 1),
        )
        self.u2, self.u1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2), nn.ConvTranspose2d(4 * c, c, 2, 2)
        self.norm, self.out = nn.BatchNorm2d(2 * c), nn.Conv2d(2 * c, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.d1(x))
        b = F.relu(self.norm(self.d2(a)))
        y = torch.cat((F.relu(self.u2(F.relu(self.d3(b)))), b), 1)
        return self.out(torch.cat((F.relu(self.u1(y)), a), 1))


def mlp(width: int = 64, layers: int = 8) -> nn.Module:
    return nn.Sequential(*[layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())])


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], int]] = {
    "mlp": (mlp, lambda: torch.randn(4, 64), 200_000),
    "language": (Language, lambda: torch.randint(0, 50, (2, 8)), 500_000),
    "unet": (UNet, lambda: torch.randn(2, 3, 16, 16), 150_000),
}


def trained(name: str, device: str, steps: int = 3, **optimizer: Any) -> Any:
    make, data, _limit = MODELS[name]
    model = make().to(device)
    x = data().to(device)
    torch.manual_seed(7)  # what was drawn until here was drawn on the CPU
    step = torch.optim.AdamW(model.parameters(), lr=0.01, **optimizer)
    losses = []
    for _ in range(steps):
        loss = model(x).float().square().mean()
        step.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.step()
        losses.append(loss.item())
    states = [step.state[p]["exp_avg_sq"] for p in model.parameters()]
    return losses, list(model.parameters()), list(model.buffers()), states, torch.rand(3, device=device)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("foreach", [False, True])
def test_R5_what_is_too_large_for_a_worker_trains_on_several_with_the_same_bits(name: str, foreach: bool) -> None:
    with using(over(4, MODELS[name][2])) as executor:
        same(lambda device: trained(name, device, foreach=foreach))
        assert executor.moves and executor._workers is not None


@pytest.mark.parametrize("limit", ["3G", -1, 1.5, True])
def test_R5_a_limit_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(mindtorch.UsageError, match=r"\[PlacingExecutor\] expected a limit of 0 bytes or more, or None"):
        over(2, limit)  # type: ignore[arg-type]


def test_R5_a_model_of_three_times_a_worker_s_memory_has_no_worker_over_its_limit() -> None:
    most: dict[int, int] = {}
    limit = 8 * 4 * (64 * 64 + 64) * 4 // 3 + 40_000
    found: list[Any] = []
    before = placing.tell(found.append)
    try:
        with using(over(4, limit)) as executor:

            def submit(segment: Any, of: Callable[[Any], None] = executor.submit) -> None:
                of(segment)
                for k, each in enumerate(executor.executors):
                    most[k] = max(most.get(k, 0), executor._held(each))

            executor.submit = submit  # type: ignore[method-assign]
            same(lambda device: trained("mlp", device))
    finally:
        placing.tell(*before)
    best = found[0][0]
    assert len(found) == 1 and best.excess == 0 and best.used > 1
    assert 0 < max(most.values()) <= limit
    one = next(plan for plan in found[0] if plan.name == "all on one")
    assert one.excess > 0 and one.moved == 0


def test_R5_generation_on_several_workers_gives_the_same_tokens() -> None:
    def program(device: str) -> Any:
        model = Language().to(device).eval()
        ids = torch.tensor([[1, 2, 3]]).to(device)
        with torch.no_grad():
            for _ in range(6):
                logits = model(ids)[:, -1]
                ids = torch.cat((ids, torch.multinomial(logits.softmax(-1), 1)), 1)
                if ids[0, -1].item() == 49:
                    break
        return ids.tolist()

    with using(over(3, 140_000)) as executor:
        same(program)
        assert executor.moves


def test_R5_what_fits_stays_on_the_first_worker() -> None:
    with using(over(3, 1 << 24)) as executor:
        same(lambda device: trained("mlp", device))
        assert not executor.moves and executor.joined == 0
        assert [each.stats["messages"] > 0 for each in executor.executors] == [True, False, False]


def test_R5_what_is_trained_and_fits_stays_on_the_first_worker_step_after_step() -> None:
    """Its gradients and its optimizer's states were counted once more when they were there."""
    with using(
        over(2, 700_000)
    ) as executor:  # weights of 133,120 bytes, as many of gradients, and twice that of states
        model, x = mlp().to(DEVICE), torch.ones(4, 64).to(DEVICE)
        step = torch.optim.AdamW(model.parameters(), lr=0.01)
        for k in range(3):
            loss = model(x).square().mean()
            if k == 1:
                loss.item()  # so what runs next is a forward pass
            step.zero_grad()
            loss.backward()
            step.step()
            loss.item()
            assert executor._workers is None, f"step {k}"
        del model, x, step, loss


def test_R5_a_model_made_on_the_device_is_made_where_it_is_needed() -> None:
    def program(device: str) -> Any:
        with torch.device(device):
            model = mlp()
            x = torch.rand(4, 64)
        return model(x).sum().item(), list(model.parameters())

    with using(over(3, 60_000)) as executor:
        same(program)
        assert max(executor._held(each) for each in executor.executors) <= 60_000


def test_R5_a_model_that_is_gone_takes_no_memory_of_the_next_one() -> None:
    """What was uploaded kept its place until the next message, so a plan had less room than there was."""
    with using(over(2, 420_000)) as executor:
        for _ in range(2):
            model, x = mlp().to(DEVICE), torch.ones(4, 64).to(DEVICE)
            model(x).sum().item()
            assert sum(executor._held(each) for each in executor.executors) > 8 * 64 * 64 * 4
            del model, x
            mindtorch.flush("test")  # what was recorded and nobody reads keeps its values
            gc.collect()
            assert [executor._held(each) for each in executor.executors] == [0, 0]


def test_R5_moves_are_those_of_the_plan_and_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step crosses each cut twice, with the activations and with their gradients; states of the optimizer stay."""
    monkeypatch.setattr(machine, "timing", None)  # of cuts that cost the same, what is measured would choose
    found: list[Any] = []
    before = placing.tell(found.append)
    try:
        with using(over(2, 420_000)) as executor:
            executor._costs = Costs(1e-3, 1e-8)
            make, data, _ = MODELS["mlp"]
            model, x = make().to(DEVICE), data().to(DEVICE)
            step = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)

            def crossed(run: Callable[[], object]) -> tuple[int, int]:
                before = sum(executor.moves.values()), executor.joined
                run()
                return sum(executor.moves.values()) - before[0], executor.joined - before[1]

            def once() -> None:
                loss = model(x).square().mean()
                step.zero_grad()
                loss.backward()
                step.step()
                loss.item()

            def forward() -> None:
                model(x).sum().item()

            activations = 4 * 64 * 4
            forwards = crossed(forward)
            assert forwards == (activations, 1)
            assert [(plans[0].used, plans[0].moved, plans[0].messages) for plans in found] == [(2, *forwards)]
            mindtorch.flush("test")
            # The activations, and their gradients: what relu's gradient is made of has stayed where it was made.
            assert [crossed(once) for _ in range(3)][1:] == [(2 * activations, 2)] * 2
    finally:
        placing.tell(*before)


def drawn(device: str, seed: int) -> Any:
    """A program of views, writes, draws and reads."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    held = [torch.arange(12.0).view(3, 4).to(device) / 7, torch.rand(4, 3, device=device)]
    out: list[Any] = []
    for k in range(50):
        a = dice.choice(held)
        kind = dice.randrange(12)
        made: torch.Tensor | None = None
        if kind == 0:
            made = a.t()
        elif kind == 1:
            a.mul_(1.01)
        elif kind == 2:
            made = a[1:]
        elif kind == 3:
            a.add_(torch.rand_like(a))
        elif kind == 4:
            made = F.dropout(a, 0.3)
        elif kind == 5:
            made = a @ a.t()
        elif kind == 6:
            a.zero_().add_(0.5 * k)
        elif kind == 7:
            made = a.clone()
            made[0] = 3.0
        elif kind == 8:
            made = torch.cat((a, a))[: a.shape[0]]
        elif kind == 9:
            out.append(a.sum().item())
        elif kind == 10:
            made = a.reshape(-1).view(a.shape)
        else:
            torch._foreach_add_([a, a.clone()], 0.5)
        if made is not None and 0 < made.numel() <= 64 and made.dim() == 2:
            held.append(made)
        if len(held) > 8:
            held.pop(dice.randrange(len(held)))
    return out, held, torch.rand(2, device=device)


@pytest.mark.parametrize("part", range(4))
def test_R5_wherever_each_record_runs_the_bits_are_the_same(part: int) -> None:
    with using(Anywhere([mindtorch.LoopbackExecutor() for _ in range(3)], 1)) as executor:
        executor.dice = random.Random(part)
        for seed in range(part * 10, part * 10 + 10):
            same(lambda device, seed=seed: drawn(device, seed))
        assert len(executor.moves) == 6


def test_R5_calls_that_cannot_wait_find_their_values_on_one_worker() -> None:
    def program(device: str) -> Any:
        a, b = mlp(8, 2).to(device), mlp(8, 2).to(device)
        x = torch.linspace(-1, 1, 16).view(2, 8).to(device)
        y, z = a(x), b(x)
        mask = (y + z) > 0
        picked = torch.masked_select(y - z, mask)
        return picked, torch.nonzero(mask), torch.unique(mask.long() + (y > z).long())

    with using(over(3, 500)):
        same(program)


def test_R5_another_index_is_another_worker_still() -> None:
    with using(over(3, 60_000)) as executor:
        a = mlp().to(DEVICE)
        b = torch.ones(8, 64).to("remote_accelerator:2")
        expected = (a(b.to(DEVICE)).to("remote_accelerator:2") + b).sum()
        assert expected.device == torch.device("remote_accelerator:2") and expected.item() == expected.cpu().item()
        assert sum(each.stats["messages"] > 0 for each in executor.executors) == 3
        with pytest.raises(mindtorch.MaterializationError, match=r"a remote_accelerator in 0\.\.2, .* got 7"):
            torch.ones(3, device="remote_accelerator:7").sum().item()


@pytest.mark.parametrize("limit", [200_000, 1 << 24])
def test_R5_values_go_along_when_the_executor_changes_from_several_workers(limit: int) -> None:
    with using(over(4, limit)):
        x = torch.arange(6.0).to(DEVICE)
        _losses, parameters, *_ = trained("mlp", DEVICE, 1)
        with using(mindtorch.LocalExecutor()):
            assert x[1:].sum().item() == 15
            total = sum(p.double().sum().item() for p in parameters)
        assert total == sum(p.double().sum().item() for p in parameters)


# ---- processes -------------------------------------------------------------------------------------------------------
def test_R5_a_model_of_three_times_a_worker_s_memory_trains_in_processes_that_have_no_more() -> None:
    """Each process may have 340 MB more than at first, of which torch itself comes to need 150."""
    resource = pytest.importorskip("resource")

    def program(device: str) -> Any:
        torch.manual_seed(0)
        model = mlp(1024, 24).to(device)
        assert sum(p.nbytes for p in model.parameters()) * 4 > 340 << 20  # with gradients and states
        x = torch.linspace(-1, 1, 4 * 1024).view(4, 1024).to(device)
        step = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for _ in range(2):
            loss = model(x).square().mean()
            step.zero_grad()
            loss.backward()
            step.step()
            losses.append(loss.item())
        return losses, [p[0].tolist() for p in model.parameters()]

    pipes = [mindtorch.PipeExecutor() for _ in range(4)]
    for pipe in pipes:
        pipe.start()
    for pipe in pipes:
        pipe.sync()
        limit = resource.prlimit(pipe.process, resource.RLIMIT_DATA)[1]
        status = Path(f"/proc/{pipe.process}/status").read_text().splitlines()
        data = next(line for line in status if line.startswith("VmData"))
        resource.prlimit(pipe.process, resource.RLIMIT_DATA, (int(data.split()[1]) * 1024 + (340 << 20), limit))
    with using(PlacingExecutor(pipes, 120 << 20)) as executor:
        found = program(DEVICE)
        assert executor.moves
    assert found == program("cpu")


def test_R5_a_worker_that_is_lost_is_told_and_what_the_others_have_stays() -> None:
    gone: set[int] = set()
    with using(PlacingExecutor([mortal(k, gone) for k in range(2)], 420_000)) as executor:
        make, data, _limit = MODELS["mlp"]
        model, x = make().to(DEVICE), data().to(DEVICE)
        expected = [p.detach().cpu() for p in model.parameters()]
        model(x).sum().item()
        homes = [executor.executors.index(executor.owner(_core.value(p._handle))) for p in model.parameters()]
        assert set(homes) == {0, 1}
        gone.add(1)
        with pytest.raises(SessionLost, match="session lost: worker 1 was ended"):
            model(x).sum().item()
        for p, home, value in zip(model.parameters(), homes, expected, strict=True):
            assert home == 1 or torch.equal(p.detach().cpu(), value)
        del model, x


def test_R5_where_a_record_runs() -> None:
    def places(*records: tuple[int, list[int], list[int], list[int]]) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Storages 1 and 2 are on the workers 1 and 2, and module 7 on worker 0: (module, takes, writes, makes)."""
        made = [(m, 1, -1, 0, False, takes, writes, [(k, 8) for k in makes]) for m, takes, writes, makes in records]
        found = division.divided(made, {1: 1, 2: 2}, {7: 0}, 0, list)
        return found.places, found.moves

    assert places((7, [1, 2], [1], [])) == ([1], [(2, 2, 1)])  # at the home of what it writes
    assert places((7, [1, 2], [], [5])) == ([0], [(1, 1, 0), (2, 2, 0)])  # else at its module's worker
    assert places((0, [2, 1], [], [5])) == ([2], [(1, 1, 2)])  # else where the first is that it takes
    # What has no home gets that of the first record that takes it, and what that was made of has it, too.
    assert places((0, [], [], [5]), (0, [5], [], [6]), (0, [9], [], [8]), (7, [6, 8], [], [])) == ([0] * 4, [])
    assert places((0, [], [], [5]), (0, [5], [5], []), (0, [2, 5], [], [])) == ([2, 2, 2], [])
    assert places((0, [], [], [3]), (0, [3], [], [4])) == ([8, 8], [])  # nothing decides about 8 bytes at a time


def test_R5_a_program_stays_on_one_worker_up_to_its_last_byte(after_a_step: Callable[..., Any]) -> None:
    """Of its weights, what it makes, and what else waits there for a reader; in a process where nothing else does."""
    code = """
        import torch, mindtorch
        from torch import nn
        from mindtorch.engine.remote.placing import PlacingExecutor

        DEVICE = "remote_accelerator:0"
        for unused in (0, 1, 100):
            needs = 4 * (16 * 16 + 2 * 8 * 16 + 1 + unused)
            for limit in (needs - 1, needs):
                executor = PlacingExecutor([mindtorch.LoopbackExecutor() for _ in range(2)], limit)
                mindtorch.set_executor(executor)
                with torch.no_grad():
                    net, x = nn.Linear(16, 16, bias=False).to(DEVICE), torch.ones(8, 16).to(DEVICE)
                    other = torch.ones(unused).to(DEVICE)
                    total = net(x).sum().item()
                    print(executor._workers is None, other.sum().item() == unused,
                          abs(total - 8 * net.weight.cpu().sum().item()) < 1e-3)
                    del net, x, other
    """
    assert after_a_step(code).stdout == "False True True\nTrue True True\n" * 3


def test_R5_a_call_changes_the_layout_of_what_it_was_given() -> None:
    """Also where its tensor has just come to the worker that runs the call: an upload, or another worker's."""

    def program(device: str) -> Any:
        with torch.no_grad():
            x, y = torch.arange(6.0).view(2, 3).to(device), torch.arange(6.0).view(3, 2).to(device)
            z = x.data
            z.t_()
            out = torch.zeros(1, 4).to(device)
            torch.mm(y, x, out=out)
            return z, z.stride(), x.stride(), out, out.shape, out.contiguous() + 1

    for limit in (0, 1 << 24):
        with using(over(2, limit)):
            same(program)


@pytest.mark.parametrize("tie", ["set_", "data"])
def test_R5_tensors_that_were_put_on_one_storage_are_where_it_is(tie: str) -> None:
    def program(device: str) -> Any:
        a, b = torch.arange(4.0).to(device), torch.ones(4).to(device)
        if tie == "set_":
            a.set_(b)
        else:
            a.data = b.data
        found = []
        for k in range(4):
            found.append(a + k)
            b.add_(1)
            found.append(a * 2)
        return found, a, b

    for seed in range(8):
        with using(Anywhere([mindtorch.LoopbackExecutor() for _ in range(3)], 1 << 24)):
            Anywhere.dice.seed(seed)
            same(program)
