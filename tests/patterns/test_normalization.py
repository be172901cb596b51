"""L13: normalizations that are written out, in the forms that programs have of them; and what is only near one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

WEIGHT, BIAS = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))


def found(program: Callable[[Tensor], object], *shape: int) -> list[Instance]:
    with capture() as graph, torch.no_grad():
        program(torch.randn(shape or (3, 4, 6)) + 1)
    return [each for each in find_patterns(graph) if each.pattern == "normalization"]


def by_variance(x: Tensor) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / (variance + 1e-5).sqrt() * WEIGHT + BIAS


def by_squares(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return WEIGHT * ((x - mean) * torch.rsqrt(variance + 1e-5))


def by_deviation(x: Tensor) -> Tensor:
    """As the annotated transformer has it."""
    return WEIGHT * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + BIAS


def less_its_mean(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def at_once(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5)


def of_channels(x: Tensor) -> Tensor:
    """As ConvNeXt has it."""
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return WEIGHT[:4, None] * ((x - mean) / torch.sqrt(variance + 1e-6)) + BIAS[:4, None]


def in_half_precision(x: Tensor) -> Tensor:
    x = x.bfloat16()
    wide = x.float()
    return WEIGHT * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def in_groups(x: Tensor) -> Tensor:
    apart = x.view(3, 4, 2, 3)
    return (apart * torch.rsqrt(apart.pow(2).mean(-1, keepdim=True) + 1e-6)).view(3, 4, 6) * WEIGHT


FORMS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "variance": (by_variance, "layer norm"),
    "squares": (by_squares, "layer norm"),
    "deviation": (by_deviation, "layer norm"),
    "less its mean": (less_its_mean, "layer norm"),
    "at once": (at_once, "layer norm"),
    "of channels": (of_channels, "layer norm"),
    "of a batch": (lambda x: (x - x.mean((0, 1))) / (x.var((0, 1), unbiased=False) + 1e-5).sqrt(), "batch norm"),
    "of a picture": (
        lambda x: (x - x.mean((1, 2), True)) / (x.var((1, 2), keepdim=True) + 1e-5).sqrt(), "instance norm",
    ),
    "a power": (lambda x: x * torch.pow(x.pow(2).mean(-1, keepdim=True) + 1e-6, -0.5) * WEIGHT, "RMS norm"),
    "divided by the root": (lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6), "RMS norm"),
    "one and a weight": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6) * (1 + WEIGHT), "RMS norm"),
    "half precision": (in_half_precision, "RMS norm"),
    "in groups": (in_groups, "RMS norm"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_L13_normalizations_that_are_written_out_are_found_and_proven(name: str) -> None:
    program, kind = FORMS[name]
    (instance,) = found(program)
    assert (instance.attributes, instance.verified, instance.refused) == ({"kind": kind}, True, "")


def test_L13_a_written_out_normalization_of_many_rows_is_tried_with_fewer() -> None:
    with capture() as graph, torch.no_grad():
        x = torch.randn(5000, 4000, 6, device="meta") + 1
        x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert [(each.pattern, each.verified) for each in find_patterns(graph)] == [("normalization", True)]


NEAR: dict[str, Callable[[Tensor], object]] = {
    "another's deviation": lambda x: (
        (x - x.mean(-1, True)) / ((x * 2 + torch.relu(x)).var(-1, keepdim=True) + 1e-5).sqrt()
    ),
    "by the variance": lambda x: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5),
    "another axis": lambda x: (x - x.mean(-1, True)) / (x.var(1, keepdim=True) + 1e-5).sqrt(),
    "the fourth power": lambda x: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6),
    "times the root": lambda x: x * torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "not less its mean": lambda x: x / (x.var(-1, keepdim=True) + 1e-5).sqrt(),
    "of magnitudes": lambda x: x.abs() * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "of the sum": lambda x: x / torch.sqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6),
    "a weight": lambda x: x + WEIGHT * torch.rsqrt(WEIGHT.pow(2).mean(-1, keepdim=True) + 1e-6),
    "a large offset": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e4),
}


@pytest.mark.parametrize("name", NEAR)
def test_L13_what_only_looks_like_a_written_out_normalization_is_none(name: str) -> None:
    assert [each for each in found(NEAR[name]) if not each.refused] == []


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Two(nn.Module):
    """Both by one function, at one line, with no weight of their own."""

    def __init__(self, norm: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), norm

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.up(self.norm(x))
        return x + self.down(self.norm(x))


@pytest.mark.parametrize("norm", [rms, lambda x: F.rms_norm(x, (6,)), lambda x: F.layer_norm(x, (6,))])
def test_L13_two_normalizations_in_one_function_are_two_places(norm: Callable[[Tensor], Tensor]) -> None:
    model = Two(norm)
    places = []
    for _ in range(2):
        with capture() as graph, torch.no_grad():
            model(torch.randn(3, 6))
        places.append([each.place for each in find_patterns(graph) if each.pattern == "normalization"])
    assert len(set(places[0])) == 2 and places[0] == places[1]


def test_L13_a_normalization_of_nothing_is_none_and_hides_no_other() -> None:
    """ "the search for the pattern normalization failed: max(): Expected reduction dim to be specified"."""

    def program() -> None:
        F.layer_norm(torch.randn(0, 6), (6,))
        rms(torch.randn(0, 6))
        F.layer_norm(torch.randn(3, 6), (6,))

    with capture() as graph, torch.no_grad():
        program()
    assert len([each for each in find_patterns(graph) if each.pattern == "normalization"]) == 1


class ByType(nn.Module):
    """As gpt-fast has it: in float32, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def test_L13_normalizations_that_cast_as_another_tensor_are_in_one_place_in_estimates_too() -> None:
    """There, a call like an earlier one is known by `type_as`, not by what that does: only the first had its weight, so
    there was one place more, and the blocks after it were none."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = ByType(), nn.Linear(6, 12), nn.Linear(12, 6)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.silu(self.up(self.norm(x))))

    with Estimator(target=targets.find("h100")) as estimator, torch.no_grad():
        model = nn.Sequential(*(Block() for _ in range(3)), ByType()).cuda().bfloat16()
        for _ in range(3):
            model(torch.randn(2, 4, 6, device="cuda", dtype=torch.bfloat16))
    found = {row["name"]: (row["instances"], row["calls"]) for row in estimator.report()["patterns"]}
    assert found == {"normalization": (4, 12), "feed-forward": (3, 9)}
