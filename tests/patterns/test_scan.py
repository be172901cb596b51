"""L13: state-space scans written as a loop; and loops that are only near one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindtorch.graph import capture
from mindtorch.graph.patterns import Instance, find_patterns


class Selective(nn.Module):
    """decay: of Δ·A. read: of the state and C."""

    def __init__(self, decay: Callable[[Tensor], Tensor] = torch.exp, read: str = "einsum", order: int = 1) -> None:
        super().__init__()
        self.steps, self.parts = nn.Linear(6, 6), nn.Linear(6, 8)
        self.a = nn.Parameter(torch.rand(6, 4))
        self.decay, self.read, self.order = decay, read, order

    def forward(self, x: Tensor) -> Tensor:
        delta, (b, c) = F.softplus(self.steps(x)), self.parts(x).chunk(2, -1)
        kept = self.decay(-torch.einsum("bld,dn->bldn", delta, self.a.exp()))
        new = torch.einsum("bld,bln,bld->bldn", delta, b, x)
        state, found = torch.zeros(len(x), 6, 4), []
        for i in range(x.shape[1])[:: self.order]:
            state = kept[:, i] * state + new[:, i]
            if self.read == "einsum":
                found.append(torch.einsum("bdn,bn->bd", state, c[:, i]))
            elif self.read == "sum":
                found.append((state * c[:, i, None]).sum(-1))
            elif self.read == "mean":
                found.append((state * c[:, i, None]).sum(1))
            else:
                found.append(state.tanh())
        return torch.stack(found, 1)


def scans(model: nn.Module, **options: Any) -> list[Instance]:
    with capture() as graph, torch.no_grad():
        model(**options) if options else model(torch.randn(2, 5, 6))
    return [each for each in find_patterns(graph) if each.pattern == "state-space scan"]


@pytest.mark.parametrize("read", ["einsum", "sum"])
def test_L13_scans_written_as_a_loop_are_found_and_proven(read: str) -> None:
    (found,) = scans(Selective(read=read))
    assert (found.verified, found.refused, found.attributes) == (True, "", {"state": 4})


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Selective(torch.sigmoid), ["its state does not decay by an exponential"]),
        (Selective(read="mean"), ["it is not a state-space scan"]),
        (Selective(read="none"), ["not every state is read by a product"]),
        (Selective(order=-1), []),
    ],
    ids=["gates", "over channels", "a recurrent net", "backwards"],
)
def test_L13_loops_that_only_look_like_a_scan_are_none(model: nn.Module, why: list[str]) -> None:
    assert [each.refused for each in scans(model)] == why


def test_L13_the_slow_path_of_transformers_mamba_is_proven() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=2, state_size=4)
    found = scans(transformers.MambaModel(config).eval(), input_ids=torch.ones(2, 5, dtype=torch.long))
    assert [(each.verified, each.attributes) for each in found] == [(True, {"state": 4})] * 2
