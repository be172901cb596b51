"""S3: an operation that reaches ``__torch_dispatch__``, against a subclass whose handler does nothing but answer."""

from __future__ import annotations

from typing import Any

from .timing import Names, Pair, compare, pair_of_inputs, torch


class Empty(torch.Tensor):
    """The floor: what torch itself spends to get to Python and back with one new tensor object."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.Tensor:
        return torch.Tensor._make_wrapper_subclass(cls, (10, 10))


def empty_inputs(requires_grad: bool) -> Names:
    x, y = (torch.Tensor._make_wrapper_subclass(Empty, (10, 10)) for _ in range(2))
    return {"torch": torch, "x": x.requires_grad_(requires_grad), "y": y}


def dispatch_no_grad() -> Pair:
    """S3: below the function level, as a call from C++ or under another mode gets there."""
    lazy, _ = pair_of_inputs()
    with torch._C.DisableTorchFunctionSubclass():
        add = {"add": torch.ops.aten.add.Tensor}
        return compare(("add(x, y)", lazy | add), ("add(x, y)", empty_inputs(False) | add))


def dispatch_grad() -> Pair:
    """S3: one operand requires a gradient, so autograd comes first (through the public operator)."""
    lazy, _ = pair_of_inputs(requires_grad=True)
    return compare(("x + y", lazy), ("x + y", empty_inputs(True)))


class Dispatch:
    def setup(self) -> None:
        lazy, _ = pair_of_inputs(requires_grad=True)
        self.x, self.y = lazy["x"], lazy["y"]

    def time_add_with_grad(self) -> None:
        self.x + self.y

    def track_S3_no_grad(self) -> float:
        return dispatch_no_grad().ratio

    def track_S3_grad(self) -> float:
        return dispatch_grad().ratio

    track_S3_no_grad.unit = track_S3_grad.unit = "x empty handler"  # type: ignore[attr-defined]
