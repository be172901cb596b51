"""C4: integers that a program draws after other numbers are those of a run, as the generator is where it would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate import draws
from mindtorch.profile.estimate.estimator import Estimator

DRAWS: dict[str, Callable[[torch.Generator], Any]] = {
    "randn": lambda g: torch.randn(5, 3, generator=g),
    "randn of 16 and more": lambda g: torch.randn(101, generator=g),
    "randn in float64": lambda g: torch.randn(33, dtype=torch.float64, generator=g),
    "randn in bfloat16": lambda g: torch.randn(33, dtype=torch.bfloat16, generator=g),
    "rand of many": lambda g: torch.rand((2 << 20) + 5, generator=g),
    "randn of many": lambda g: torch.randn((2 << 20) + 5, generator=g),
    "normal": lambda g: torch.normal(0.0, 2.0, (40,), generator=g),
    "normal_": lambda g: torch.empty(50).normal_(generator=g),
    "normal_ across": lambda g: torch.empty(5, 10).T.normal_(generator=g),
    "uniform_": lambda g: torch.nn.init.kaiming_uniform_(torch.empty(7, 9), generator=g),
    "bernoulli_": lambda g: torch.empty(40).bernoulli_(0.3, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.rand(40, generator=g), generator=g),
    "exponential_": lambda g: torch.empty(40).exponential_(generator=g),
    "multinomial": lambda g: torch.multinomial(torch.rand(9, generator=g), 4, generator=g),
    "randint of floats": lambda g: torch.randint(5, (20,), dtype=torch.float32, generator=g),
    "randperm of many": lambda g: torch.randperm(100_000, generator=g),
    "randint of many": lambda g: torch.randint(5, (300, 300), generator=g),
}


def drawn(draw: Callable[[torch.Generator], Any]) -> list[int]:
    g = torch.Generator().manual_seed(3)
    draw(g)
    found: list[int] = torch.randint(1 << 30, (4,), generator=g).tolist()
    return found


@pytest.mark.parametrize("name", DRAWS)
def test_C4_integers_after_other_draws_are_those_of_a_run(name: str) -> None:
    plain = drawn(DRAWS[name])
    with Estimator(target=targets.find("h100")) as estimate:
        assert drawn(DRAWS[name]) == plain
    assert not any("random numbers" in note for note in estimate.report()["warnings"])


def test_C4_where_too_many_are_drawn_the_report_says_that_integers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_MOST", 100)
    for ints in (True, False):
        with Estimator(target=targets.find("h100")) as estimate:
            g = torch.Generator().manual_seed(3)
            torch.randn(101, generator=g)
            if ints:
                torch.randint(5, (2,), generator=g)
        assert any("differ from those of a run" in note for note in estimate.report()["warnings"]) is ints


def test_C4_draws_on_the_accelerator_take_nothing_from_a_generator_of_the_host() -> None:
    with Estimator(target=targets.find("h100")):
        here, there = torch.Generator().manual_seed(3), torch.Generator("cuda")
        torch.randn(5, device="cuda", generator=there)
        found = torch.randint(1 << 30, (4,), generator=here).tolist()
    assert found == torch.randint(1 << 30, (4,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["exponential_", "normal_", "uniform_", "random_", "cauchy_", "log_normal_"])
def test_C4_draws_in_place_take_a_generator(name: str, device: str) -> None:
    """exponential_ raised "generator is not supported in refs"."""
    with Estimator(target=targets.find("h100")):
        t = torch.empty(70_000, device=device)
        assert getattr(t, name)(generator=torch.Generator(device)) is t


SKIPS: dict[str, Callable[[torch.device], object]] = {
    "rand": lambda device: torch.rand([]) < 0.1,
    "on the device": lambda device: torch.rand((), device=device) < 0.1,
    "more": lambda device: not torch.rand(1) > 0.1,
    "a number": lambda device: torch.rand(1).item() < 0.1,
    "like": lambda device: torch.rand_like(torch.ones(1, device=device))[0] < 0.1,
    "uniform_": lambda device: torch.empty(1).uniform_(0, 1).item() < 0.1,
    "uniform_, one for each layer": lambda device: torch.empty(256).uniform_()[3] < 0.1,
    "between others": lambda device: torch.empty(1).uniform_(3, to=5) < 3.2,
    "bernoulli": lambda device: torch.bernoulli(torch.tensor(0.1)),
    "bernoulli, a number": lambda device: torch.bernoulli(torch.tensor(0.1)).item(),
    "bernoulli of p": lambda device: torch.empty(1, device=device).bernoulli_(0.1).item(),
    "bernoulli of p, by name": lambda device: torch.empty(1, device=device).bernoulli_(p=0.1).item(),
    "bernoulli, kept": lambda device: torch.bernoulli(torch.full((1,), 0.9, device=device)) == 0,
    "bernoulli of a tensor": lambda device: torch.empty(1).bernoulli_(torch.full((1,), 0.1))[0],
}


@pytest.mark.parametrize("name", SKIPS)
def test_C4_layers_that_are_left_out_at_random_are_there(name: str) -> None:
    """LayerDrop, stochastic depth: unknown draws were taken for almost nothing, so no layer was in the estimate."""
    with Estimator(target=targets.find("h100")) as estimator:
        x = torch.ones(4, 4, device="cuda")
        for layer in torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).cuda():
            if not SKIPS[name](x.device):
                x = layer(x)
    report = estimator.report()
    assert [row["calls"] for row in report["ops"] if row["name"] == "aten::addmm"] == [3]
    assert report["assumed"]


def test_C4_a_number_that_is_drawn_is_taken_for_the_middle_or_the_likelier_one() -> None:
    with Estimator(target=targets.find("h100")):
        assert torch.rand(1, 1, device="cuda").tolist() == [[0.5]]
        assert torch.empty(()).uniform_(2, 5).item() == 3.5
        assert torch.empty(1, dtype=torch.float64).uniform_(-1, 1).tolist() == [1e-12]  # as of weights
        found = [torch.bernoulli(torch.tensor(p, dtype=torch.float64)).item() for p in (0.0, 0.49, 0.5, 1.0)]
        assert found == [0.0, 0.0, 1.0, 1.0]
        part = torch.zeros(4, dtype=torch.float64)
        part[:1].uniform_(0, 1)
        assert part.tolist() == [1e-12] * 4  # of what lies beside others nothing is said
        assert torch.rand(2, dtype=torch.float64).tolist() == [1e-12, 1e-12]
        assert set(torch.empty(257, dtype=torch.float64).uniform_().tolist()) == {1e-12}
        bits = torch.empty(64, dtype=torch.bool).bernoulli_(0.5)
        assert 0 < bits.sum().item() < 64, "booleans are drawn"


def test_C4_what_the_user_assumes_goes_for_draws_too() -> None:
    with Estimator(target=targets.find("h100"), assume=0.25):
        assert torch.rand(1).item() == torch.empty(1).uniform_().item() == 0.25
        assert torch.bernoulli(torch.tensor(0.9)).item() == 0.25
