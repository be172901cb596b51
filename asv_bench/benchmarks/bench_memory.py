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


def gpt2(kind: str) -> torch.nn.Module:
    """Twelve layers of GPT-2's shape; the vocabulary only sizes one weight, and a small one is quick to make."""
    torch.manual_seed(0)
    if kind == "example":
        return example().GPT2(layers=12, heads=12, width=768, vocab=1000).eval()
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=1000, bos_token_id=0, eos_token_id=0)).eval()


def gpt2_forward(kind: str = "transformers", sequence: int = 64) -> dict[str, float]:
    """The engine's own account after one recorded, unread forward in this process: every table included.

    ``kind``: "transformers" (the GPT-2 that people run, 455 operations) or "example" (`examples/gpt2.py`, whose 234
    operations share the cost of the same 150 parameters).
    """
    model = gpt2(kind).to(LAZY)
    tokens = torch.randint(1000, (1, sequence)).to(LAZY)
    gc.collect()
    mindtorch.reset_stats()
    with torch.no_grad():
        out = model(tokens)
    figures = stats()
    assert figures["ops_executed"] == 0
    del out
    held, ops = float(figures["bytes_held"]), float(figures["ops_recorded"])
    return {"ops": ops, "bytes_held": held, "bytes_per_op": held / ops, "record_bytes": float(figures["record_bytes"])}


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


class Forward:
    params = ("transformers", "example")
    param_names = ("gpt2",)

    def setup(self, kind: str) -> None:
        if kind == "transformers" and importlib.util.find_spec("transformers") is None:
            raise NotImplementedError("needs transformers")

    def track_S5_bytes_per_op(self, kind: str) -> float:
        return gpt2_forward(kind)["bytes_per_op"]

    track_S5_bytes_per_op.unit = "bytes"  # type: ignore[attr-defined]


class Memory:
    def track_S5_record_bytes(self) -> float:
        return float(stats()["record_bytes"])

    def track_resident_bytes_per_op(self) -> float:
        return resident_per_op()

    track_S5_record_bytes.unit = "bytes"  # type: ignore[attr-defined]
    track_resident_bytes_per_op.unit = "bytes"  # type: ignore[attr-defined]
