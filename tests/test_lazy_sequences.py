"""SPEC L7: sequences of several lengths, packed and padded, are on the lazy device what they are on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence, pad_sequence, unpack_sequence
from torch.utils._python_dispatch import TorchDispatchMode

Same = Callable[..., None]


class Looks(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("cell", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("total_length", [None, 7])
@pytest.mark.parametrize("grad", [False, True])
def test_L7_packed_sequences(
    cell: type, batch_first: bool, total_length: int | None, grad: bool, same_as_eager: Same
) -> None:
    def program(device: str) -> object:
        net = cell(2, 3).to(device)
        sequences = [torch.randn(n, 2).to(device).requires_grad_(grad) for n in (3, 5, 2)]
        with torch.set_grad_enabled(grad):
            packed = pack_sequence(sequences, enforce_sorted=False)
            out, hidden = net(packed)
            padded, lengths = pad_packed_sequence(out, batch_first, -1.5, total_length)
        assert padded.device == packed.data.device == sequences[0].device and lengths.device.type == "cpu"
        gradients = torch.autograd.grad((padded * 2).sum(), [*sequences, *net.parameters()]) if grad else ()
        return padded, padded.stride(), lengths.tolist(), hidden, unpack_sequence(out), gradients

    same_as_eager(program)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("watched", [False, True])
def test_L7_padded_sequences(
    side: str, batch_first: bool, shape: tuple, grad: bool, watched: bool, same_as_eager: Same
) -> None:
    """Also where a dispatch mode of the program's looks on."""

    def program(device: str) -> object:
        sequences = [torch.randn(n, *shape).to(device).requires_grad_(grad) for n in (3, 1, 2)]
        with Looks() if watched else nullcontext():
            padded = pad_sequence(sequences, batch_first=batch_first, padding_value=0.5, padding_side=side)
        gradients = torch.autograd.grad(padded.square().sum(), sequences) if grad else ()
        return padded, padded.stride(), gradients

    same_as_eager(program)


def test_D4_the_lengths_of_packed_sequences_are_on_the_cpu(same_as_eager: Same) -> None:
    """Where torch wants them, however the op is called."""

    def program(device: str) -> object:
        packed = pack_sequence([torch.ones(3, 2).to(device), torch.ones(2, 2).to(device)])
        found = []
        for call in (torch._VF._pad_packed_sequence, torch.ops.aten._pad_packed_sequence):
            padded, lengths = call(packed.data, packed.batch_sizes, False, 0.5, 4)
            found += [padded, lengths.tolist(), str(lengths.device)]
        return found

    same_as_eager(program)


def test_L9_a_total_length_that_is_too_short_is_refused() -> None:
    packed = pack_sequence([torch.ones(3, 2, device="remote_accelerator")])
    with pytest.raises(ValueError, match="total_length=2 and max sequence length being 3"):
        pad_packed_sequence(packed, total_length=2)
    with pytest.raises(RuntimeError, match="total_length=2 and max sequence length being 3"):
        torch._VF._pad_packed_sequence(packed.data, packed.batch_sizes, False, 0.0, 2)


@pytest.mark.parametrize("kind", ["train", "no grad", "inference", "frozen", "float64"])
@pytest.mark.parametrize("layers, both", [(1, False), (2, True)])
def test_L7_an_lstm_is_the_same_however_often_it_was_seen(
    kind: str, layers: int, both: bool, same_as_eager: Same
) -> None:
    """Its kernel says once how large its workspace is; with grad mode off it has none."""

    def program(device: str) -> object:
        net = torch.nn.LSTM(4, 6, layers, bidirectional=both).to(device)
        if kind == "float64":
            net.double()
        if kind == "frozen":
            net.requires_grad_(False)
        found: list[object] = []
        for _ in range(3):
            x = torch.randn(5, 2, 4, dtype=net.weight_ih_l0.dtype).to(device).requires_grad_(kind == "frozen")
            with torch.set_grad_enabled(kind != "no grad"), torch.inference_mode(kind == "inference"):
                out, states = net(x)
            if kind not in ("no grad", "inference"):
                out.square().sum().backward()
            found.append(
                (out, out.stride(), states, x.grad, [p.grad.clone() for p in net.parameters() if p.grad is not None])
            )
            with torch.no_grad():
                found.append(net(x)[0])
        return found

    same_as_eager(program)
