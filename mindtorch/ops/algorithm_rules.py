"""FLOP rules for ops whose cost is that of a textbook algorithm: Fourier transforms, factorizations, sorting, bags.

Conventions:

- a Fourier transform of N points is 5 N log2 N, half of that where its input or its result is real (the figures of the
  FFTW benchmarks, whichever algorithm a library takes);
- factorizations and solves are the leading terms in Golub and Van Loan, "Matrix Computations"; what iterates until it
  converges (eigenvalues, singular values, matrix exponentials) has no formula;
- a comparison counts as any element-wise op does: a sort of N is N log2 N, a binary search log2 N, a selection (top k,
  median) one per element, as a maximum is.
"""

from __future__ import annotations

import math
from typing import Any

from .flop_rules import Args, Kwargs, argument, first_output, is_tensor, numel

# -- Fourier transforms ------------------------------------------------------------------------------------------------


def _transform(points: int, lengths: list[int], real: bool) -> int:
    length = math.prod(lengths)
    return round((2.5 if real else 5.0) * points * math.log2(length)) if length > 1 else 0


def fft_kernel(args: Args, kwargs: Kwargs, out: Any) -> int:
    """_fft_c2c(self, dim, ...), _fft_r2c(self, dim, ...), _fft_c2r(self, dim, ..., last_dim_size)."""
    x, dims = argument(args, kwargs, 0, "self"), argument(args, kwargs, 1, "dim")
    result = first_output(args, kwargs, out)
    real = [side for side in (x, result) if not side.dtype.is_complex]
    full = real[0] if real else x  # the other side of a real transform may be one-sided
    return _transform(numel(full), [full.shape[d] for d in dims], bool(real))


class Fft:
    """torch.fft.*(input, n or s, dim, norm); `dims`: the default, None for all of them."""

    def __init__(self, *dims: int) -> None:
        self.dims = dims or None

    def __call__(self, args: Args, kwargs: Kwargs, out: Any) -> int:
        x = argument(args, kwargs, 0, "input", "self")
        sizes = argument(args, kwargs, 1, "n", "s")
        dims = argument(args, kwargs, 2, "dim", default=self.dims)
        sizes = (sizes,) if isinstance(sizes, int) else sizes
        if dims is None:
            dims = range(-len(sizes), 0) if sizes is not None else range(len(x.shape))
        dims = (dims,) if isinstance(dims, int) else dims
        result = first_output(args, kwargs, out)
        real = [side for side in (x, result) if not side.dtype.is_complex]
        full = real[0] if real else result
        lengths = [full.shape[d] for d in dims]
        points = numel(full)
        if sizes is not None and full is x:  # cut or padded to these sizes before the transform
            points = points // max(math.prod(lengths), 1) * math.prod(sizes)
            lengths = list(sizes)
        return _transform(points, lengths, bool(real))


# -- factorizations and solves -----------------------------------------------------------------------------------------


def _matrices(a: Any) -> tuple[int, int, int]:
    """(number of matrices, longer side, shorter side)"""
    rows, columns = a.shape[-2:]
    return math.prod(a.shape[:-2]), max(rows, columns), min(rows, columns)


def cholesky(args: Args, kwargs: Kwargs, out: Any) -> int:
    count, _, n = _matrices(argument(args, kwargs, 0, "self", "input", "A"))
    return count * n**3 // 3


def lu(args: Args, kwargs: Kwargs, out: Any) -> int:
    """LU factors, and the determinant that is read off them."""
    count, m, n = _matrices(argument(args, kwargs, 0, "A", "self", "input"))
    return count * (m * n * n - n**3 // 3)


def inverse(args: Args, kwargs: Kwargs, out: Any) -> int:
    count, _, n = _matrices(argument(args, kwargs, 0, "A", "self", "input"))
    return count * 2 * n**3


def cholesky_inverse(args: Args, kwargs: Kwargs, out: Any) -> int:
    return 2 * cholesky(args, kwargs, out)


def qr(args: Args, kwargs: Kwargs, out: Any) -> int:
    """Householder's: R, and as much again for the columns of Q that are asked for."""
    a = argument(args, kwargs, 0, "A", "self", "input")
    count, m, n = _matrices(a)
    mode = argument(args, kwargs, 1, "mode", default="reduced")
    work = 2 * m * n * n - 2 * n**3 // 3
    if mode is True or mode == "r":
        return count * work
    if mode in (False, "complete") and a.shape[-2] == m:
        return count * (work + 4 * (m * m * n - m * n * n + n**3 // 3))
    return count * 2 * work


def householder(args: Args, kwargs: Kwargs, out: Any) -> int:
    a, tau = argument(args, kwargs, 0, "input", "self"), argument(args, kwargs, 1, "tau", "input2")
    m, n = a.shape[-2:]
    k = tau.shape[-1]
    return math.prod(a.shape[:-2]) * (4 * m * n * k - 2 * (m + n) * k * k + 4 * k**3 // 3)


def _solution(matrix: Any, right_side: Any, out: Any, times: int) -> int:
    # an n x n triangle meets each of the columns (left=False: rows) solved for: n^2 FLOPs
    n = matrix.shape[-1]
    return times * n * numel(first_output((right_side,), {}, out))


def solve_triangular(args: Args, kwargs: Kwargs, out: Any) -> int:
    """linalg_solve_triangular(A, B, *, upper, left)."""
    a, b = argument(args, kwargs, 0, "self", "A", "input"), argument(args, kwargs, 1, "B")
    return _solution(a, b, out, 1)


def triangular_solve(args: Args, kwargs: Kwargs, out: Any) -> int:
    """triangular_solve(B, A, ...)."""
    return _solution(argument(args, kwargs, 1, "A"), argument(args, kwargs, 0, "self"), out, 1)


def lu_solve(args: Args, kwargs: Kwargs, out: Any) -> int:
    """linalg_lu_solve(LU, pivots, B): two triangles."""
    return _solution(argument(args, kwargs, 0, "LU"), argument(args, kwargs, 2, "B"), out, 2)


def cholesky_solve(args: Args, kwargs: Kwargs, out: Any) -> int:
    """cholesky_solve(B, L): two triangles."""
    return _solution(argument(args, kwargs, 1, "input2"), argument(args, kwargs, 0, "self", "input"), out, 2)


def solve(args: Args, kwargs: Kwargs, out: Any) -> int:
    """linalg_solve(A, B): LU, then two triangles."""
    a, b = argument(args, kwargs, 0, "A", "self"), argument(args, kwargs, 1, "B")
    return lu((a,), {}, None) + _solution(a, b, out, 2)


# -- comparisons -------------------------------------------------------------------------------------------------------


def sort(args: Args, kwargs: Kwargs, out: Any) -> int:
    """sort, argsort, mode (self, dim, ...), sort.stable(self, *, stable, dim, ...)."""
    x = argument(args, kwargs, 0, "self", "input")
    if not x.shape:
        return 0
    dim = kwargs.get("dim", -1)
    if len(args) > 1 and "stable" not in kwargs:
        dim = args[1]
    return numel(x) * math.ceil(math.log2(max(x.shape[dim], 1)))


def msort(args: Args, kwargs: Kwargs, out: Any) -> int:
    return sort(args, {"dim": 0}, out)


def searchsorted(args: Args, kwargs: Kwargs, out: Any) -> int:
    """searchsorted(sorted_sequence, values)."""
    sequence = argument(args, kwargs, 0, "sorted_sequence")
    return numel(first_output(args, kwargs, out)) * math.ceil(math.log2(sequence.shape[-1] + 1))


def bucketize(args: Args, kwargs: Kwargs, out: Any) -> int:
    """bucketize(values, boundaries)."""
    boundaries = argument(args, kwargs, 1, "boundaries")
    return numel(first_output(args, kwargs, out)) * math.ceil(math.log2(boundaries.shape[-1] + 1))


def isin(args: Args, kwargs: Kwargs, out: Any) -> int:
    """isin(elements, test_elements): every pair is compared, or all are sorted, as ATen does (TensorCompare.cpp)."""
    elements = argument(args, kwargs, 0, "elements", "element")
    tests = argument(args, kwargs, 1, "test_elements", "test_element")
    n, m = (numel(x) if is_tensor(x) else 1 for x in (elements, tests))
    if m < int(10 * n**0.145):
        return n * m
    return (n + m) * math.ceil(math.log2(n + m)) if n + m else 0


# -- others ------------------------------------------------------------------------------------------------------------


def embedding_bag(args: Args, kwargs: Kwargs, out: Any) -> int:
    """An addition (or comparison) per number looked up, and a multiplication with weights per sample."""
    first, second = args[:2]
    weight, indices = (first, second) if first.dtype.is_floating_point else (second, first)
    weighted = argument(args, kwargs, 6, "per_sample_weights") if weight is first else kwargs.get("per_sample_weights")
    return numel(indices) * weight.shape[-1] * (1 if weighted is None else 2)


def embedding_bag_backward(args: Args, kwargs: Kwargs, out: Any) -> int:
    """(grad, indices, ...): the gradient of a bag is added to each of its rows."""
    return numel(args[1]) * args[0].shape[-1]


class Distances:
    """`factor` FLOPs per coordinate of every pair of rows: cdist(x1, x2); its backward(grad, x1, x2, ...)."""

    def __init__(self, factor: int, first: int = 0) -> None:
        self.factor, self.first = factor, first

    def __call__(self, args: Args, kwargs: Kwargs, out: Any) -> int:
        x1, x2 = args[self.first], args[self.first + 1]
        pairs = args[0] if self.first else first_output(args, kwargs, out)
        return self.factor * numel(pairs) * x1.shape[-1] if x2.shape else 0


class GridSample:
    """grid_sampler(input, grid, interpolation_mode, ...): 2 FLOPs per tap of every output element, as upsampling."""

    def __init__(self, ndim: int, backward: bool = False) -> None:
        self.ndim, self.backward = ndim, backward

    def __call__(self, args: Args, kwargs: Kwargs, out: Any) -> int:
        first = int(self.backward)
        result = args[0] if self.backward else first_output(args, kwargs, out)
        mode = argument(args, kwargs, 2 + first, "interpolation_mode")
        taps = {0: 2, 1: 0, 2: 4}[mode] ** self.ndim  # linear, nearest, cubic
        return (1 + first) * 2 * taps * numel(result)
