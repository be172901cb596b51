"""How many calls of a block a report counts (L13)."""

import pytest
import torch
from torch import nn

from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

HOW = {"measured": lambda: Profiler(whole=True), "estimated": lambda: Estimator(target=targets.find("h100"))}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("sides", [1, 2, 3])
def test_L13_transposed_convolutions_without_gradients_are_convolutions(how, sides):
    """They are one call of torch where nothing needs gradients: two of three calls of Demucs's decoders had none."""
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[sides - 1]
    with HOW[how]() as seen:
        model = nn.Sequential(
            kind(4, 6, 3, stride=2, padding=1, output_padding=1), nn.ReLU(), kind(6, 2, 3, dilation=2)
        )
        for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
            with mode():
                model(torch.randn(2, 4, *[9] * sides))
    report = seen.report()
    (row,) = (each for each in report["patterns"] if each["name"] == "convolution")
    products = sum(each["flops"] for each in report["ops"] if "conv" in each["name"])
    assert (row["instances"], row["calls"], row["verified"]) == (2, 6, True)
    assert row["attributes"]["kind"] == f"{sides}d transposed" and row["flops"] >= products > 0


@pytest.mark.parametrize("how", HOW)
def test_L13_what_the_next_line_makes_is_no_call_of_a_block(how):
    """Whisper's estimate had 482 calls of 478 normalizations: a tensor that was made after one counted as another."""
    with HOW[how]() as seen:
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        with torch.no_grad():
            for n in range(5):
                model(torch.ones(2, 8))
                torch.tensor([n])
                torch.tensor([[n]])
    (row,) = (each for each in seen.report()["patterns"] if each["name"] == "normalization")
    assert (row["instances"], row["calls"]) == (1, 5)


@pytest.mark.parametrize("how", HOW)
def test_L13_a_step_at_a_line_that_no_graph_has_is_an_update(how):
    """One iteration of two networks, each of which steps at two lines: the graphs have three of the four."""

    def program() -> None:
        one, two = nn.Linear(4, 4), nn.Linear(4, 4)
        a, b = torch.optim.Adam(one.parameters()), torch.optim.Adam(two.parameters())
        x = torch.ones(2, 4)
        (one(x) - one(two(x))).sum().backward()
        a.step()
        a.zero_grad()
        one(x).square().mean().backward()
        a.step()
        one.requires_grad_(False)
        one(two(x)).mean().backward()
        b.step()
        b.zero_grad()
        two(x).square().mean().backward()
        b.step()

    with HOW[how]() as seen:
        program()
    report = seen.report()
    [phase] = [row for row in report["phases"] if row["name"] == "optimizer"]
    [update] = [row for row in report["patterns"] if row["name"] == "optimizer update"]
    assert update["flops"] == phase["flops"]
