"""L13: steps of optimizers and clipping of gradients, torch's own and written by hand; and what is only near one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns

Parameters = list[nn.Parameter]
Do = Callable[[Parameters], Any]


def instances(name: str, step: Do, clip: Do = lambda parameters: None, steps: int = 2) -> list[Instance]:
    """step: called with the parameters after each pass backward, or what makes an optimizer of them."""
    return trained(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), name, step, clip, steps)


def trained(
    model: nn.Module, name: str, step: Do, clip: Do = lambda parameters: None, steps: int = 2
) -> list[Instance]:
    parameters = list(model.parameters())
    with capture() as graph:
        optimizer = step(parameters) if isinstance(step, functools.partial) else None
        for _ in range(steps):
            model(torch.randn(5, 3)).sum().backward()
            clip(parameters)
            if optimizer is None:
                step(parameters)
            else:
                optimizer.step()
            for p in parameters:
                p.grad = None
    return [each for each in find_patterns(graph) if each.pattern == name]


def torchs(kind: type[torch.optim.Optimizer], **options: Any) -> Do:
    return functools.partial(kind, lr=1e-3, **options)  # type: ignore[call-arg]


_O = torch.optim
OPTIMIZERS: dict[str, tuple[Do, str, str]] = {
    "SGD": (torchs(_O.SGD), "SGD", "one by one"),
    "SGD with all options": (
        torchs(_O.SGD, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=True), "SGD", "foreach"
    ),
    "SGD fused": (torchs(_O.SGD, momentum=0.9, fused=True), "SGD", "fused"),
    "Adam": (torchs(_O.Adam, weight_decay=0.1), "Adam", "one by one"),
    "Adam with the largest": (torchs(_O.Adam, amsgrad=True, foreach=True), "Adam", "foreach"),
    "Adam fused": (torchs(_O.Adam, fused=True), "Adam", "fused"),
    "AdamW": (torchs(_O.AdamW), "AdamW", "one by one"),
    "AdamW foreach": (torchs(_O.AdamW, foreach=True), "AdamW", "foreach"),
    "AdamW fused": (torchs(_O.AdamW, fused=True), "AdamW", "fused"),
    "Adagrad": (torchs(_O.Adagrad), "Adagrad", "one by one"),
    "RMSprop": (torchs(_O.RMSprop, foreach=True), "RMSprop", "foreach"),
    "RMSprop with momentum": (torchs(_O.RMSprop, momentum=0.9, weight_decay=0.1), "RMSprop", "one by one"),
    "RMSprop with momentum, foreach": (torchs(_O.RMSprop, momentum=0.999, foreach=True), "RMSprop", "foreach"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_L13_steps_of_torchs_optimizers_are_found_and_proven(name: str) -> None:
    step, kind, form = OPTIMIZERS[name]
    found = instances("optimizer update", step)
    assert [(each.verified, each.refused, each.attributes) for each in found] == [
        (True, "", {"kind": kind, "form": form})
    ] * 2
    assert found[0].place == found[1].place and len(found[0].place) == 4, "one place with all weights"


class Scaled(nn.Module):
    """With a weight of a single number, as CLIP's."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(3, 4), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.scale


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_L13_a_weight_of_a_single_number_is_updated_as_the_others(name: str) -> None:
    """Fused, its step of one number and made-up weights of 64 wrote beyond the memory."""
    step, kind, form = OPTIMIZERS[name]
    found = trained(Scaled(), "optimizer update", step)
    assert [(each.verified, each.refused, each.attributes) for each in found] == [
        (True, "", {"kind": kind, "form": form})
    ] * 2
    assert len(found[0].place) == 3


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_L13_a_state_of_one_element_from_before_the_graph_is_a_state_as_the_others(name: str) -> None:
    """A graph knows what a tensor of one element held: the bias of Linear(4, 1) has such a state."""
    step, kind, form = OPTIMIZERS[name]
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = step(list(model.parameters()))

    def once() -> None:
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()

    once()
    with capture() as graph:
        once()
    (found,) = [each for each in find_patterns(graph) if each.pattern == "optimizer update"]
    assert (found.verified, found.refused, found.attributes) == (True, "", {"kind": kind, "form": form})
    assert len(found.place) == 4


def test_L13_steps_on_one_line_are_one_each() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizers = [_O.Adam(model[0].parameters()), _O.SGD(model[1].parameters(), 0.1)]
    with capture() as graph:
        model(torch.randn(5, 3)).sum().backward()
        [each.step() for each in optimizers]
    for part in (graph, graph.reduced(until=len(graph))):
        found = [each for each in find_patterns(part) if each.pattern == "optimizer update"]
        assert [(each.verified, each.attributes["kind"]) for each in found] == [(True, "Adam"), (True, "SGD")]


class OfTheProgram(torch.optim.Optimizer):
    """Adam on several lines, as a program writes it; it also keeps an average of gradients that it never reads."""

    def __init__(self, parameters: Parameters, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["m"], state["v"], state["seen"] = (torch.zeros_like(p) for _ in range(3))
            state["seen"].lerp_(p.grad, 0.5)
            state["m"].lerp_(p.grad, 0.1)
            state["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            if closure is not None:
                closure()
            denominator = (state["v"] / 0.2).sqrt_().add_(1e-8)
            p.addcdiv_(state["m"], denominator, value=-self.defaults["lr"] / 0.5)


def test_L13_a_step_over_several_lines_of_the_programs_own_optimizer_is_one() -> None:
    """Each line was taken for a step of its own: seven steps of SGD, where it is one of Adam."""
    found = instances("optimizer update", torchs(OfTheProgram))
    assert [(each.verified, each.attributes["kind"]) for each in found] == [(True, "Adam")] * 2


def test_L13_a_step_with_a_closure_in_its_midst_is_one() -> None:
    model = nn.Linear(3, 4)
    optimizer = OfTheProgram(list(model.parameters()), 1e-3)
    with capture() as graph:
        for _ in range(2):
            model(torch.randn(5, 3)).sum().backward()
            optimizer.step(lambda: torch.zeros(2).add_(1))
    found = [each for each in find_patterns(graph) if each.pattern == "optimizer update"]
    assert [(each.verified, each.attributes["kind"]) for each in found] == [(True, "Adam")] * 2


@torch.no_grad()
def minus(parameters: Parameters) -> None:
    for p in parameters:
        assert p.grad is not None
        p -= 0.1 * p.grad


def through_data(parameters: Parameters) -> None:
    for p in parameters:
        assert p.grad is not None
        p.data.add_(p.grad, alpha=-0.1)


class ByHand:
    """Adam, its averages anew in each step."""

    def __init__(self) -> None:
        self.first: dict[Any, torch.Tensor] = {}
        self.second: dict[Any, torch.Tensor] = {}

    @torch.no_grad()
    def __call__(self, parameters: Parameters) -> None:
        for p in parameters:
            assert p.grad is not None
            zero = torch.zeros_like(p)
            m = self.first[p] = 0.9 * self.first.get(p, zero) + 0.1 * p.grad
            v = self.second[p] = 0.99 * self.second.get(p, zero) + 0.01 * p.grad**2
            p.sub_(0.1 * (m / 0.5) / ((v / 0.2).sqrt() + 1e-8))


@pytest.mark.parametrize(("step", "kind"), [(minus, "SGD"), (through_data, "SGD"), (ByHand(), "Adam")])
def test_L13_steps_written_by_hand_are_found_and_proven(step: Do, kind: str) -> None:
    found = instances("optimizer update", step)
    assert [(each.verified, each.attributes["kind"]) for each in found] == [(True, kind)] * 2


@torch.no_grad()
def signs(parameters: Parameters) -> None:
    for p in parameters:
        p.sub_(p.grad.sign(), alpha=0.1)  # type: ignore[union-attr]


@torch.no_grad()
def anew(parameters: Parameters) -> None:
    for p in parameters:
        p.copy_(-0.1 * p.grad)  # type: ignore[operator]


@torch.no_grad()
def squared(parameters: Parameters) -> None:
    for p in parameters:
        p.addcmul_(p, p.grad, value=-0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [signs, anew, squared])
def test_L13_other_functions_of_gradients_are_no_known_step(step: Do) -> None:
    found = instances("optimizer update", step)
    assert all(each.refused == "its step is not that of SGD, Adam, Adagrad or RMSprop" for each in found)


def test_L13_a_step_whose_made_up_numbers_have_no_root_is_no_known_one(capfd: pytest.CaptureFixture[str]) -> None:
    """Of a centered RMSprop: of a number less a square of another. MKL was given no number, and the search ended."""
    found = instances("optimizer update", torchs(_O.RMSprop, centered=True))
    assert all(each.refused == "its step is not that of SGD, Adam, Adagrad or RMSprop" for each in found) and found
    assert "MKL" not in capfd.readouterr().err


@torch.no_grad()
def averaged(parameters: Parameters) -> None:
    for p in parameters:
        p.mul_(0.9).add_(torch.ones_like(p), alpha=0.1)


@torch.no_grad()
def with_noise(parameters: Parameters) -> None:
    for p in parameters:
        p.sub_(0.1 * p.grad + torch.randn_like(p))  # type: ignore[operator]


@pytest.mark.parametrize("step", [averaged, with_noise])
def test_L13_averages_of_weights_and_noisy_steps_are_no_step_of_an_optimizer(step: Do) -> None:
    assert instances("optimizer update", step) == []


# ---- clipping --------------------------------------------------------------------------------------------------------
def by_norm(parameters: Parameters) -> None:
    norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters))  # type: ignore[operator,arg-type,misc]
    part = torch.clamp(0.5 / (norm + 1e-6), max=1.0)
    for p in parameters:
        p.grad.mul_(part)  # type: ignore[union-attr]


_NORM, _VALUE = nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_
CLIPPED: dict[str, tuple[Do, dict[str, Any]]] = {
    "norm": (lambda ps: _NORM(ps, 1.5), {"by": "norm", "most": 1.5, "norm": 2.0}),
    "one by one": (lambda ps: _NORM(ps, 1.5, foreach=False), {"by": "norm", "most": 1.5, "norm": 2.0}),
    "largest": (lambda ps: _NORM(ps, 2.0, float("inf")), {"by": "norm", "most": 2.0, "norm": float("inf")}),
    "value": (lambda ps: _VALUE(ps, 0.3), {"by": "value", "most": 0.3}),
    "value, one by one": (lambda ps: _VALUE(ps, 0.3, foreach=False), {"by": "value", "most": 0.3}),
    "by hand": (by_norm, {"by": "norm", "most": 0.5, "norm": 2.0}),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_L13_clippings_are_found_and_proven(name: str) -> None:
    clip, attributes = CLIPPED[name]
    found = instances("gradient clipping", minus, clip)
    assert [(each.verified, each.refused, each.attributes) for each in found] == [(True, "", attributes)] * 2


def test_L13_a_clipping_of_each_gradient_by_itself_is_one_each() -> None:
    found = instances("gradient clipping", minus, lambda ps: [nn.utils.clip_grad_norm_([p], 1.0) for p in ps], 1)
    assert len(found) == 4 and all(each.verified for each in found)


def normalized(parameters: Parameters) -> None:
    norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters))  # type: ignore[operator,arg-type,misc]
    for p in parameters:
        p.grad.div_(norm)  # type: ignore[union-attr]


def one_sided(parameters: Parameters) -> None:
    for p in parameters:
        p.grad.clamp_(max=1.0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("clip", "why"),
    [
        (normalized, "small gradients are changed, too"),
        (one_sided, "gradients are not clipped at the same value on both sides"),
    ],
)
def test_L13_what_only_looks_like_clipping_is_refused(clip: Do, why: str) -> None:
    assert {each.refused for each in instances("gradient clipping", minus, clip)} == {why}


def halved(parameters: Parameters) -> None:
    for p in parameters:
        p.grad.mul_(0.5)  # type: ignore[union-attr]


def test_L13_gradients_made_smaller_by_a_number_are_not_clipped() -> None:
    assert instances("gradient clipping", minus, halved) == []
