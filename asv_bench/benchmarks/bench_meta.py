"""S8: an operation on the meta device, beside torch's own."""

from __future__ import annotations

from .timing import Names, Pair, compare, mindtorch, torch


def _inputs() -> tuple[Names, Names]:
    ours = {name: mindtorch.empty(10, 10, device="meta") for name in "xy"}
    theirs = {name: torch.empty(10, 10, device="meta") for name in "xy"}
    return {"torch": torch, **ours}, {"torch": torch, **theirs}


def meta_add() -> Pair:
    """S8: ``x + y`` on meta, against torch's meta device."""
    ours, theirs = _inputs()
    return compare(("x + y", ours), ("x + y", theirs), number=500)


def meta_matmul() -> Pair:
    """``x @ y`` on meta, against torch's meta device, whose kernel for it is the cheapest of its matrix products."""
    ours, theirs = _inputs()
    return compare(("x @ y", ours), ("x @ y", theirs), number=500)


class Meta:
    """asv's own timings, beside the ratio of SPEC S8."""

    def setup(self) -> None:
        ours, theirs = _inputs()
        self.x, self.y, self.torch_x, self.torch_y = ours["x"], ours["y"], theirs["x"], theirs["y"]

    def time_add(self) -> None:
        self.x + self.y

    def time_add_torch(self) -> None:
        self.torch_x + self.torch_y

    def track_S8_add(self) -> float:
        pair = meta_add()
        return pair.reference / pair.value

    track_S8_add.unit = "x faster than torch's meta"  # type: ignore[attr-defined]
