"""SPEC L7: tensors that share a storage still do so after set_, deepcopy, save and pickle."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mindtorch

Same = Callable[..., None]


@pytest.mark.parametrize("source", [
    lambda x: (x, 1, (2, 2), (1, 1)), lambda x: (x, 2, (2,)), lambda x: (x.untyped_storage(), 1, (2,), (1,)),
    lambda x: (x.storage(), 0, (2, 2), (1, 2)), lambda x: (x.untyped_storage(),), lambda x: (x,),
])  # fmt: skip
def test_L7_set_shares_the_storage_of_its_source(source: Callable, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        x = torch.arange(5.0).to(device) * 2
        z = torch.empty(0).to(device)
        same = z.set_(*source(x)) is z
        z.add_(10)
        x[2] = -1
        return same, x, z, z.stride(), z.storage_offset()

    same_as_eager(program)


def test_L7_deepcopy_keeps_sharing_strides_and_offsets(same_as_eager: Same) -> None:
    def program(device: str) -> object:
        base = torch.arange(12.0).to(device).reshape(3, 4)
        made = copy.deepcopy([base, base[1:], base.t(), base[:, ::2], base.view(-1)[3:5]])
        made[0].mul_(2)
        made[4].fill_(-1)
        layout = [(t.stride(), t.storage_offset()) for t in made]
        return made, layout, base

    same_as_eager(program)


@pytest.mark.parametrize("cls", [torch.Tensor, torch.nn.Parameter])
def test_L7_copies_have_gradients_each_time(cls: Any, same_as_eager: Same) -> None:
    """What gives the first copy is asked for by name, what gives the second is known: both go by autograd."""

    def program(device: str) -> object:
        seen = []
        given: Any = torch.arange(3.0).to(device)
        x = given.requires_grad_() if cls is torch.Tensor else cls(given)
        made = [
            lambda: copy.deepcopy(x),
            lambda: copy.deepcopy([x])[0],
            lambda: copy.copy(x),
            lambda: torch.Tensor._make_subclass(cls, x.detach().clone(), True),
            lambda: torch.Tensor._make_subclass(cls, torch.ones(3, device=device) * 2, True),
            lambda: cls(x.detach().clone() * 3).requires_grad_(),
        ]
        for make in made:
            for _ in range(3):
                y = make()
                z = y.clone()
                torch.relu_(z).square().sum().backward()
                seen.append((y.requires_grad, (y * 2).requires_grad, z, y.grad))
        return seen

    same_as_eager(program)


def test_L7_deepcopy_of_a_module_whose_buffer_is_a_view(same_as_eager: Same) -> None:
    class Flat(torch.nn.Module):
        def __init__(self, device: str) -> None:
            super().__init__()
            self.flat = torch.nn.Parameter(torch.arange(6.0).to(device))
            self.register_buffer("square", self.flat.data[:4].view(2, 2))

    def program(device: str) -> object:
        module = Flat(device)
        copied = copy.deepcopy(module)
        with torch.no_grad():
            copied.flat.add_(1)
        return copied.square, copied.flat, module.square, type(copied.flat).__name__.startswith("Lazy")

    same_as_eager(lambda device: program(device)[:3])
    assert isinstance(Flat("remote_accelerator").flat, mindtorch.LazyTensor)


def test_L7_deepcopy_of_what_shares_nothing_runs_nothing() -> None:
    x = torch.ones(3, device="remote_accelerator")
    mindtorch.reset_stats()
    y = copy.deepcopy(x + 1)
    assert not y.materialized and mindtorch.stats()["ops_executed"] == 0
    assert y.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("weights_only", [True, False])
def test_L7_saved_tensors_keep_sharing(weights_only: bool, same_as_eager: Same) -> None:
    def program(device: str) -> object:
        base = torch.arange(6.0).to(device)
        buffer = io.BytesIO()
        torch.save([base, base[2:4], base.view(2, 3).t()], buffer)
        base.zero_()  # afterwards: what was saved stays
        buffer.seek(0)
        first, view, turned = torch.load(buffer, weights_only=weights_only)
        first[3] = 9
        facts = view.stride(), view.storage_offset(), turned.stride(), view.untyped_storage().nbytes()
        return first, view, turned, facts, [type(t) is torch.Tensor for t in (first, view, turned)]

    same_as_eager(program)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_L7_versions_of_copies(writes: int) -> None:
    def versions(device: str) -> list[int]:
        x = torch.arange(3.0).to(device)
        for _ in range(writes):
            x.add_(1)
        kinds = [x, x[1:], x.detach().requires_grad_(), torch.nn.Parameter(x), torch.nn.Parameter(x).data]
        copies = [copy.deepcopy(t) for t in kinds] + [copy.deepcopy([x, x[1:]])[1]]
        return [x._version, *(t._version for t in copies)]

    assert versions("remote_accelerator:0") == versions("cpu")
