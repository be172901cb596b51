"""SPEC D4: operands on two devices are refused as torch refuses them, and what torch allows works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn

import mindtorch

LAZY = "remote_accelerator:0"
here, there = torch.tensor([0, 1]), torch.tensor([0, 1]).to(LAZY)


def cpu(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def lazy(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=LAZY)


def _assign(target: torch.Tensor, index: object, value: object) -> torch.Tensor:
    target[index] = value
    return target


def _gradient(value: torch.Tensor) -> None:
    x = torch.ones(2, device=LAZY, requires_grad=True)
    x.grad = value


def _autocast() -> None:
    with torch.autocast("cpu"):
        lazy(2, 2) @ cpu(2, 2)


REFUSED: dict[str, Callable[[], object]] = {
    "batch_norm": lambda: nn.BatchNorm1d(2)(lazy(3, 2)),
    "batch_norm_statistics": lambda: F.batch_norm(lazy(3, 2), cpu(2), cpu(2)),
    "batch_norm_weights": lambda: F.batch_norm(lazy(3, 2), lazy(2), lazy(2), cpu(2), cpu(2)),
    "instance_norm": lambda: F.instance_norm(lazy(1, 2, 3), cpu(2), cpu(2)),
    "lstm": lambda: nn.LSTM(2, 3)(lazy(1, 1, 2)),
    "lstm_input": lambda: nn.LSTM(2, 3).to(LAZY)(cpu(1, 1, 2)),
    "lstm_state": lambda: nn.LSTM(2, 3).to(LAZY)(lazy(1, 1, 2), (cpu(1, 1, 3), cpu(1, 1, 3))),
    "gru": lambda: nn.GRU(2, 3)(lazy(1, 1, 2)),
    "gru_state": lambda: nn.GRU(2, 3).to(LAZY)(lazy(1, 1, 2), cpu(1, 1, 3)),
    "rnn": lambda: nn.RNN(2, 3)(lazy(1, 1, 2)),
    "rnn_packed": lambda: nn.RNN(2, 3)(rnn.pack_sequence([lazy(3, 2)])),
    "lstm_cell": lambda: nn.LSTMCell(2, 3)(lazy(1, 2)),
    "embedding_weight": lambda: nn.Embedding(3, 2)(there),
    "embedding_indices": lambda: nn.Embedding(3, 2).to(LAZY)(here),
    "embedding_bag": lambda: F.embedding_bag(here, lazy(3, 2), torch.tensor([0])),
    "einsum": lambda: torch.einsum("ij,jk->ik", lazy(2, 2), cpu(2, 2)),
    "tensordot": lambda: torch.tensordot(cpu(2, 2), lazy(2, 2)),
    "attention": lambda: F.scaled_dot_product_attention(lazy(1, 2, 4), cpu(1, 2, 4), lazy(1, 2, 4)),
    "multi_head_attention": lambda: nn.MultiheadAttention(4, 2)(lazy(1, 1, 4), lazy(1, 1, 4), lazy(1, 1, 4)),
    "autocast": _autocast,
    "with_gradients": lambda: lazy(2).requires_grad_() * cpu(2),
    "equal": lambda: lazy(2).equal(cpu(2)),
    "masked_select": lambda: torch.masked_select(cpu(2), lazy(2) > 0),
    "meshgrid": lambda: torch.meshgrid(lazy(2), cpu(2), indexing="ij"),
    "foreach": lambda: torch._foreach_mul([lazy(2)], [cpu(2)]),
    "backward": lambda: lazy(2).requires_grad_().mul(2).backward(cpu(2)),
    "grad": lambda: _gradient(cpu(2)),
    "0dim_target": lambda: torch.tensor(1.0).add_(lazy()),
    "0dim_out": lambda: torch.add(lazy(), 1, out=torch.tensor(1.0)),
    "index": lambda: cpu(2)[there],
    "index_mask": lambda: cpu(2)[lazy(2) > 0],
    "index_among_others": lambda: cpu(2, 2)[:, there],
    "index_elsewhere": lambda: lazy(2)[here.to("remote_accelerator:1")],
    "assign_index": lambda: _assign(cpu(2), there, 1.0),
    "assign_value": lambda: _assign(lazy(2), here, cpu(2)),
    "assign_list": lambda: _assign(cpu(2), [0, 1], lazy(2)),
    "index_put": lambda: lazy(2).index_put_((there,), cpu(2)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_D4_mixed_operands_are_refused_by_name(name: str) -> None:
    with pytest.raises(RuntimeError) as e:
        REFUSED[name]()
    assert "remote_accelerator:" in str(e.value) and "same device" in str(e.value)
    assert "cpu" in str(e.value) or "remote_accelerator:1" in str(e.value)


ALLOWED: dict[str, Callable[[Callable, Callable], object]] = {
    "index": lambda d, c: d(2)[c(0.0, 1.0).long()],
    "index_mask": lambda d, c: d(2)[c(1.0, 0.0).bool()],
    "index_0dim": lambda d, c: torch.arange(4)[d().long()],
    "assign_index": lambda d, c: _assign(d(2), c(0.0, 1.0).long(), d(2) * 5),
    "assign_0dim": lambda d, c: _assign(d(2), c(0.0, 1.0).long(), torch.tensor(3.0)),
    "assign_slice": lambda d, c: _assign(d(2), slice(0, 1), c(7.0)),
    "assign_slice_of_cpu": lambda d, c: _assign(cpu(2), slice(0, 1), d(1) * 3),
    "index_put": lambda d, c: d(2).index_put((c(1.0).long(),), d(1) * 2),
    "copy": lambda d, c: d(2).copy_(c(3.0, 4.0)),
    "copy_many": lambda d, c: torch._foreach_copy_([d(2)], [c(3.0, 4.0)]),
    "fill": lambda d, c: cpu(2).fill_(d() * 2),
    "view_as": lambda d, c: (d(1, 2).view_as(c(1.0, 2.0)), c(1.0, 2.0).reshape_as(d(2, 1)), d(1).expand_as(cpu(2))),
    "result_type": lambda d, c: torch.result_type(d(2).double(), c(1.0)),
    "scalars": lambda d, c: torch._foreach_addcmul([d(2)], [d(2)], [d(2)], c(2.0)),
    "batch_sizes": lambda d, c: rnn.pad_packed_sequence(rnn.PackedSequence(d(3, 2), c(2.0, 1).long())),
    "ctc_lengths": lambda d, c: F.ctc_loss(d(2, 1, 3), d(1, 1).long(), c(2.0).long(), c(1.0).long()),
    # "if the targets are on CPU …, let's move them to GPU as a service for the user", says torch's LossCTC.cpp
    "ctc_targets": lambda d, c: F.ctc_loss(d(2, 1, 3), c(1.0).int(), c(2.0).long(), c(1.0).long()),
    "ctc_targets_by_row": lambda d, c: nn.CTCLoss()(d(2, 1, 3), c([1.0]).long(), c(2.0).long(), c(1.0).long()),
    "0dim": lambda d, c: (d(2) + torch.tensor(2.0), torch.lerp(d(2), d(2) * 3, torch.tensor(0.5))),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_D4_what_torch_lets_mix(name: str, same_as_eager: Callable[..., None]) -> None:
    def program(device: str) -> object:
        return ALLOWED[name](lambda *shape: torch.ones(shape, device=device), lambda *values: torch.tensor(values))

    same_as_eager(program)


def test_D4_functions_of_others_decide_themselves() -> None:
    def concatenate(a: torch.Tensor, b: torch.Tensor) -> list[float]:
        if torch.overrides.has_torch_function((a, b)):
            return torch.overrides.handle_torch_function(concatenate, (a, b), a, b)
        return [*a.tolist(), *b.tolist()]

    assert concatenate(lazy(1), cpu(1)) == [1.0, 1.0]


def test_D4_a_moved_parameter_may_leave_its_gradient_behind() -> None:
    p = nn.Parameter(cpu(2))
    p.grad = cpu(2)
    p.data = lazy(2)  # as torch: .data moves, .grad stays where it was
    assert isinstance(p, mindtorch.LazyTensor) and p.grad is not None
