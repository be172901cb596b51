"""S5: bytes the engine holds per recorded operation."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from types import ModuleType

from .timing import LAZY, mindtorch, stats, torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt2.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpt2_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpt2_forward(sequence: int = 64) -> dict[str, float]:
    """The engine's own account after one recorded, unread GPT-2-small forward: every table included."""
    torch.manual_seed(0)
    # Twelve layers of GPT-2's shape; the vocabulary only sizes one weight, and a small one is quick to make.
    model = example().GPT2(layers=12, heads=12, width=768, vocab=1000).eval().to(LAZY)
    tokens = torch.randint(1000, (1, sequence)).to(LAZY)
    gc.collect()
    mindtorch.reset_stats()
    with torch.no_grad():
        logits, cache = model(tokens)
    figures = stats()
    assert not logits.materialized and len(cache) == 12
    return {key: float(figures[key]) for key in ("ops_recorded", "bytes_held", "bytes_per_op", "record_bytes")}


def resident() -> int:
    """Bytes of this process in memory (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def resident_per_op(ops: int = 500_000) -> float:
    """The operating system's account, to check the engine's: growth per op of a chain with only its end kept.

    Interned tables do not grow on such a chain, so this is the record and what hangs on it.
    """
    x = torch.ones(10, 10).to(LAZY)
    y = x
    for _ in range(1000):
        y = y + x
    gc.collect()
    before = resident()
    for _ in range(ops):
        y = y + x
    assert not y.materialized
    return (resident() - before) / ops


class Memory:
    def track_S5_bytes_per_op(self) -> float:
        return gpt2_forward()["bytes_per_op"]

    def track_S5_record_bytes(self) -> float:
        return gpt2_forward()["record_bytes"]

    def track_resident_bytes_per_op(self) -> float:
        return resident_per_op()

    track_S5_bytes_per_op.unit = "bytes"  # type: ignore[attr-defined]
    track_S5_record_bytes.unit = "bytes"  # type: ignore[attr-defined]
    track_resident_bytes_per_op.unit = "bytes"  # type: ignore[attr-defined]
