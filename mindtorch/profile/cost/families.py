"""Which model of time an op of an estimate goes to, and with what numbers: its `Work` as the models take it."""

from __future__ import annotations

from mindtorch.profile.cost import flash, products, streams
from mindtorch.profile.cost.work import Work

_ITEM = {"float64": 8.0, "complex64": 8.0, "float32": 4.0, "int8": 1.0}
#: What an attention's backward pass takes of its forward pass: five products instead of two, at a ninth less speed (of
#: FlashAttention-2 on an H100, figures 5 and 6 of "FlashAttention-3", 2024).
BACKWARD = 2.8
#: Products that read packed weights (`program.quantized`).
PACKED = "genie::packed_linear"
#: Batch norms that never compute statistics.
_SCALING = ("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update", "aten::batch_norm_elemt")


def family(work: Work) -> str:
    """Product, attention, convolution or stream: each has its own factors, and its own doubt. "": nothing runs on the
    device, as for views."""
    if work.tag == "view" or not (work.bytes or work.flops):
        return ""
    if work.tag == "attention" and work.product is not None:
        return "attention"
    if work.tag == "conv":
        return "convolution"
    if work.tag == "matmul" and work.product is not None and min(work.product) > 0:
        return "product"
    return "stream"


def itemsize(dtype: str) -> float:
    """Bytes of an element of an operand ("float8_e4m3fn" is 1)."""
    return 1.0 if dtype.startswith("float8") else _ITEM.get(dtype, 2.0)


def product(work: Work) -> products.Products:
    assert work.product is not None
    count, rows, columns, inner = work.product
    copies = 1.0 if count > 1 else 6.0  # weights are used again after other layers', activations at once
    biased = work.name == "aten::addmm"
    item, stored = itemsize(work.dtype), 1.0
    if work.name == PACKED:
        stored = (work.bytes_read / item - count * rows * inner) / (count * columns * inner)
    return products.Products(count, rows, columns, inner, item, copies, work.turned, biased, max(stored, 0.0))


def scores(work: Work) -> flash.Scores:
    """Heads of keys and values, which several heads of queries may share, are told by the bytes."""
    assert work.product is not None
    heads, queries, keys, size = work.product
    item = itemsize(work.dtype)
    shared = (work.bytes / (item * max(size, 1)) - 2 * heads * queries) / (2 * max(keys, 1))
    seen = 0.5 if work.variant == "causal" and queries > 1 else 1.0
    return flash.Scores(heads, min(max(shared, 0.0), heads), queries, keys, size, seen, item)


def share(work: Work) -> str:
    """The factor of `streams` for the op. A batch norm in evaluation has its statistics: it only scales and shifts."""
    if work.variant == "eval" or work.name in _SCALING:
        return "elementwise"
    return streams.family(work.tag)
