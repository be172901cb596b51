"""Which kernel torch takes for a convolution on the CPU, and how that lays its result out: asked of torch itself.

Torch's meta function cannot know, and says contiguous; so do we on ``meta``. Elsewhere the layout is the kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .flop_rules import argument

#: What is answered for a call that the kernel does not take, although torch's meta function does.
REFUSED = object()


def backend(x: Any, w: Any, biased: list[int] | None, options: Sequence[Any]) -> str:
    """Name of the kernel. options: stride, padding, dilation, transposed, output padding, groups; biased: its size."""
    stride, padding, dilation, transposed, output_padding, groups = options
    n = len(x.shape) - 2
    lists = [list(v) * (n if len(v) == 1 else 1) for v in (stride, padding, dilation, output_padding)]
    with torch._C.DisableTorchFunction():  # one element stands for all: nothing is allocated
        like = [torch.empty((), dtype=t.dtype, device="cpu").expand(t.shape) for t in (x, w)]
        found = torch._C._select_conv_backend(*like, None, *lists[:3], transposed, lists[3], groups, biased)
    # Of the enumeration's values, those for oneDNN's transposed convolutions have no name in Python.
    return str(found.name) if found.name != "???" else "MkldnnTranspose"


#: Name → positions of stride, padding, dilation, transposed, output padding, groups; a default where there is none.
_OPTIONS: dict[str, tuple[int | None, ...]] = {
    "aten::convolution": (3, 4, 5, 6, 7, 8),
    **{f"aten::conv{n}d": (3, 4, 5, None, None, 6) for n in (1, 2, 3)},
    **{f"aten::conv_transpose{n}d": (3, 4, 7, None, 5, 6) for n in (1, 2, 3)},
}
_BACKWARD = "aten::convolution_backward"
NAMES = (*_OPTIONS, _BACKWARD)
_NAMES = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


def laid_out(name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a convolution of meta tensors gives, as the kernel would lay it out, or REFUSED."""
    if name == _BACKWARD:
        return _gradients(out, args[1], args[2], args[4:10])
    places = _OPTIONS[name]
    x, w, bias = (argument(args, kwargs, i, key) for i, key in enumerate(("input", "weight", "bias")))
    defaults = ([1], [0], [1], "transpose" in name, [0], 1)
    options = [default if p is None else argument(args, kwargs, p, key, default=default)
               for p, key, default in zip(places, _NAMES, defaults)]  # fmt: skip
    options = [[v] if isinstance(v, int) and i not in (3, 5) else v for i, v in enumerate(options)]
    options[1] = [0] if isinstance(options[1], str) else options[1]  # nothing depends on it
    if options[3] and x.shape[1 - len(w.shape)] != w.shape[0]:
        return REFUSED
    if len(x.shape) == len(w.shape) - 1:  # without a batch
        made = _memory_format(x.unsqueeze(0), w, None if bias is None else list(bias.shape), options, False)
        return out if made is None else _empty(out.unsqueeze(0), made).squeeze(0)
    made = _memory_format(x, w, None if bias is None else list(bias.shape), options, False)
    return out if made is None else _empty(out, made)


def _gradients(out: tuple[Any, ...], x: Any, w: Any, options: Sequence[Any]) -> tuple[Any, ...]:
    made = _memory_format(x, w, None, options, True)
    if made is None:
        return out
    grads = [g if g is None or g.dim() < 3 else _empty(g, made) for g in out]
    if (
        grads[1] is not None
        and w.dim() == 4
        and w.is_contiguous(memory_format=made)
        and (backend(x, w, None, options) in ("Slow2d", "SlowTranspose2d"))
    ):
        grads[1] = torch.empty_strided(w.shape, w.stride(), dtype=grads[1].dtype, device="meta")
    return tuple(grads)


def _memory_format(x: Any, w: Any, biased: list[int] | None, options: Sequence[Any], backward: bool) -> Any:
    """The kernel's choice for its results; None where torch's meta function has it right."""
    if len(x.shape) != len(w.shape) or len(x.shape) not in (3, 4, 5):
        return None
    if len(x.shape) == 5 and backend(x, w, biased, options).startswith("Slow"):
        return torch.contiguous_format if backward else None
    if len(x.shape) == 3:  # made contiguous, and taken for an image with one row
        like = [
            torch.empty(x.shape, device="meta").unsqueeze(2),
            torch.empty_strided(w.shape, w.stride(), device="meta").unsqueeze(2),
        ]
    else:
        like = [torch.empty_strided(t.shape, t.stride(), device="meta") for t in (x, w)]
    # In two dimensions all kernels have one rule, which torch tells of oneDNN only where the data is not on a CPU.
    return torch._C._conv_determine_backend_memory_format(*like, torch._C._ConvBackend.Mkldnn)


def _empty(like: Any, memory_format: torch.memory_format) -> Any:
    if like.dim() == 3:
        return torch.empty(
            like.unsqueeze(2).shape, dtype=like.dtype, device="meta", memory_format=memory_format
        ).squeeze(2)
    return torch.empty(like.shape, dtype=like.dtype, device="meta", memory_format=memory_format)
