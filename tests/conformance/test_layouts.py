"""SPEC L3, L7, L9: what is predicted of calls on inputs in every layout is what eager gives, forward and backward.

Dtypes, sizes, strides, flags and errors, without trying the call itself on the kernel: once with no trial at all, once
with that of copies that have other sizes, which is what large calls get. By default a slice of torch's operator
database: every entry that once was wrong, and every thirtieth of the others;
``pytest tests/conformance/test_layouts.py --conformance=full`` takes all of it, and prints a table.
"""

from __future__ import annotations

from collections.abc import Callable

import opcases
import oplayouts
import pytest
import torch
from conftest import wanted

#: Entries of which some layout was once predicted wrongly.
ONCE_WRONG = """
    _batch_norm_with_update channel_shuffle combinations copysign exponential fft.fftshift gradient heaviside index_put
    isin ldexp linalg.householder_product logaddexp masked_select max.reduction_no_dim median native_dropout_backward
    native_group_norm nn.functional.binary_cross_entropy nn.functional.conv1d nn.functional.conv_transpose1d
    nn.functional.conv_transpose2d nn.functional.conv_transpose3d nn.functional.cross_entropy nn.functional.glu
    nn.functional.huber_loss nn.functional.logsigmoid nn.functional.mse_loss nn.functional.nll_loss
    nn.functional.pad.reflect nn.functional.pad.replicate nn.functional.pixel_shuffle nn.functional.prelu
    nn.functional.rrelu
    nn.functional.smooth_l1_loss normal roll select_scatter sort xlogy
""".split()
#: Where eager itself cannot be followed, with the reason.
NOT_COMPARED = {
    "as_strided_scatter": "torch fails an assertion of its own where its input is not contiguous",
}
#: What only the trial finds: made of steps of which torch's meta kernels get the strides of sizes of 1 wrong.
FOUND_BY_TRIAL = ("diff", "gradient")


@pytest.mark.sample(7)
@pytest.mark.parametrize("copies", [False, True], ids=["predicted", "tried-on-copies"])
@pytest.mark.parametrize("layout", oplayouts.LAYOUTS)
def test_L7_predictions_in_layout(
    layout: str, copies: bool, pytestconfig: pytest.Config, tally: Callable[..., None]
) -> None:
    full = wanted(pytestconfig) == "full"
    names = [n for i, n in enumerate(opcases.ENTRIES) if full or i % 30 == 7 or n in ONCE_WRONG]
    limits = {"most": None if full else 2, "wide": 1}
    asked = [getattr(torch, name) for name in pytestconfig.getoption("--dtype")]
    found = {}
    with oplayouts.untried(copies):
        for name in names:
            dtypes = [d for d in opcases.dtypes_of(opcases.ENTRIES[name]) if d in asked or not asked]
            for dtype in dtypes if asked else dtypes[:1]:
                count = oplayouts.compare(name, dtype, layout, **limits)
                tally(layout, copies, count)
                if count.differences and name not in NOT_COMPARED and (copies or name not in FOUND_BY_TRIAL):
                    found[f"{name} {dtype}"] = count.differences
    assert found == {}


@pytest.mark.parametrize("rows", [(0, 4), (3, 0), (3, 4)])
def test_L7_gradients_of_distances_in_layout(rows: tuple[int, int]) -> None:
    """Where there are none, they are zeros laid out like the points."""
    strides = []
    with oplayouts.untried():
        for device in ("cpu", "remote_accelerator:0"):
            first, second = (torch.ones(n, 10).to(device)[:, ::2].requires_grad_() for n in rows)
            made = torch.cdist(first, second)
            gradients = torch.autograd.grad(made, (first, second), torch.ones_like(made))
            strides.append([g.stride() for g in gradients])
    assert strides[0] == strides[1]


def test_L7_the_comparison_of_layouts_sees_differences() -> None:
    """Each layout is what its name says, and a wrong prediction does not pass."""
    x = torch.arange(48.0).reshape(2, 3, 2, 4)
    laid = {name: make(x) for name, make in oplayouts.LAYOUTS.items()}
    assert all(t.shape == x.shape for t in laid.values())
    assert all(torch.equal(t, x) for name, t in laid.items() if name != "expanded")
    assert len({t.stride() for t in laid.values()}) == len(laid) - 1  # mixed: of every other tensor
    assert laid["channels-last"].is_contiguous(memory_format=torch.channels_last)
    lazy = x.to("remote_accelerator:0")
    assert oplayouts.facts(x) == oplayouts.facts(lazy)
    assert oplayouts.facts(laid["transposed"]) != oplayouts.facts(lazy)
