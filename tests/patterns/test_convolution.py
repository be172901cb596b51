"""L13: convolution blocks, alone, with a batch norm, with an activation; and what is only near one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns

X = 2, 6, 9, 9
KERNEL = nn.Parameter(torch.ones(4, 6, 3, 3))


def blocks(program: Callable[[], Any]) -> list[tuple[Instance, list[str]]]:
    """Instances of convolutions, each with its operations."""
    with capture() as graph:
        program()
    found = find_patterns(graph)
    assert not [each for each in found if each.refused]
    return [
        (each, [graph.nodes[n].op.removeprefix("aten::") for n in sorted(each.nodes)])
        for each in found if each.pattern == "convolution"
    ]  # fmt: skip


def called(*layers: nn.Module, x: tuple[int, ...] = X, train: bool = True) -> list[tuple[Instance, list[str]]]:
    model = nn.Sequential(*layers).train(train)
    return blocks(lambda: model(torch.randn(x)))


PLAIN = {"kind": "2d", "kernel": "3×3", "groups": "none", "normalization": "none", "activation": "none"}
FORMS: dict[str, tuple[Callable[[], list[tuple[Instance, list[str]]]], list[str], dict[str, Any]]] = {
    "alone": (lambda: called(nn.Conv2d(6, 4, 3)), ["convolution"], {}),
    "without a batch": (lambda: called(nn.Conv2d(6, 4, 3), x=X[1:]), ["convolution"], {}),
    "stride, padding, dilation": (
        lambda: called(nn.Conv2d(6, 4, (3, 2), (1, 2), (2, 1), (2, 1))), ["convolution"], {"kernel": "3×2"},
    ),
    "same": (lambda: called(nn.Conv2d(6, 4, 3, padding="same", dilation=2)), ["convolution"], {}),
    "grouped": (lambda: called(nn.Conv2d(6, 4, 3, groups=2)), ["convolution"], {"groups": 2}),
    "depthwise": (lambda: called(nn.Conv2d(6, 12, 3, groups=6)), ["convolution"], {"groups": "depthwise"}),
    "transposed": (
        lambda: called(nn.ConvTranspose2d(6, 4, 3, 2, output_padding=1)), ["convolution"], {"kind": "2d transposed"},
    ),
    "norm and activation, training": (
        lambda: called(nn.Conv2d(6, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(True)),
        ["convolution", "native_batch_norm", "relu_"], {"normalization": "batch", "activation": "relu"},
    ),
    "norm and activation, evaluation": (
        lambda: called(nn.Conv2d(6, 4, 3, bias=False), nn.BatchNorm2d(4), nn.SiLU(), train=False),
        ["convolution", "native_batch_norm", "silu"], {"normalization": "batch", "activation": "silu"},
    ),
    "norm without statistics": (
        lambda: called(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4, affine=False, track_running_stats=False), train=False),
        ["convolution", "native_batch_norm"], {"normalization": "batch"},
    ),
    "a slope": (lambda: called(nn.Conv2d(6, 4, 3), nn.LeakyReLU(0.3)), ["convolution", "leaky_relu"],
                {"activation": "leaky relu"}),
    "relu6 after a norm, training": (
        lambda: called(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.ReLU6()),
        ["convolution", "native_batch_norm", "hardtanh"], {"normalization": "batch", "activation": "relu6"},
    ),
    "between bounds, after a norm, training": (
        lambda: called(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.Hardtanh(0, 20)),
        ["convolution", "native_batch_norm", "hardtanh"], {"normalization": "batch", "activation": "hardtanh"},
    ),
    "relu6": (lambda: called(nn.Conv2d(6, 4, 3), nn.ReLU6()), ["convolution", "hardtanh"], {"activation": "relu6"}),
    "one dimension": (lambda: called(nn.Conv1d(6, 4, 3), nn.Tanh(), x=(2, 6, 9)), ["convolution", "tanh"],
                      {"kind": "1d", "kernel": "3", "activation": "tanh"}),
    "three": (lambda: called(nn.Conv3d(6, 4, 3), nn.BatchNorm3d(4), x=(2, 6, 5, 5, 5)),
              ["convolution", "native_batch_norm"], {"kind": "3d", "kernel": "3×3×3", "normalization": "batch"}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_L13_a_convolution_block_is_found_and_proven(form: str) -> None:
    program, ops, attributes = FORMS[form]
    ((instance, found),) = program()
    assert found == ops and instance.verified
    assert instance.attributes == PLAIN | attributes


def twice(x: torch.Tensor) -> None:
    y = F.conv2d(x, KERNEL)
    F.relu(y) + y


def hyper(x: torch.Tensor) -> None:
    F.conv2d(x, (x.mean() * torch.ones(4, 6, 3, 3)).tanh())


def of_another(x: torch.Tensor) -> None:
    y = F.conv2d(x, KERNEL)
    torch.ones(3, 4, 2, 2).tanh() * F.batch_norm(torch.rand(3, 4, 2, 2), None, None, y[0, :, 0, 0], training=True)


NEAR: dict[str, tuple[Callable[[torch.Tensor], None], list[list[str]]]] = {
    "something else reads it": (twice, [["convolution"]]),
    "the kernel is computed": (hyper, []),
    "it is another's statistics": (of_another, [["convolution"]]),
    "no activation": (lambda x: F.conv2d(x, KERNEL).exp(), [["convolution"]]),
    "an activation of more": (
        lambda x: F.conv2d(x, KERNEL).sum(1).relu(),
        [["convolution"]],
    ),
}


@pytest.mark.parametrize("form", NEAR)
def test_L13_what_is_no_part_of_a_convolution_block_stays_outside(form: str) -> None:
    program, ops = NEAR[form]
    assert [found for _, found in blocks(lambda: program(torch.randn(X)))] == ops


def test_L13_a_convolution_of_any_size_is_proven_on_a_small_picture() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU())
        (each,) = blocks(lambda: model(torch.randn(512, 3, 640, 640)))
    assert each[0].verified and len(each[1]) == 3


def test_L13_a_convolution_that_computes_something_else_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel that is wrong would: the pattern's own function decides."""
    model = nn.Conv2d(6, 4, 3)
    with capture() as graph:
        model(torch.randn(X))
    monkeypatch.setattr(
        "mindtorch.graph.patterns.convolution._FORWARD", (None, lambda *args, **how: torch.zeros(2, 4, 7, 7))
    )
    (found,) = find_patterns(graph)
    assert found.refused == "it is not a convolution"
