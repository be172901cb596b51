"""How long convolutions run on a GPU: as the products that they are (implicit GEMM), without the matrix of patches.

A convolution of N images is the product of N x P x Q rows (output pixels), K columns (output channels) and C x R x S
contracted elements (input channels times the kernel's). Backward is two kernels more: of the gradient of the input
(N x H x W rows, C columns) and of the weights (K rows, C x R x S columns, N x P x Q contracted). No kernel writes the
matrix of patches: what it takes beside computing is its tensors, once. There were no measurements of single
convolutions; what is assumed:

- A kernel takes `ADDRESSES` longer than the product of the same shape: addresses of patches cost instructions. In the
  forward pass, the slower matrix units of GeForce wait as much less for those.
- Matrix units (two-byte numbers, TF32) take channels in pieces of 16 bytes: three are computed as four or eight.
- Their kernels want channels last (NVIDIA, "Convolutional Layers User's Guide"): another layout is copied into that
  one before, and the result back after. In the forward pass, kernels for two-byte numbers write the other layout
  themselves (cuDNN's "nhwc2nchw"). Timm's rows of the RTX 3090 in NCHW, and ResNet-50 in TF32, say so.
- On ordinary units, kernels of 3 x 3 with neither stride nor dilation run as F(2x2, 3x3) of Winograd, with 2.25 times
  fewer multiply-adds (Lavin and Gray, 2016).
- Groups of few channels (depthwise) stream memory. For the gradient of the weights, each of the kernel's elements goes
  over both tensors (`conv_depthwise2d_grad_weight_kernel` of torch has a block of threads for each); `AGAIN` is the
  share that comes from memory, fitted to training on the RTX 3090.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from mindtorch.ops.call import Call, strides
from mindtorch.profile.cost import products
from mindtorch.profile.cost.targets import Target

ADDRESSES = 0.25
AGAIN = 0.75
#: Multiply-adds of a direct convolution by those of Winograd's.
WINOGRAD = 2.25
#: Groups of fewer channels than this are no products.
_CHANNELS = 8
_PIECE = 16
_TWO = 2.0  # bytes


class Convolution(NamedTuple):
    """A convolution in two or one dimensions, or three; of a transposed one, the one that it is the backward of.

    groups; channels, features: those of a group that are read and written; taps: elements of the kernel; pixels: of
    all images, where the channels are; places: the same of the features. plain: 3 x 3 without stride and dilation.
    last: channels are the innermost dimension. wanted: which kernels run: "forward", "input", "weight".
    """

    groups: int
    channels: int
    features: int
    taps: int
    pixels: int
    places: int
    plain: bool
    last: bool
    wanted: tuple[str, ...]

    @property
    def read(self) -> int:
        """Elements of the input."""
        return self.groups * self.channels * self.pixels

    @property
    def written(self) -> int:
        """Elements of the result."""
        return self.groups * self.features * self.places

    @property
    def weights(self) -> int:
        return self.groups * self.channels * self.features * self.taps


def described(name: str, call: Call) -> Convolution | None:
    """Of a call of ``aten::convolution`` or ``aten::convolution_backward``, or of those that inference mode hands down
    whole (``aten::conv2d``); None of others."""
    args, results = call.args, call.results
    wanted: tuple[str, ...]
    if name == "aten::convolution":
        (x, weight), (stride, _, dilation, transposed, _, groups) = args[:2], args[3:9]
        result, wanted = results[0], ("forward",)
    elif name == "aten::convolution_backward":
        (result, x, weight), (stride, _, dilation, transposed, _, groups) = args[:3], args[4:10]
        wanted = tuple(kind for kind, asked in zip(("input", "weight"), args[10], strict=False) if asked)
    elif name in _WHOLE:
        (x, weight), transposed, result, wanted = args[:2], "transpose" in name, results[0], ("forward",)
        stride, groups = _given(call, 3, "stride"), _given(call, 6, "groups")
        dilation = _given(call, 7 if transposed else 5, "dilation")
    else:
        return None
    last = _last(x) or _last(weight)
    if transposed:
        x, result = result, x
        turned = {"forward": "input", "input": "forward"}
        wanted = tuple(turned.get(kind, kind) for kind in wanted)
    taps = tuple(weight.shape[2:])
    plain = taps == (3, 3) and all(n == 1 for n in (*_each(stride), *_each(dilation)))
    pixels = x.shape[0] * math.prod(x.shape[2:])
    places = result.shape[0] * math.prod(result.shape[2:])
    features = weight.shape[0] // max(groups, 1)
    if not pixels or not places:  # a batch of no images: no kernel multiplies
        return None
    return Convolution(
        int(groups), int(weight.shape[1]), int(features), math.prod(taps), int(pixels), int(places), plain, last, wanted
    )


_WHOLE = frozenset(f"aten::conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)) | {
    "aten::_convolution_mode"
}


def _given(call: Call, at: int, name: str) -> Any:
    return call.args[at] if len(call.args) > at else call.kwargs.get(name, 1)


def _each(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _last(t: Any) -> bool:
    """Whether it lies with the channels innermost; of one channel, or one pixel, both are the same."""
    step = strides(t)
    return len(step) > 2 and t.shape[1] > 1 and step[1] == 1 and any(length > 1 for length in t.shape[2:])


def seconds(
    known: Mapping[str, float], ordinary: Mapping[str, float], chip: Target, of: Convolution, item: float, share: float,
    peaks: tuple[float, float],
) -> float | None:  # fmt: skip
    """known: factors of products in its numbers; ordinary: those of float32 on ordinary units. item: bytes of an
    element. share: of the bandwidth, for copies. peaks: operations per second on matrix units (0: not on them) and on
    ordinary ones. None: it streams memory."""
    bandwidth = chip.memory_bandwidth * share
    if of.groups > 1 and min(of.channels, of.features) < _CHANNELS:
        both = item * (of.read + of.written)
        return AGAIN * of.taps * both / bandwidth if "weight" in of.wanted else None
    if not peaks[0]:
        return sum(_kernel(ordinary, chip, of, kind, 4.0, item, peaks[1], of.plain) for kind in of.wanted)
    total = 0.0
    for kind in of.wanted:
        total += _kernel(known, chip, of, kind, item, item, peaks[0], False)
        if not of.last:
            copied = of.read if kind == "forward" and item <= _TWO else of.read + of.written
            total += 2 * item * copied / bandwidth
    return total


def _kernel(
    f: Mapping[str, float], chip: Target, of: Convolution, kind: str, unit: float, item: float, peak: float,
    winograd: bool,
) -> float:  # fmt: skip
    """One kernel. unit: bytes of an element as it is multiplied."""
    channels, features = of.channels, of.features
    if unit < 4 or peak > chip.rate("float32", False):
        piece = max(int(_PIECE / unit), 1)
        channels, features = -(-channels // piece) * piece, -(-features // piece) * piece
    multiplied = of.places * channels * features * of.taps
    if kind == "weight":
        rows, columns, inner = features, channels * of.taps, of.places
    elif kind == "input":
        rows, columns = of.pixels, channels
        inner = max(multiplied // max(rows * columns, 1), 1)
    else:
        rows, columns, inner = of.places, features, channels * of.taps
    shape = products.Products(of.groups, rows, columns, inner, unit)
    # Patches overlap: of what a product of this size reads, the tensors are this part.
    once = {**f, "cache": f["cache"] * of.taps}
    addresses = ADDRESSES * (f.get("addresses", 1.0) if kind == "forward" else 1.0)
    computing = float(products.seconds(once, _unbounded(chip), peak, shape)[0]) * (1 + addresses)
    if winograd:
        computing /= WINOGRAD
    nbytes = item * (of.read + of.written + of.weights)
    memory = nbytes / (chip.memory_bandwidth * f["memory"])
    p = f["round"]
    return float((computing**p + memory**p) ** (1 / p))


@lru_cache(64)
def _unbounded(chip: Target) -> Target:
    """The same chip, with memory that takes no time: `_kernel` counts the bytes itself."""
    return replace(chip, memory_bandwidth=math.inf)
