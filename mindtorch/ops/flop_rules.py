"""FLOP rules for everything that is not matrix work.

Conventions:

- an element-wise op is 1 FLOP per output element, whatever it computes: ``exp`` counts as ``add`` does, and integer,
  comparison and selection ops count alike (the convention of XLA's cost analysis, without its separate
  transcendental count);
- a reduction is 1 FLOP per input element, and so are writes that add up (``index_add``), of what they add;
- normalizations are 5 FLOPs per element (mean, variance, subtract, scale, affine), softmax 5 (max, subtract, exp, sum,
  divide), and their backward twice the forward;
- drawing random numbers, moving data, views, creation and embedding look-ups are 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def numel(tensor: Any) -> int:
    """Number of elements of anything with a ``.shape``."""
    return math.prod(tensor.shape)


def is_sparse(tensor: Any) -> bool:
    return getattr(tensor, "layout", torch.strided) in SPARSE


def stored(matrix: Any) -> int:
    """Numbers that a sparse tensor stores, beside its indices."""
    return numel(matrix._values() if matrix.layout is torch.sparse_coo else matrix.values())


def is_tensor(value: Any) -> bool:
    """Whether it says how large it is: nested tensors have no shape to tell, or one of symbols."""
    if getattr(value, "is_nested", False):
        return False
    return hasattr(value, "shape") and hasattr(value, "dtype")


def argument(args: Args, kwargs: Kwargs, index: int, *names: str, default: Any = None) -> Any:
    """The argument at a position of the schema, or under one of its names (torch's Python API renames some)."""
    if index < len(args):
        return args[index]
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return default


def first_tensor(value: Any) -> Any:
    """The first tensor in nested tuples, lists and dicts; None if there is none."""
    if is_tensor(value):
        return value
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            found = first_tensor(item)
            if found is not None:
                return found
    return None


def first_output(args: Args, kwargs: Kwargs, out: Any) -> Any:
    """The main result; an op that returns nothing wrote into its first tensor argument."""
    found = first_tensor(out)
    if found is None:
        found = first_tensor(args)
    if found is None:
        found = first_tensor(kwargs)
    if found is None:
        raise ValueError("no tensor among results and arguments")
    return found


def first_input(args: Args, kwargs: Kwargs) -> Any:
    found = first_tensor(args)
    if found is None:
        found = first_tensor(kwargs)
    if found is None:
        raise ValueError("no tensor among the arguments")
    return found


def zero(args: Args, kwargs: Kwargs, out: Any) -> int:
    """No arithmetic, by definition of the op."""
    return 0


def gives_back(args: Args, kwargs: Kwargs) -> bool:
    """Dropout that is not in training, or of nothing, which gives its input back: no kernel runs."""
    share = argument(args, kwargs, 1, "p", default=0.5)
    training = argument(args, kwargs, 2, "train", "training", default=True)
    return not training or share == 0


def dropped(args: Args, kwargs: Kwargs, out: Any) -> int:
    """Dropout: a multiplication per element; the draw is not arithmetic."""
    return 0 if gives_back(args, kwargs) else numel(first_output(args, kwargs, out))


class PerOutput:
    """`factor` FLOPs per element of the first result."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, args: Args, kwargs: Kwargs, out: Any) -> int:
        made = first_output(args, kwargs, out)
        sparse = [stored(t) for t in (made, *args) if is_tensor(t) and is_sparse(t)]
        return self.factor * min([numel(made), *sparse])  # a sparse operand changes what it has numbers for

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.factor})"


class PerInput(PerOutput):
    """`factor` FLOPs per element of the first tensor argument."""

    def __call__(self, args: Args, kwargs: Kwargs, out: Any) -> int:
        return self.factor * numel(first_input(args, kwargs))


class PerArgument(PerOutput):
    """`factor` FLOPs per element of the argument at a position of the schema, or under its name."""

    def __init__(self, factor: int, index: int, name: str) -> None:
        super().__init__(factor)
        self.index, self.name = index, name

    def __call__(self, args: Args, kwargs: Kwargs, out: Any) -> int:
        return self.factor * numel(argument(args, kwargs, self.index, self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.factor}, {self.index}, {self.name!r})"


class PerListElement(PerOutput):
    """`factor` FLOPs per element of the first list of tensors (``_foreach_*``, fused optimizers)."""

    def __call__(self, args: Args, kwargs: Kwargs, out: Any) -> int:
        tensors = argument(args, kwargs, 0, "self")
        return self.factor * sum(numel(t) for t in tensors)


class PoolWindow:
    """1 FLOP per element of each pooling window: output elements times window size (`ndim` spatial dimensions)."""

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim

    def __call__(self, args: Args, kwargs: Kwargs, out: Any) -> int:
        kernel = argument(args, kwargs, 1, "kernel_size")
        sizes = [kernel] * self.ndim if isinstance(kernel, int) else list(kernel)
        if len(sizes) == 1:
            sizes *= self.ndim
        return numel(first_output(args, kwargs, out)) * math.prod(sizes)


elementwise = PerOutput(1)
reduction = PerInput(1)
norm = PerInput(5)
norm_backward = PerInput(10)
softmax = PerOutput(5)
softmax_backward = PerOutput(10)
