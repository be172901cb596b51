"""What CPU kernels take from torch's allocator while they run, and give back: ``rule(args, kwargs, out) -> bytes``.

Above the results that the call returns. These are the copies that torch 2.13 and oneDNN 3.12 make on x86: operands laid
out for a kernel, results before they are laid out for torch, patches of images. Which kernel torch takes is asked of
torch, with this process's number of threads; which one oneDNN takes follows its own order of preference. Left out are
buffers of a cache's size, and what further threads add up for themselves. Workspaces of other devices (cuDNN's,
cuBLAS's) are another matter, and not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .conv_layout import backend
from .flop_rules import Args, Kwargs

_CACHE = 1 << 19  # bytes of patches that oneDNN's forward products make at a time: what stays in a core's cache
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _bytes(t: Any) -> int:
    return math.prod(t.shape) * int(t.dtype.itemsize)


def _is_channels_last(t: Any) -> bool:
    last = _LAST.get(len(t.shape))
    return last is not None and t.is_contiguous(memory_format=last) and not t.is_contiguous()


def _block() -> int:
    """Channels that lie together in oneDNN's own layouts: the floats of a register."""
    return 16 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 8


class _Conv(NamedTuple):
    """A convolution: x, y, w are what it reads, writes, and the weights. A transposed one is one that goes back."""

    x: Any
    y: Any
    w: Any
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    groups: int
    backend: str

    @property
    def image(self) -> Any:
        """The side that has the patches: the input, but for a transposed convolution."""
        return self.y if self.transposed else self.x

    @property
    def features(self) -> Any:
        return self.x if self.transposed else self.y

    @property
    def kernel(self) -> int:
        return math.prod(self.w.shape[2:])

    @property
    def onednn(self) -> bool:
        return self.backend.startswith("Mkldnn")

    @property
    def patches(self) -> int:
        """Bytes of all patches of one image, of one group. OneDNN: a volume layer by layer, but one for each thread."""
        layers = self.onednn and len(self.w.shape) == 5
        places = math.prod(self.features.shape[3 if layers else 2 :])
        threads = min(torch.get_num_threads(), self.x.shape[0] * self.groups) if self.onednn else 1
        return self.image.shape[1] // self.groups * self.kernel * places * int(self.x.dtype.itemsize) * threads

    @property
    def strided(self) -> bool:
        return any(s > 1 for s in self.stride)

    @property
    def dilated(self) -> bool:
        return any(d > 1 for d in self.dilation) and self.kernel > 1

    @property
    def depthwise(self) -> bool:
        return 1 < self.groups == self.image.shape[1] == self.features.shape[1]

    @property
    def by_products(self) -> bool:
        """Has oneDNN nothing better than matrix products of patches, for these channels?"""
        if self.groups == 1 or self.depthwise:
            return False
        return any(t.shape[1] // self.groups % _block() for t in (self.x, self.y))

    @property
    def channels_last(self) -> bool:
        return _is_channels_last(self.x) or _is_channels_last(self.w)

    def copies(self, *given: Any) -> int:
        """Bytes of those that torch lays out otherwise first."""
        if self.channels_last:
            given = given if self.onednn else (self.w,)
            return sum(_bytes(t) for t in given if not t.is_contiguous(memory_format=_LAST[len(t.shape)]))
        return sum(_bytes(t) for t in given if not t.is_contiguous())

    def blocked(self, t: Any) -> int:
        """Bytes of a copy of `x` or `y` in a layout of oneDNN's, which is padded to whole blocks of channels."""
        return _bytes(t) // max(t.shape[1], 1) * _up(t.shape[1], _block())

    def blocked_weight(self) -> int:
        if self.depthwise:
            return _bytes(self.w) // self.groups * _up(self.groups, _block())
        if self.groups > 1:
            return _bytes(self.w)
        return (
            _bytes(self.w)
            // max(math.prod(self.w.shape[:2]), 1)
            * math.prod(_up(n, _block()) for n in self.w.shape[:2])
        )


def _conv(x: Any, w: Any, y: Any, biased: list[int] | None, options: Args) -> _Conv:
    stride, padding, dilation, transposed, _, groups = options
    return _Conv(x, y, w, stride, padding, dilation, transposed, groups, backend(x, w, biased, options))


# ---- oneDNN: most bytes that a kernel, and then torch, hold at a time, of what they make ----------------------------
def _to_features(c: _Conv) -> int:
    """A convolution, and the way back of a transposed one."""
    made = _bytes(c.features)
    wide = any(k > 7 for k in c.w.shape[3:]) and any(c.padding) and c.strided
    volume = c.depthwise and c.dilated and len(c.w.shape) == 5
    if c.by_products or volume or (wide and not c.depthwise):
        return made + max(min(c.patches, _CACHE * torch.get_num_threads()), made)
    plain = c.groups == 1 and c.image.shape[1] <= 4 and not c.transposed
    read = 0 if plain else c.blocked(c.image)
    return c.blocked(c.features) + max(read + c.blocked_weight(), made)


def _to_image(c: _Conv, biased: bool) -> int:
    """A transposed convolution, and the way back of any other."""
    made = _bytes(c.image)
    volume = c.depthwise and len(c.w.shape) == 5
    if c.by_products or volume or (c.dilated and (c.strided or c.depthwise)):
        return made + max(c.patches, made)
    if c.strided and not c.depthwise and not (c.transposed and c.groups > 1):
        # Its kernel pads an image at a time and wants channels last: of a result like that torch makes one copy more.
        images = c.x.shape[0]
        padded = _bytes(c.features) // max(images, 1) * min(torch.get_num_threads(), images)
        return max(_bytes(c.features) + _bytes(c.w) + made + padded, 3 * made)
    sums = made if c.transposed and biased else 0
    return c.blocked(c.image) + max(c.blocked(c.features) + c.blocked_weight() + sums, made)


def _weight_by_products(c: _Conv) -> bool:
    volume = len(c.w.shape) == 5 and (c.depthwise or any(c.padding))
    return volume or c.dilated or (c.depthwise and max(c.w.shape[2:]) > 5)


def _to_weight(c: _Conv) -> int:
    if c.by_products or _weight_by_products(c):
        return 5 * _bytes(c.w) + c.patches
    plain = c.groups == 1 and c.image.shape[1] == 3
    read = c.blocked(c.features) + (0 if plain else c.blocked(c.image))
    return c.blocked_weight() + max(read, _bytes(c.w))


# ---- torch's own kernels: matrix products of patches -----------------------------------------------------------------
def _patches(c: _Conv, backward: bool = False) -> int:
    if c.backend in ("Slow2d", "Slow3d"):
        direct = c.kernel == 1 and not any(c.padding) and all(s == 1 for s in c.stride)
        if not direct:
            return c.patches * c.x.shape[0]
        return _bytes(c.x) if backward and c.backend == "Slow3d" else 0
    return c.patches * (c.x.shape[0] if c.backend == "SlowTranspose2d" and not backward else 1)


def convolution(args: Args, kwargs: Kwargs, out: Any) -> int:
    x, w, bias, *options = args[:9]
    c = _conv(x, w, out, None if bias is None else list(bias.shape), tuple(options))
    if c.backend.startswith("Slow"):
        if c.groups == 1:
            return c.copies(x, w) + _patches(c)
        parts = _bytes(x) // c.groups if x.shape[0] > 1 else 0
        return c.copies(x, w) + max(_bytes(out), parts + _patches(c))
    if not c.onednn:
        return 0
    if c.channels_last:
        return c.copies(x, w) + c.blocked_weight()
    most = _to_image(c, bias is not None) if c.transposed else _to_features(c)
    return c.copies(x, w) + most - _bytes(out)


def convolution_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    grad, x, w, biased, *options, wanted = args[:11]
    c = _conv(x, w, grad, biased, tuple(options))
    copies = c.copies(grad, x, w)
    if c.backend.startswith("Slow"):
        patches = _patches(c, backward=True) if wanted[1] or c.backend != "Slow2d" else 0
        if c.groups == 1:
            return copies + patches
        made = _bytes(x) * bool(wanted[0]) + _bytes(w) * bool(wanted[1])
        parts = (_bytes(x) + _bytes(grad)) // c.groups if x.shape[0] > 1 else 0
        return copies + max(made, parts + patches)
    if not c.onednn:
        return 0
    if c.channels_last:
        products = c.patches + 2 * _bytes(w) if wanted[1] and _weight_by_products(c) else 0
        return copies + c.blocked_weight() + (2 * _bytes(w) if wanted[1] else 0) + products
    most = results = 0
    if wanted[0]:
        most, results = (_to_features(c) if c.transposed else _to_image(c, False)), _bytes(x)
    if wanted[1]:
        most, results = max(most, results + _to_weight(c)), results + _bytes(w)
    return copies + most - results


# ---- products --------------------------------------------------------------------------------------------------------
def _copied(t: Any) -> int:
    """Bytes of a matrix's copy, where its strides are none that BLAS takes (an expanded gradient)."""
    (rows, columns), (down, across) = t.shape, t.stride()
    as_it_is = (across == 1 and down >= max(columns, 1)) or (down == 1 and across >= max(rows, 1))
    return 0 if as_it_is else _bytes(t)


def mm(args: Args, kwargs: Kwargs, out: Any) -> int:
    return _copied(args[0]) + _copied(args[1])


def addmm(args: Args, kwargs: Kwargs, out: Any) -> int:
    return _copied(args[1]) + _copied(args[2])


# ---- recurrent layers ------------------------------------------------------------------------------------------------
def _row(n: int) -> int:
    """Floats from one row of oneDNN's to the next: whole cache lines, but not such that rows fall on one another."""
    n = _up(n, 16)
    return n + 16 if n % 256 == 0 else n


def rnn_workspace(args: Args) -> int:
    """Bytes that a forward pass of oneDNN's LSTM keeps for its backward pass (the last result of the op).

    ``rnn_utils::set_offsets``: gates, cell outputs, states and their gradients, each on pages of its own.
    """
    steps, batch, features = args[0].shape
    hidden = args[2].shape[1]
    states, wide = 2 * (steps + 1) * batch, _row(max(features, hidden))
    floats = [states * wide] * 3 + [states * hidden] * 2 + [steps * batch * _row(n) for n in (4 * hidden, hidden)]
    return sum(_up(4 * n, 4096) for n in floats)


def lstm_kept(args: Args) -> int:
    """Bytes that any implementation of an LSTM keeps for its backward pass: the four gates and the cell state."""
    steps, batch, _ = args[0].shape
    return 5 * steps * batch * int(args[2].shape[1]) * int(args[0].element_size())


def _rnn(args: Args, rows: int, padded: bool) -> int:
    """Weights as the kernel wants them, the gates of `rows`, some states."""
    features, hidden, batch = args[1].shape[1], args[2].shape[1], args[0].shape[1]
    gates = _row(4 * hidden) if padded else 4 * hidden
    states = batch * hidden * (2 if padded else 9)
    return 4 * ((features + hidden + rows) * gates + states + 8 * hidden)


def mkldnn_rnn_layer(args: Args, kwargs: Kwargs, out: Any) -> int:
    steps, batch, features = args[0].shape
    if len(out) > 3 and out[3] is not None and math.prod(out[3].shape):
        return _rnn(args, steps * batch if batch < 128 else batch, padded=True)
    return _rnn(args, steps * batch, padded=False) + (_bytes(args[0]) if features > args[2].shape[1] else 0)


def mkldnn_rnn_layer_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    steps, batch, _ = args[0].shape
    again = _bytes(args[1]) + _bytes(args[2])  # the weights' gradients, before they are laid out for torch
    return _rnn(args, steps * batch, padded=True) + again + 12 * batch * args[2].shape[1]
