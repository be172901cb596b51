"""R1: how much crosses: messages, and plans, which a worker is told once for each kind of segment."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import mindtorch
from mindtorch._ext.encoder import encode
from mindtorch.engine.remote import client, reads
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.patch import default_device

from ..executors import using

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


@contextmanager
def counted(executor: LoopbackExecutor) -> Iterator[dict[str, int]]:
    """A dict that has afterwards what there was of each."""
    executor.sync()
    before = dict(executor.stats)
    found: dict[str, int] = {}
    yield found
    found.update({what: executor.stats[what] - before[what] for what in before})


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "adam foreach amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True, amsgrad=True),
}


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_R1_one_message_for_a_step_and_few_plans(
    name: str, clip: bool, loopback: LoopbackExecutor, same_as_eager: Same
) -> None:
    messages: list[int] = []
    plans: list[int] = []

    def program(device: str) -> object:
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
        optimizer = OPTIMIZERS[name](list(net.parameters()))
        losses = []
        for step in range(20):
            with counted(loopback) as count:
                x = torch.linspace(-1, 1, 32).view(4, 8).to(device) * (step + 1.5)
                loss = nn.functional.cross_entropy(net(x), torch.tensor([0, 1, 1, 0]).to(device))
                optimizer.zero_grad()
                loss.backward()
                if clip:
                    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                optimizer.step()
                losses.append(loss.item())
            if device == LAZY:
                messages.append(count["waits"])
                plans.append(count["plans"])
        return losses, list(net.parameters())

    same_as_eager(program)
    assert messages == [1] * 20 and sum(plans) <= 8, (messages, plans)


def test_R1_one_message_for_a_step_of_lstms_that_were_seen_before(
    loopback: LoopbackExecutor, same_as_eager: Same
) -> None:
    waits: list[int] = []

    def program(device: str) -> object:
        net, head = nn.LSTM(4, 6, 2, bidirectional=True).to(device), nn.Linear(12, 1).to(device)
        optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
        losses = []
        for _ in range(4):
            x = torch.randn(5, 2, 4).to(device)
            with counted(loopback) as count:
                optimizer.zero_grad()
                loss = head(net(x)[0]).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            if device == LAZY:
                waits.append(count["waits"])
        return losses, list(net.parameters())

    same_as_eager(program)
    assert waits[1:] == [1] * 3, waits


def test_R2_weights_cross_once_by_their_contents(loopback: LoopbackExecutor, same_as_eager: Same) -> None:
    """As long as those that have crossed are what they were."""
    crossed: list[int] = []

    def program(device: str) -> object:
        first = nn.Linear(200, 300)
        second = nn.Linear(200, 300)
        second.load_state_dict(first.state_dict())
        with counted(loopback) as count:
            first.to(device)
            loopback.sync()
        crossed.append(count["bytes_up"])
        with counted(loopback) as count:
            second.to(device)
            loopback.sync()
        crossed.append(count["bytes_up"])
        plain = second.weight.detach().to("cpu", copy=True)
        with torch.no_grad():
            first.weight.add_(1)
            with counted(loopback) as count:
                third = plain.to(device, copy=True)  # which second's still is
                loopback.sync()
            crossed.append(count["bytes_up"])
            second.weight.mul_(2)
            third[:, 1:].mul_(3)
            mindtorch.flush("what is written is told")
            with counted(loopback) as count:
                fourth = plain.to(device, copy=True)
                loopback.sync()
            crossed.append(count["bytes_up"])
        return first.weight, second.weight, third, fourth

    same_as_eager(program)
    *_, one, two, three, four = crossed
    whole = 200 * 300 * 4
    assert one > whole and four > whole and max(two, three) < 5000, crossed


def trained(how: str, loopback: LoopbackExecutor) -> Callable[[str], object]:
    """A program that trains, and looks at more than its loss; it asserts one message a step."""

    def program(device: str) -> object:
        net = nn.Linear(8, 2).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device="cpu", enabled=how == "scaler")
        seen: list[object] = []
        for step in range(4):
            with counted(loopback) as count:
                target = torch.tensor([0, 1, 0]).to(device)
                loss = nn.functional.cross_entropy(net(torch.full((3, 8), step + 0.5).to(device)), target)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                if how == "isnan":
                    seen.append(bool(torch.isnan(loss)))
                scaler.step(optimizer)
                scaler.update()
                seen.append(loss.item())
                if how == "accuracy":
                    seen.append((loss * 2).argmax().item() if step % 2 else loss.item())
            assert device == "cpu" or count["waits"] <= 1 + (how == "accuracy" or not step), (step, count)
        return seen, list(net.parameters())

    return program


@pytest.mark.parametrize("how", ["isnan", "scaler", "accuracy"])
def test_R1_small_values_come_unasked(how: str, loopback: LoopbackExecutor, same_as_eager: Same) -> None:
    same_as_eager(trained(how, loopback))


def test_R1_what_is_known_here_follows_what_is_written(loopback: LoopbackExecutor, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.tensor([3, 1, 2]).to(device)
        view = x[1:]
        seen = [x[0].item(), view.sum().item()]
        with counted(loopback) as count:
            view.add_(5)
            seen += [x.sum().item(), (x > 6).any().item(), x.max().item()]
        assert count["waits"] == 0 or device == "cpu"
        x[0] = torch.randint(10, 20, (), device=device)  # which is not known here, whatever it writes to
        seen.append(view.tolist())
        y = torch.zeros(3).to(device)
        y += x
        seen += [y.tolist(), x.resize_(2).tolist(), x.dtype]
        y.data = torch.ones(2).to(device)
        torch.nonzero(x, out=(z := torch.arange(3).to(device)))
        seen += [y.tolist(), z.tolist(), torch.arange(10**6, device=device).sum().item()]
        return seen

    torch.manual_seed(0)
    same_as_eager(program)


def test_R1_a_mistake_on_known_values_is_told_as_any_other(loopback: LoopbackExecutor) -> None:
    index = torch.tensor([7]).to(LAZY)
    taken = torch.arange(3, device=LAZY)[index]
    for _ in range(2):
        with pytest.raises(mindtorch.MaterializationError, match=r"aten::index.*test_messages\.py:\d+"):
            taken.item()
    assert (index + 1).item() == 8


@pytest.mark.parametrize("how", ["save", "each", "to", "numpy"])
def test_R1_two_messages_for_a_whole_model(how: str, loopback: LoopbackExecutor) -> None:
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    expected = {name: t.clone() for name, t in net.state_dict().items()}
    net.to(LAZY)
    with counted(loopback) as count:
        if how == "save":
            file = io.BytesIO()
            torch.save(net.state_dict(), file)
            file.seek(0)
            got = torch.load(file)
        elif how == "each":
            got = {name: t.cpu() for name, t in net.state_dict().items()}
        elif how == "numpy":
            got = {name: torch.from_numpy(t.numpy()) for name, t in net.state_dict().items()}
        else:
            got = net.to("cpu").state_dict()
    assert count["waits"] <= 2
    assert all(torch.equal(got[name], t) for name, t in expected.items())


def test_R1_what_is_read_ahead_is_not_what_was_there_before_a_write(loopback: LoopbackExecutor) -> None:
    tensors = [torch.full((40, 40), float(i)).to(LAZY) for i in range(6)]
    for i, t in enumerate(tensors[:3]):
        assert t.cpu()[0, 0] == i
    tensors[4].mul_(10)
    tensors[5].data.view(-1)[0] = 7
    assert [t.cpu()[0, 0].item() for t in tensors] == [0, 1, 2, 3, 40, 7]
    loopback.sync()
    before = loopback.stats["bytes_down"]
    for _ in range(
        10
    ):  # reads two of the six each time, after which they change: nothing more is to come along for long
        for t in tensors[:2]:
            t.add_(1)
        assert [t.cpu()[0, 0].item() for t in tensors[:2]] == [1 + _, 2 + _]
    assert loopback.stats["bytes_down"] - before < 10 * 2 * 6400 * 2


def test_R1_numbers_that_are_drawn_until_they_fit_are_those_of_eager(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        torch.manual_seed(1)
        out = [torch.empty(4, 6, device=device) for _ in range(4)]
        nn.init.orthogonal_(out[0])
        nn.init.normal_(out[1])
        return [nn.init.trunc_normal_(t) for t in out[2:]] and out

    with using(LoopbackExecutor()):
        same_as_eager(program)


def test_R1_weights_that_are_drawn_on_the_cpu_ask_once_where_the_sequence_stands(loopback: LoopbackExecutor) -> None:
    """While torch's generator is the device's. From then on it is known here, until something draws there."""

    def model() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [*nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 6)).parameters(), torch.randperm(7)]

    expected = model()
    after = torch.rand(3), torch.rand(3), torch.rand(2)
    with default_device.one_generator(0):
        with counted(loopback) as count:
            drawn = model()
        assert count["waits"] == 1, count
        with counted(loopback) as count:
            there = torch.rand(3, device=LAZY)
            here = torch.rand(3)
        assert count["waits"] == 1, count
        with counted(loopback) as count:
            here_again = torch.rand(2)
        assert count["waits"] == 0, count
    for got, wanted in zip([*drawn, there, here, here_again], [*expected, *after], strict=True):
        assert torch.equal(got.cpu(), wanted)


def saved(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As safetensors and transformers save it: they look which storages are shared, and for sizes, more than once."""
    for _ in range(3):
        shared = {(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in state.values()}
    assert len(shared) == len(state)
    return {name: torch.from_numpy(t.detach().cpu().numpy()) for name, t in state.items()}


def test_R1_a_model_that_is_saved_crosses_once(loopback: LoopbackExecutor) -> None:
    net = nn.Sequential(*(nn.Linear(40, 40) for _ in range(8))).to(LAZY)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    size = sum(p.numel() * 4 for p in net.parameters())
    for step in range(3):
        net(torch.full((2, 40), step + 1.0).to(LAZY)).square().mean().backward()
        optimizer.step()
        with counted(loopback) as count:
            got = saved(net.state_dict())
        assert count["waits"] <= 6 and count["bytes_down"] < 3.5 * size, count  # gradients come along
        assert all(torch.equal(got[name], p.detach().to("cpu")) for name, p in net.named_parameters())


def test_R1_a_storage_that_the_program_has_goes_to_another_worker(loopback: LoopbackExecutor) -> None:
    """Its address is where the program may think that it is, and nothing is there."""
    t = torch.arange(100.0).to(LAZY) + 1
    held = t.untyped_storage()
    assert held.data_ptr() == t.data_ptr() != torch.UntypedStorage.data_ptr(held)
    with using(LoopbackExecutor()):
        assert (t * 2).tolist() == [2.0 * n for n in range(1, 101)]


def test_R1_what_is_kept_of_storages_is_bounded_and_follows_writes(
    loopback: LoopbackExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "_KEPT", 4 * 6400)
    tensors = [torch.full((40, 40), float(n)).to(LAZY) for n in range(6)]
    mindtorch.flush("test")
    loopback._reads.are_over()
    for _ in range(2):
        for n, t in enumerate(tensors):
            assert t.untyped_storage().nbytes() == 6400 and t.cpu()[3, 3] == n
            kept = loopback._reads._kept
            assert sum(map(len, kept.values())) == 4 * 6400 - loopback._reads._room <= 4 * 6400
    del tensors[3]
    views = [t.view(-1)[5:7] for t in tensors]  # a view changes nothing
    assert [v.tolist()[0] for v in views] == [0, 1, 2, 4, 5] and loopback._reads._kept
    tensors[4].view(-1)[5] = 9
    assert [v.tolist()[0] for v in views] == [0, 1, 2, 4, 9]
    tensors[0].untyped_storage()
    tensors[1] + 1
    (tensors[1] + 1).sum().item()
    assert not loopback._reads._kept and loopback._reads._room == 4 * 6400


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_R1_whether_a_loss_is_finite_follows_from_what_came(dtype: torch.dtype, loopback: LoopbackExecutor) -> None:
    x = torch.rand(100).to(LAZY)
    for value, tests in (
        (2.5, [False, False, True]),
        (torch.inf, [False, True, False]),
        (torch.nan, [True, False, False]),
    ):
        loss = (x.sum() * 0 + value).to(dtype)
        loss.real.item()
        with counted(loopback) as count:
            found = [bool(test(loss.detach())) for test in (torch.isnan, torch.isinf, torch.isfinite)]
            assert found == tests
        assert count["waits"] == 0 and count["messages"] <= 1, count
        with counted(loopback) as count:
            (loss.abs() + 1).isnan().item()  # a sum is rounded: only the worker computes it
        assert count["waits"] == 1, count


def test_R1_few_plans_for_tokens_that_are_decoded(loopback: LoopbackExecutor, same_as_eager: Same) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=64, bos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    plans: list[int] = []
    messages: list[int] = []

    def program(device: str) -> object:
        model.to(device)
        ids = torch.arange(5).view(1, 5).to(device)
        with counted(loopback) as count:
            out = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=49)
        if device == LAZY:
            plans.append(count["plans"])
            messages.append(count["waits"])
        return out

    same_as_eager(program)
    with counted(loopback) as count:  # another length, nothing new
        model.generate(torch.arange(7).view(1, 7).to(LAZY), max_new_tokens=9, do_sample=False, pad_token_id=0)
    assert plans[0] <= 10 and count["plans"] <= 1 and messages[0] <= 24 + 1, (plans, messages, count)


@pytest.mark.parametrize("sample", [False, True])
def test_R1_tokens_without_a_stop_test_wait_for_no_worker(
    sample: bool, loopback: LoopbackExecutor, same_as_eager: Same
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=64, bos_token_id=0, eos_token_id=None
    )
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(config).eval()
    messages: list[int] = []

    def program(device: str) -> object:
        model.to(device)
        torch.manual_seed(2)
        ids = torch.arange(5).view(1, 5).to(device)
        with counted(loopback) as count:
            out = model.generate(ids, max_new_tokens=12, do_sample=sample, pad_token_id=0).tolist()
        if device == LAZY:
            messages.append(count["waits"])
        return out

    same_as_eager(program)
    assert messages == [1]


@pytest.mark.parametrize("views", [0, 1, 2, 3])
def test_R1_what_only_views_that_are_gone_were_on_is_not_kept_there(
    views: int, loopback: LoopbackExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []

    def noted(segment: Any) -> Any:
        encoded = encode(segment)
        kept.append(len(encoded.kept))
        return encoded

    monkeypatch.setattr(client, "encode", noted)
    x = torch.arange(6.0).to(LAZY)
    y = x + 1
    for k in range(views):
        y = y.view((2, 3) if k % 2 == 0 else (6,))
    total = y.sum()
    del y
    assert total.item() == 21.0 and kept == [1]
    y = x + 1
    part, total = y.view(2, 3)[0], y.sum()
    assert total.item() == 21.0 and kept[1] == 2 and part.tolist() == [1.0, 2.0, 3.0]
