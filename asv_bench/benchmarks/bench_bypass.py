"""S4: what a program that does not use our devices pays for ``import mindtorch``."""

from __future__ import annotations

import subprocess
import sys

from .timing import UNHOOKED, Pair, compare, torch

# A fresh process each: whatever the import does to torch as a whole is then in the figure too.
PLAIN_ADD = """
import gc, timeit, torch
{extra}
torch.set_num_threads(1)
x, y = torch.randn(10, 10), torch.randn(10, 10)
each = timeit.Timer("x + y", setup="import gc; gc.enable()", globals=globals())
each.timeit(20000)
print(min(each.timeit(5000) / 5000 for _ in range(60)))
"""


def plain_op(rounds: int = 3) -> Pair:
    """S4: ``x + y`` on plain tensors, with mindtorch imported and without."""

    def seconds(extra: str) -> float:
        command = [sys.executable, "-c", PLAIN_ADD.format(extra=extra)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for i, extra in enumerate(("import mindtorch", "")):
            best[i] = min(best[i], seconds(extra))
    return Pair(*best)


def hooked_creation() -> Pair:
    """S4: ``torch.empty(10)`` as a program calls it, against torch's own function kept from before the import."""
    return compare(("torch.empty(10)", {"torch": torch}), ("torch.empty(10)", {"torch": UNHOOKED}), 10_000, 25)


class Bypass:
    def setup(self) -> None:
        self.x, self.y = torch.randn(10, 10), torch.randn(10, 10)

    def time_plain_add(self) -> None:
        self.x + self.y

    def time_hooked_empty(self) -> None:
        torch.empty(10)

    def time_unhooked_empty(self) -> None:
        UNHOOKED.empty(10)

    def track_S4_creation_extra(self) -> float:
        return hooked_creation().extra * 1e6

    track_S4_creation_extra.unit = "us"  # type: ignore[attr-defined]
