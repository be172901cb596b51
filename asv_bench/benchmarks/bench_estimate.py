"""S9: the 405-billion-parameter Llama 3.1, one prefill of 2,048 tokens, with its FLOPs and its peak memory."""

from __future__ import annotations

import resource
import time
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from mindtorch.profile.estimate.estimator import Estimator

from .timing import Pair, torch

CONFIG = {
    "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "dtype": "bfloat16",
}  # fmt: skip
SEQUENCE = 2048
FLOPS = 1_688_386_000_000_000  # matrix work, attention in it: `parameters` and FlopCounterMode agree on it to 0.01 %


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    with no_init_weights():
        return LlamaForCausalLM._from_config(LlamaConfig(**CONFIG)).eval()


def estimate() -> tuple[float, dict[str, Any]]:
    """(seconds, report) of one unmodified forward pass without data and without a hand-made mask."""
    with Estimator():
        model = _model()
    began = time.perf_counter()
    with Estimator() as estimator, torch.no_grad():
        model(input_ids=torch.zeros(1, SEQUENCE, dtype=torch.int64), use_cache=False)
    report = estimator.report()
    return time.perf_counter() - began, report


def torch_meta() -> float:
    """Seconds that torch's meta device and FlopCounterMode take; the mask is made by hand, else the model raises."""
    with torch.device("meta"):
        model = _model()
        ids = torch.zeros(1, SEQUENCE, dtype=torch.int64)
        mask = torch.zeros(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bfloat16)
    began = time.perf_counter()
    with FlopCounterMode(display=False), torch.no_grad():
        model(input_ids=ids, position_ids=ids, attention_mask=mask, use_cache=False)
    return time.perf_counter() - began


def prefill_405b(rounds: int = 3) -> Pair:
    """S9: an estimate beside torch's meta device with its FLOP counter. Minima."""
    ours = []
    for _ in range(rounds):
        seconds, report = estimate()
        if abs(2 * report["totals"]["macs"] / FLOPS - 1) > 1e-3 or not report["memory"]["peak_bytes"]:
            raise AssertionError(f"expected {FLOPS} FLOPs, got {2 * report['totals']['macs']}")
        ours.append(seconds)
    return Pair(min(ours), min(torch_meta() for _ in range(rounds)))


class Estimate:
    """asv's own timings, beside SPEC S9."""

    timeout = 300

    def track_S9_seconds(self) -> float:
        return prefill_405b().value

    track_S9_seconds.unit = "s"  # type: ignore[attr-defined]

    def track_S9_against_torch(self) -> float:
        pair = prefill_405b()
        return pair.reference / pair.value

    track_S9_against_torch.unit = "x faster than torch's meta with FlopCounterMode"  # type: ignore[attr-defined]

    def track_memory(self) -> float:
        estimate()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0

    track_memory.unit = "bytes"  # type: ignore[attr-defined]
