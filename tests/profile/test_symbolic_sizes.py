"""What compilers trace for sizes of all kinds stays so under a profile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mindtorch.profile import Profiler


class Grows(nn.Module):
    """Both sizes of its inputs are read by ops of all kinds: views, factories, products, element-wise."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, ids: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        past = torch.cat((past, self.embed(ids)), 1)
        past = past + torch.arange(past.shape[1])[None, :, None] + torch.zeros(past.shape[1], 16)
        return self.head(past[:, -1:]), past


@pytest.mark.parametrize("options", [{}, {"shapes": True}, {"lines": True}])
def test_L1_exporting_with_dynamic_sizes_chooses_none(options: dict[str, Any]) -> None:
    sizes = {"ids": {1: torch.export.Dim("n")}, "past": {1: torch.export.Dim("k")}}
    inputs = torch.arange(6)[None], torch.zeros(1, 2, 16)
    model = Grows()
    plain = torch.export.export(model, inputs, dynamic_shapes=sizes)
    with Profiler(whole=True, **options):
        profiled = torch.export.export(model, inputs, dynamic_shapes=sizes)
    assert str(profiled.graph) == str(plain.graph)
    assert len(profiled.range_constraints) == len(plain.range_constraints) >= 2
    longer = torch.arange(9)[None], torch.zeros(1, 5, 16)
    assert all(torch.equal(a, b) for a, b in zip(profiled.module()(*longer), model(*longer), strict=True))


def test_L1_compiling_for_dynamic_sizes_does_so_once() -> None:
    counts = []
    for run in (False, True):
        torch._dynamo.reset()
        compiled = 0

        def backend(graph: Any, inputs: Any) -> Any:
            nonlocal compiled
            compiled += 1
            return graph

        function = torch.compile(lambda x: (x @ x.t()).sum(1), backend=backend, dynamic=True)
        with Profiler(whole=True) if run else torch.no_grad():
            for n in (3, 5, 7):
                function(torch.ones(n, 4))
        counts.append(compiled)
    assert counts == [1, 1]


def test_C3_tensors_of_a_compilers_with_sizes_are_counted_as_ever() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with Profiler(whole=True) as seen, FakeTensorMode():
        torch.ones(4, 8) @ torch.ones(8, 2)
    assert seen.report()["totals"]["macs"] == 4 * 8 * 2
