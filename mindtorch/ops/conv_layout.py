"""Which kernel torch takes for a convolution on the CPU, and how that lays its result out: asked of torch itself.

Torch's meta function cannot know, and says contiguous; so do we on ``meta``. Elsewhere the layout is the kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .rules import argument


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
    **{f"aten::conv{n}d": (3, 4, 5, None, None, 6) for n in (2, 3)},
    **{f"aten::conv_transpose{n}d": (3, 4, 7, None, 5, 6) for n in (2, 3)},
}
_NAMES = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


def laid_out(name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a convolution of meta tensors gives, as the kernel would lay it out; of all other ops, as it is."""
    places = _OPTIONS.get(name)
    x, w, bias = (argument(args, kwargs, i, key) for i, key in enumerate(("input", "weight", "bias")))
    if places is None or len(x.shape) != len(w.shape) or len(x.shape) not in (4, 5):
        return out
    if len(x.shape) == 5:
        defaults = ([1], [0], [1], "transpose" in name, [0], 1)
        options = [default if p is None else argument(args, kwargs, p, key, default=default)
                   for p, key, default in zip(places, _NAMES, defaults)]  # fmt: skip
        options = [[v] if isinstance(v, int) and i not in (3, 5) else v for i, v in enumerate(options)]
        options[1] = [0] if isinstance(options[1], str) else options[1]  # nothing depends on it
        if backend(x, w, None if bias is None else list(bias.shape), options).startswith("Slow"):
            return out
    # In two dimensions all kernels have one rule, which torch tells of oneDNN only where the data is not on a CPU.
    like = [torch.empty_strided(t.shape, t.stride(), device="meta") for t in (x, w)]
    layout = torch._C._conv_determine_backend_memory_format(*like, torch._C._ConvBackend.Mkldnn)
    return torch.empty(out.shape, dtype=out.dtype, device="meta", memory_format=layout)
