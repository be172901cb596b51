"""The same answer as eager, bit for bit (SPEC L7): optimizers and moving modules."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mindtorch

LAZY = "remote_accelerator:0"
Same = Callable[..., None]


# ---- optimizers ------------------------------------------------------------------------------------------------------
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=False),
    "sgd_momentum_foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd_momentum_fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw_rate_in_a_tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True, foreach=False),
    "rmsprop_foreach": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, foreach=False),
    "adagrad_foreach": lambda p: torch.optim.Adagrad(p, lr=0.01, foreach=True),
    "adagrad_fused": lambda p: torch.optim.Adagrad(p, lr=0.01, fused=True),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "lbfgs_line_search": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, line_search_fn="strong_wolfe"),
}
STEPS = 20


@pytest.mark.sample(32)
@pytest.mark.parametrize("clip", ["none", "norm", "value"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_L7_optimizers(name: str, clip: str, same_as_eager: Same) -> None:
    """Twenty steps with dropout, batch norm and a schedule: losses, parameters, buffers, gradients, state, rates."""

    def program(d: str) -> object:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(d)
        optimizer = OPTIMIZERS[name](model.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        norms = []
        losses = []
        torch.manual_seed(1)
        for _ in range(STEPS):
            x, y = torch.randn(6, 4, device=d), torch.randint(0, 3, (6,), device=d)

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                if clip == "norm":
                    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
                elif clip == "value":
                    nn.utils.clip_grad_value_(model.parameters(), 0.01)
                return loss

            losses.append(optimizer.step(closure).detach())
            schedule.step()
        state = optimizer.state_dict()
        counts = [s.pop("step") for s in state["state"].values() if "step" in s]
        return (
            losses,
            norms,
            dict(model.named_parameters()),
            dict(model.named_buffers()),
            [p.grad for p in model.parameters()],
            state["state"],
            [float(c) for c in counts],
            [float(group["lr"]) for group in state["param_groups"]],
        )

    same_as_eager(program)


def test_L7_gradient_accumulation_and_scaling(same_as_eager: Same) -> None:
    def program(d: str) -> object:
        torch.manual_seed(0)
        model = nn.Linear(4, 2).to(d)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(4):
            (model(torch.full((3, 4), float(i), device=d)).square().mean() / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=i == 1)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        averaged.update_parameters(model)
        return dict(model.named_parameters()), dict(averaged.named_parameters())

    same_as_eager(program)


# ---- moving modules --------------------------------------------------------------------------------------------------
def test_L7_moving_keeps_identity_ties_and_optimizers(same_bits: Same) -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    weight = model[0].weight
    weight.note = "kept"  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = weight.detach().clone()
    assert model.to(LAZY) is model
    assert model[0].weight is weight and model[1].weight is weight
    assert isinstance(weight, nn.Parameter) and isinstance(weight, mindtorch.LazyTensor) and weight.note == "kept"
    assert weight.device == torch.device(LAZY) and weight.is_leaf and weight.requires_grad
    assert optimizer.param_groups[0]["params"][0] is weight
    model(torch.tensor([1, 2], device=LAZY)).sum().backward()
    optimizer.step()
    assert not torch.equal(weight.detach().cpu(), before)
    moved = weight.detach().cpu()
    model.to("cpu")
    assert model[0].weight is weight and model[1].weight is weight and optimizer.param_groups[0]["params"][0] is weight
    assert type(weight) is nn.Parameter and weight.device.type == "cpu"
    same_bits(weight, moved)
    # Not `is torch.Tensor`: an object with a slot for what we know of it keeps that, in a class of that name.
    assert isinstance(weight.grad, torch.Tensor) and not isinstance(weight.grad, mindtorch.LazyTensor)
    assert weight.grad.device.type == "cpu" and str(type(weight.grad)) == str(torch.Tensor)
    model.to("remote_accelerator:1")
    assert str(model[0].weight.device) == "remote_accelerator:1" and str(weight.grad.device) == "remote_accelerator:1"
    model.cpu()
    assert type(model[0].weight) is nn.Parameter


@pytest.mark.parametrize(
    "how",
    ["to_string", "to_device", "to_kw", "to_tensor", "tensor_kw", "to_dtype", "half", "float", "to_empty", "shared"],
)
def test_L7_ways_to_move_and_cast(how: str) -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    {
        "to_string": lambda: m.to(LAZY),
        "to_device": lambda: m.to(torch.device(LAZY)),
        "to_kw": lambda: m.to(device=LAZY),
        "to_tensor": lambda: m.to(torch.ones(1, device=LAZY)),
        "tensor_kw": lambda: m.to(tensor=torch.ones(1, device=LAZY), non_blocking=True),
        "to_dtype": lambda: m.to(LAZY, torch.float64),
        "half": lambda: m.to(LAZY).to(torch.bfloat16),
        "float": lambda: m.to(LAZY).double(),
        "to_empty": lambda: m.to_empty(device=LAZY),
        "shared": lambda: m.to(LAZY).to(LAZY),
    }[how]()
    dtype = {"to_dtype": torch.float64, "half": torch.bfloat16, "float": torch.float64}.get(how, torch.float32)
    assert all(isinstance(t, mindtorch.LazyTensor) for t in m.state_dict().values())
    assert all(p.dtype == dtype and isinstance(p, nn.Parameter) and p.is_leaf for p in m.parameters())
    assert m[1].num_batches_tracked.dtype == torch.int64
    x = torch.ones(4, 2, device=LAZY, dtype=dtype)
    assert m(x).dtype == dtype


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("like", [torch.float64, torch.int32])
def test_L7_tensors_move_to_where_another_one_is(like: torch.dtype, named: bool) -> None:
    def moved(device: str) -> list[Any]:
        other = torch.ones(2, dtype=like, device=device)
        given: dict[str, Any] = {"tensor": other} if named else {}
        args = () if named else (other,)
        packed = nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]).to(*args, **given)
        here = torch.ones(3, dtype=torch.float16, device=device)
        back = here.to(**{"tensor": torch.ones(1)}) if named else here.to(torch.ones(1))
        return [torch.ones(3).to(*args, **given), here.to(*args, **given), packed.data, back, other]

    for plain, ours in zip(moved("cpu"), moved(LAZY)):
        assert plain.dtype is ours.dtype and plain.tolist() == ours.tolist()
    assert [str(t.device) for t in moved(LAZY)] == [LAZY, LAZY, LAZY, "cpu", LAZY]


def test_L7_a_moved_model_can_be_copied_frozen_and_stripped(same_bits: Same) -> None:
    m = nn.Linear(3, 3).to(LAZY)
    ema = copy.deepcopy(m).requires_grad_(False)
    with torch.no_grad():
        for a, b in zip(ema.parameters(), m.parameters()):
            a.lerp_(b + 1, 0.5)
    weight = m.weight.detach().cpu()
    same_bits(ema.weight, weight.lerp(weight + 1, 0.5))
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(m.parameters()) * 2, m.parameters())
    nn.init.zeros_(m.bias)
    assert m.bias.tolist() == [0.0] * 3
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).to(LAZY)
    assert parametrized(torch.ones(1, 3, device=LAZY)).shape == (1, 3)
    pruned = nn.Linear(3, 3).to(LAZY)
    m.weight.requires_grad_(False)
    assert not m(torch.ones(1, 3, device=LAZY)).sum().detach().requires_grad and pruned.weight.requires_grad


def test_L7_moving_leaves_no_memory_behind() -> None:
    gc.collect()
    before = mindtorch.stats()["values"]
    for _ in range(3):
        m = nn.Linear(8, 8).to(LAZY)
        m(torch.ones(1, 8, device=LAZY)).sum().backward()
        m.cpu()
        del m
    gc.collect()
    assert mindtorch.stats()["values"] <= before + 1


def test_L12_recorded_and_captured_closures_are_no_part_of_the_optimizer() -> None:
    net = torch.nn.Linear(2, 2, device="remote_accelerator")
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
    said = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        x = torch.ones(1, 2, device="remote_accelerator").cos()
        loss = net(x).sin().sum()
        loss.backward()
        said.append([t.metadata.execution_phase for t in (x, loss)])  # type: ignore[attr-defined]
        return loss

    with mindtorch.capture() as graph:
        optimizer.step(closure)
    assert said and said == [["other", "forward"]] * len(said)
    phases = {op: {node.phase for node in graph.nodes if node.op.endswith(f"::{op}")} for op in ("cos", "sin")}
    assert phases["cos"] - {"backward"} == {"other"} and phases["sin"] == {"forward"}
    assert "optimizer" in {node.phase for node in graph.nodes}
