"""Sequences of different lengths: padded, packed, aligned. torch reads the lengths in C++, or wants them elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from ..._ext import lazy as _core
from .meta import value_of

__all__ = ["ctc_loss", "pack", "pad_packed_sequence", "pad_sequence", "watched"]


def watched() -> bool:
    """Does a dispatch mode of the program look on? It is to see what torch itself would do."""
    return bool(torch._C._len_torch_dispatch_stack())


def _spread(rows: torch.Tensor, places: list[int], count: int, padding: float) -> torch.Tensor:
    """``count`` rows of padding, with ``rows`` at these places among them. Differentiable.

    For functions of torch's that make their result in C++, on what it takes for the data's device.
    """
    at = torch.tensor(places, dtype=torch.int64, device=rows.device)
    return rows.new_full((count, *rows.shape[1:]), padding).index_copy(0, at, rows)


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Any:
    if padding_side not in ("left", "right") or not all(_core.get_handle(t) is not None for t in sequences):
        return NotImplemented  # torch says what is wrong
    longest, batch = max(len(t) for t in sequences), len(sequences)
    if watched():
        return _padded_step_by_step(sequences, longest, batch_first, padding_value, padding_side)
    places = []
    for i, t in enumerate(sequences):
        begin = longest - len(t) if padding_side == "left" else 0
        places += [i * longest + k if batch_first else k * batch + i for k in range(begin, begin + len(t))]
    spread = _spread(torch.cat(tuple(sequences)), places, longest * batch, padding_value)
    return spread.view(*((batch, longest) if batch_first else (longest, batch)), *spread.shape[1:])


def _padded_step_by_step(sequences: Any, longest: int, batch_first: bool, value: float, side: str) -> Any:
    """As torch's C++ does it."""
    first = sequences[0]
    size = (len(sequences), longest) if batch_first else (longest, len(sequences))
    out = torch.full((*size, *first.shape[1:]), value, dtype=first.dtype, device=first.device)
    for i, t in enumerate(sequences):
        begin = longest - len(t) if side == "left" else 0
        place = out.select(0, i).narrow(0, begin, len(t)) if batch_first else out.narrow(0, begin, len(t)).select(1, i)
        place.copy_(t)
    return out


def pad_packed_sequence(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> Any:
    if _core.get_handle(data) is None:
        return NotImplemented
    sizes = batch_sizes.tolist()
    longest, batch = len(sizes), sizes[0]
    if 0 < total_length < longest:
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {longest}"
        )
    length = max(total_length, longest)
    places = [step * batch + i for step, size in enumerate(sizes) for i in range(size)]
    padded = _spread(data, places, length * batch, padding_value).view(length, batch, *data.shape[1:])
    lengths = torch.tensor([sum(size > i for size in sizes) for i in range(batch)], device="cpu")
    return padded.transpose(0, 1) if batch_first else padded, lengths


def pack(args: tuple, kwargs: dict) -> Any:
    # torch reads the lengths in C++, where those of an estimate have no memory, and wants batch sizes on the CPU.
    data, lengths, *rest = args
    if _core.device_index(lengths) >= 0:
        return NotImplemented
    plain = value_of(lengths, "lengths")
    if data.requires_grad and torch.is_grad_enabled() and _core.device_index(data) < 0:
        return _Pack.apply(data, plain, *rest, *kwargs.values())
    return _packed(data, plain, *rest, **kwargs)


def _packed(data: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    packed, sizes = torch._C._VariableFunctions._pack_padded_sequence(data, lengths, batch_first)
    return packed, sizes if _core.get_handle(sizes) is None else value_of(sizes, "batch_sizes").clone()


class _Pack(torch.autograd.Function):
    """torch's own formula reads batch sizes that it kept before they had a value."""

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:  # type: ignore[override]
        packed, sizes = _packed(data, lengths, batch_first)
        ctx.size, ctx.sizes, ctx.batch_first = data.shape, sizes, batch_first
        ctx.mark_non_differentiable(sizes)
        return packed, sizes

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _sizes: None) -> Any:  # type: ignore[override]
        step = torch.ops.aten._pack_padded_sequence_backward
        return step(grad, ctx.size, ctx.sizes, ctx.batch_first), None, None


def ctc_loss(func: Any) -> Any:
    """The handler of ``func``: torch's function or that of torch.nn.functional, which calls it in C++ from there."""

    def handler(args: tuple, kwargs: dict) -> Any:
        # For tensors like ours torch divides by the lengths where they are; for its own it takes them, and the targets,
        # to the device.
        names = ("log_probs", "targets", "input_lengths", "target_lengths")
        given: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
        scores: Any = given.get("log_probs")
        if _core.device_index(scores) >= 0:
            return NotImplemented
        moved = {
            name: given[name].to(scores.device)
            for name in ("targets", "target_lengths")
            if isinstance(given.get(name), torch.Tensor) and given[name].device != scores.device
        }
        if not moved:
            return NotImplemented
        return func(
            *(moved.get(name, value) for name, value in zip(names, args, strict=False)),
            *args[len(names) :],
            **{name: moved.get(name, value) for name, value in kwargs.items()},
        )

    return handler
