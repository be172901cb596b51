"""FLOP rules for matrix work. A multiply-add is 2 FLOPs; adding a bias is not counted.

These are the conventions of ``torch.utils.flop_counter``, and the numbers are equal to it wherever it has a formula,
except where it is wrong (below). A multiply-add of complex numbers is 2 FLOPs, too, because torch has it so, though
it takes 8 operations on real ones; Fourier transforms, for which torch has no formula, count real operations.

Where torch's number is wrong:

- a product with a sparse matrix: it counts that as a dense one, here only the stored numbers count;
- weight gradient of a grouped convolution: it counts `groups` times too much;
- ``_efficient_attention_forward``/``_backward``: it reads the (batch, length, heads, dim) layout as
  (batch, heads, length, dim).

Causal and masked attention is counted in full, as torch does: the work a kernel skips is the kernel's affair.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .flop_rules import Args, Kwargs, argument, first_output, is_tensor, numel


def _operands(args: Args, kwargs: Kwargs, index: int = 0) -> tuple[Any, Any]:
    a = argument(args, kwargs, index, "self", "input", "batch1", "mat1", "mat")
    b = argument(args, kwargs, index + 1, "mat2", "other", "tensor", "batch2", "vec", "vec2")
    return a, b


def _stored(matrix: Any) -> int | None:
    """Numbers that a sparse matrix stores; None for a dense one."""
    if getattr(matrix, "layout", torch.strided) == torch.strided or not hasattr(matrix, "_nnz"):
        return None
    return numel(matrix._values() if matrix.is_sparse else matrix.values())


def sparse_product(a: Any, b: Any) -> int | None:
    """2 FLOPs for each stored number and each row or column of the dense operand that it meets; None if none is sparse.

    What two sparse operands cost depends on where their numbers are: no formula.
    """
    left, right = _stored(a), _stored(b)
    if left is not None and right is not None:
        raise ValueError("the cost of a product of sparse matrices depends on their values")
    if left is not None:
        return 2 * left * (b.shape[-1] if len(b.shape) > 1 else 1)
    if right is not None:
        return 2 * right * (a.shape[-2] if len(a.shape) > 1 else 1)
    return None


def matmul(args: Args, kwargs: Kwargs, out: Any) -> int:
    """mm, bmm, mv, dot, matmul: 2 K per output element, K the contracted size (last of the first operand)."""
    a, b = _operands(args, kwargs)
    sparse = sparse_product(a, b)
    if sparse is not None:
        return sparse
    k = a.shape[-1]
    if is_tensor(out):
        return 2 * numel(out) * k
    rows = math.prod(a.shape[:-1])
    return 2 * rows * k * (b.shape[-1] if len(b.shape) > 1 else 1)


def addmm(args: Args, kwargs: Kwargs, out: Any) -> int:
    """addmm, baddbmm, addmv, addbmm, addr: the product of arguments 1 and 2; the addition is not counted."""
    a = argument(args, kwargs, 1, "mat1", "batch1", "mat", "vec1")
    b = argument(args, kwargs, 2, "mat2", "batch2", "vec", "vec2")
    sparse = sparse_product(a, b)
    if sparse is not None:
        return sparse
    if len(a.shape) == 1:
        return 2 * numel(a) * numel(b)  # addr: an outer product
    rows = math.prod(a.shape[:-1])
    return 2 * rows * a.shape[-1] * (b.shape[-1] if len(b.shape) > 1 else 1)


def linear(args: Args, kwargs: Kwargs, out: Any) -> int:
    """linear(input, weight, bias): 2 x tokens x in x out."""
    x = argument(args, kwargs, 0, "input", "self")
    weight = argument(args, kwargs, 1, "weight")
    k = weight.shape[-1]
    return 2 * numel(x) * (weight.shape[0] if len(weight.shape) > 1 else 1) if k else 0


def matmul_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """matmul_backward(grad, self, other, mask): each wanted gradient costs one forward product."""
    grad = argument(args, kwargs, 0, "grad")
    a = argument(args, kwargs, 1, "self")
    mask = argument(args, kwargs, 3, "mask")
    return 2 * numel(grad) * a.shape[-1] * sum(map(bool, mask))


def linear_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """linear_backward(self, grad_output, weight, output_mask): gradients of input and weight; the bias's is a sum."""
    x = argument(args, kwargs, 0, "self")
    weight = argument(args, kwargs, 2, "weight")
    mask = argument(args, kwargs, 3, "output_mask")
    return 2 * numel(x) * weight.shape[0] * (bool(mask[0]) + bool(mask[1]))


def grouped_mm(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_grouped_mm: rows (or columns, or K) are split among the groups, so only 3D x 3D multiplies by their number."""
    a, b = argument(args, kwargs, 0, "self"), argument(args, kwargs, 1, "mat2")
    groups = a.shape[0] if len(a.shape) == 3 and len(b.shape) == 3 else 1
    return 2 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1]


def foreach_mm(args: Args, kwargs: Kwargs, out: Any) -> int:
    a, b = argument(args, kwargs, 0, "self"), argument(args, kwargs, 1, "mat2")
    return sum(matmul((x, y), {}, None) for x, y in zip(a, b))


def contraction(args: Args, kwargs: Kwargs, out: Any) -> int:
    """inner, tensordot: operands (free_a, K) and (free_b, K) give free_a x free_b, so K^2 = |a| |b| / |out|."""
    a = argument(args, kwargs, 0, "self", "a", "input")
    b = argument(args, kwargs, 1, "other", "b")
    size = numel(out)
    return 2 * size * math.isqrt(numel(a) * numel(b) // size) if size else 0


def vecdot(args: Args, kwargs: Kwargs, out: Any) -> int:
    """linalg.vecdot(x, y, dim=-1)."""
    x = argument(args, kwargs, 0, "x")
    return 2 * numel(out) * x.shape[argument(args, kwargs, 2, "dim", default=-1)]


def chain(args: Args, kwargs: Kwargs, out: Any) -> int:
    """multi_dot of two matrices; the order (hence the cost) of a longer chain is the library's choice: no formula."""
    tensors = argument(args, kwargs, 0, "tensors", "matrices")
    if len(tensors) != 2:
        raise ValueError("cost of a chain depends on its order")
    return matmul(tuple(tensors), {}, out)


def einsum(args: Args, kwargs: Kwargs, out: Any) -> int:
    """einsum of one or two operands; a longer one contracts along a path of the library's choice: no formula."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not isinstance(equation, str) or not 1 <= len(operands) <= 2:
        raise ValueError("no formula")
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    sizes: dict[str, int] = {}
    seen: list[set[str]] = []
    for term, operand in zip(terms, operands):
        labels = _einsum_labels(term, len(operand.shape))
        for label, size in zip(labels, operand.shape):
            sizes[label] = max(sizes.get(label, 1), size)
        seen.append(set(labels))
    if len(operands) == 1:
        return numel(operands[0])  # a sum or a transposition; at most 1 FLOP per element
    if "->" in equation:
        kept = {c for c in right if c.isalpha()} | {c for c in sizes if c.isdigit()}
    else:
        counts = "".join(terms)
        kept = {label for label in sizes if counts.count(label) < 2}
    # what only one operand has is summed away before the product
    dropped = {label for label in sizes if label not in kept and sum(label in s for s in seen) == 1}
    contracted = {label for label in sizes if label not in kept and label not in dropped}
    work = math.prod(size for label, size in sizes.items() if label not in dropped)
    return 2 * work if contracted else work


def _einsum_labels(term: str, ndim: int) -> list[str]:
    head, dots, tail = term.partition("...")
    if not dots:
        return list(term)
    hidden = ndim - len(head) - len(tail)
    # broadcast dimensions align at the right: number them from there
    return [*head, *(str(hidden - 1 - i) for i in range(hidden)), *tail]


# -- convolution -------------------------------------------------------------------------------------------------------


def _conv(x: Any, weight: Any, result: Any, transposed: bool) -> int:
    # Each weight element meets each output position once (transposed: each input position), of each sample. Groups
    # need no factor: they are already missing from the weight's second dimension. weight.shape[0] is the number of
    # channels of the side that is counted.
    side = x if transposed else result
    channels = weight.shape[0]
    return 2 * numel(weight) * (numel(side) // channels) if channels else 0


def convolution(args: Args, kwargs: Kwargs, out: Any) -> int:
    """convolution(input, weight, bias, stride, padding, dilation, transposed, ...)."""
    x = argument(args, kwargs, 0, "input")
    weight = argument(args, kwargs, 1, "weight")
    return _conv(x, weight, out, bool(argument(args, kwargs, 6, "transposed", default=False)))


def conv(args: Args, kwargs: Kwargs, out: Any) -> int:
    """conv1d/2d/3d and the backend kernels: (input, weight, ...), never transposed."""
    x = argument(args, kwargs, 0, "input", "self")
    return _conv(x, argument(args, kwargs, 1, "weight"), first_output(args, kwargs, out), False)


def conv_transpose(args: Args, kwargs: Kwargs, out: Any) -> int:
    x = argument(args, kwargs, 0, "input", "self")
    return _conv(x, argument(args, kwargs, 1, "weight"), out, True)


def conv_tbc(args: Args, kwargs: Kwargs, out: Any) -> int:
    """conv_tbc(self: T x B x Cin, weight: K x Cin x Cout)."""
    weight = argument(args, kwargs, 1, "weight")
    return 2 * numel(out) * weight.shape[0] * weight.shape[1]


def conv_tbc_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """conv_tbc_backward(grad, input, weight, bias, pad): gradients of input and weight."""
    weight = args[2]
    return 4 * numel(args[0]) * weight.shape[0] * weight.shape[1]


def convolution_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """convolution_backward(grad_output, input, weight, ..., output_mask): one forward per wanted gradient of input
    and weight. The bias gradient is a sum and not counted."""
    grad = argument(args, kwargs, 0, "grad_output")
    x = argument(args, kwargs, 1, "input", "self")
    weight = argument(args, kwargs, 2, "weight")
    transposed = bool(argument(args, kwargs, 7, "transposed", default=False))
    mask = argument(args, kwargs, 10, "output_mask")
    return _conv(x, weight, grad, transposed) * (bool(mask[0]) + bool(mask[1]))


def slow_conv2d_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_slow_conv2d_backward(grad_output, self, weight, kernel_size, stride, padding, output_mask)."""
    grad, x, weight = args[:3]
    mask = argument(args, kwargs, 6, "output_mask", default=(True, True, False))
    return _conv(x, weight, grad, False) * (bool(mask[0]) + bool(mask[1]))


# -- recurrent networks ------------------------------------------------------------------------------------------------


def _sequence(x: Any, params: Any) -> int:
    # every weight matrix (input, hidden or projection; each layer and direction) meets every (time, batch) token once
    tokens = numel(x) // x.shape[-1] if x.shape[-1] else 0
    return 2 * tokens * sum(numel(w) for w in params if len(w.shape) == 2)


def rnn(args: Args, kwargs: Kwargs, out: Any) -> int:
    """lstm/gru/rnn_tanh/rnn_relu, batched (input, hx, params, ...) or packed (data, batch_sizes, hx, params, ...).

    Matrix work only: gate activations are not counted.
    """
    x = argument(args, kwargs, 0, "input", "data")
    params = kwargs.get("params")
    for value in args[3:1:-1]:
        # params is the only list of tensors at position 2 or 3 (a packed LSTM has its hx list at 2: look at 3 first)
        if params is None and isinstance(value, (list, tuple)) and value and is_tensor(value[0]):
            params = value
    return _sequence(x, params)


def rnn_cell(args: Args, kwargs: Kwargs, out: Any) -> int:
    """lstm_cell/gru_cell/rnn_*_cell(input, hx, w_ih, w_hh, ...)."""
    x = argument(args, kwargs, 0, "input")
    return _sequence(x, (argument(args, kwargs, 2, "w_ih"), argument(args, kwargs, 3, "w_hh")))


def mkldnn_rnn_layer(args: Args, kwargs: Kwargs, out: Any) -> int:
    """mkldnn_rnn_layer(input, weight0 (ih), weight1 (hh), ...): one layer, one direction."""
    return _sequence(args[0], args[1:3])


def mkldnn_rnn_layer_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """Gradients of input and hidden state, and of both weights: twice the forward."""
    return 2 * _sequence(args[0], args[1:3])


def backend_rnn(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_cudnn_rnn, miopen_rnn(input, weight[], ...)."""
    return _sequence(args[0], args[1])


def backend_rnn_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    return 2 * _sequence(args[0], args[1])


def packed(args: Args, kwargs: Kwargs, out: Any) -> int:
    """packed_linear(x, stored, columns, …): 2 x rows x contracted x columns, whatever the weights are packed in."""
    return 2 * numel(args[0]) * int(args[2])
