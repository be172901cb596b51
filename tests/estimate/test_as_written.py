"""C4: programs as people write them, each of which an estimate once got wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating
from mindtorch.profile.estimate.estimator import Estimator


def report(program: Callable[[], Any], **options: Any) -> dict[str, Any]:
    estimator = Estimator(target=targets.find("h100"), **options)
    with estimator:
        program()
    return estimator.report(command=["program.py"], exit_code=0, interrupted=False, workload=None)


def about(program: Callable[[], Any], part: str) -> float:
    """Seconds of the ops whose name has this part."""
    return float(sum(row["about_s"] for row in report(program)["ops"] if part in row["name"]))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_C4_packed_sequences_go_back(kind: type) -> None:
    """Their formula in C++ read batch sizes that had no memory: every program with packed sequences that trains."""
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        x = torch.randn(3, 5, 4, device="cuda", requires_grad=True)
        packed = pack_padded_sequence(x, torch.tensor([2, 5, 3]), batch_first=True, enforce_sorted=False)
        net = kind(4, 6, 2, batch_first=True, bidirectional=True).cuda()
        out, _ = pad_packed_sequence(net(packed)[0], batch_first=True)
        out.sum().backward()
    assert packed.batch_sizes.tolist() == [3, 3, 2, 1, 1]
    assert x.grad is not None and x.grad.shape == x.shape and out.shape == (3, 5, 12)


SIZES: dict[str, Callable[[], Any]] = {
    "conv": lambda: nn.Conv2d(64, 64, 3, padding=1).cuda()(torch.ones(16, 64, 56, 56, device="cuda")),
    "conv ": lambda: nn.ConvTranspose2d(64, 32, 2, 2).cuda()(torch.ones(16, 64, 56, 56, device="cuda")),
    "conv  ": lambda: nn.Conv1d(64, 64, 3, groups=4).cuda()(torch.ones(16, 64, 560, device="cuda")),
    "mm": lambda: torch.ones(8, 16, 512, 512, device="cuda") @ torch.ones(8, 16, 512, 512, device="cuda"),
}


@pytest.mark.parametrize("part", SIZES)
def test_C4_inference_mode_takes_as_long_as_no_grad(part: str) -> None:
    """It hands down convolutions whole: they were taken for one endless dot product, a thousand times too slow."""

    def under(mode: Callable[[], Any]) -> Callable[[], Any]:
        def program() -> None:
            with mode():
                SIZES[part]()

        return program

    name = part.strip()
    plain, inference = about(under(torch.no_grad), name), about(under(torch.inference_mode), name.replace("mm", "mat"))
    assert plain > 0 and inference == pytest.approx(plain, rel=0.2)


def test_C4_a_transposed_convolution_is_a_product_of_its_inputs_positions() -> None:
    """Of its result there are four times as many; each of them meets a quarter of the weights."""

    up = about(lambda: nn.ConvTranspose2d(128, 256, 4, 4).cuda()(torch.ones(64, 128, 32, 32, device="cuda")), "conv")
    down = about(lambda: nn.Conv2d(256, 128, 4, 4).cuda()(torch.ones(64, 256, 128, 128, device="cuda")), "conv")
    assert up == pytest.approx(down, rel=0.5)  # as many FLOPs and bytes


def test_C4_masked_select_goes_back() -> None:
    """Its gradient asked for values, to have the last bits of the CPU's."""
    with estimating(Accelerator("Test GPU", 80 * 10**9)):
        x = torch.randn(10, 10, device="cuda", requires_grad=True)
        torch.masked_select(x, torch.rand(10, 10, device="cuda") > 0.5).sum().backward()
        x.prod().backward()
    assert x.grad is not None and x.grad.shape == (10, 10)
