"""Findings about memory: what the peak is made of, and need not be."""

from __future__ import annotations

from typing import Any

from mindtorch.profile.report.finding_inputs import BACKWARD, Looked, Said, percent

__all__ = ["activations", "gradients", "no_grad"]

_FULL = 0.8  # of a device's memory


def activations(of: Looked) -> Said | None:
    """Where a card is nearly full, and most of it is kept for backward."""
    capacity = of.memory.get("capacity_bytes")
    share = of.whole(of.kinds.get("activations", 0))
    if not capacity or of.held < _FULL * capacity or share < 0.5 or not any(row.phase == BACKWARD for row in of.rows):
        return None
    fits = "does not fit" if of.memory.get("fits") is False else f"takes {percent(of.held / capacity)} of the memory"
    text = f"the program {fits}: {percent(share)} of the peak is activations kept for the backward pass"
    to_try = (
        "checkpointing of the repeated layers (--what-if checkpointing), bfloat16 (--what-if bf16), smaller batches"
    )
    return Said(text, share, _largest(of, "activations"), to_try, "peak")


def _largest(of: Looked, kind: str) -> dict[str, Any]:
    """The place of the largest one at the peak, or, where all are too small to be listed, of what makes most of them:
    the backward pass makes gradients."""
    row = next((row for row in of.memory.get("largest") or () if row["category"] == kind), None)
    if row is not None:
        return {key: row[key] for key in ("file", "line", "function", "source", "module")}
    made = [row for row in of.rows if row.sig and (row.phase == BACKWARD) == (kind == "gradients")]
    return of.heaviest(made, lambda row: row.nbytes) | {"module": ""}


def gradients(of: Looked) -> Said | None:
    """Gradients of the iteration before that are there while the forward pass has its peak: of no use, where each
    iteration has one backward pass. What the peak would be lower by is bounded by the other phases' peaks."""
    at = of.memory.get("at") or {}
    roots = [row["calls"] for row in of.report["modules"] if row["path"] and not row["depth"]]
    if at.get("phase") != "forward" or of.steps() < 2 or not roots or max(roots) > of.steps():
        return None
    others = max((row["peak_bytes"] for row in of.report["phases"] if row["name"] != "forward"), default=0)
    less = min(of.kinds.get("gradients", 0), of.peak - others)
    share = of.whole(less)
    text = (
        f"the peak would be {percent(share)} lower without the gradients of the previous iteration, which the forward "
        "pass does not need"
    )
    to_try = "optimizer.zero_grad() before the forward pass, not after it, and without set_to_none=False"
    return Said(text, share, _largest(of, "gradients"), to_try, "peak")


def no_grad(of: Looked) -> Said | None:
    """What the peak is lower by without them is what more there is of activations than an operation's input and output,
    at most the two largest, as far as training lets it be."""
    in_vain = of.memory.get("kept_in_vain_bytes", 0)
    if not in_vain or of.seen.interrupted or of.seen.exit_code or not of.report["totals"]["trainable_params"]:
        return None
    rows = [row for row in of.memory.get("largest") or () if row["category"] == "activations"]
    needed = 2 * max((row["bytes"] // row["count"] for row in rows), default=0)
    training = [row["peak_bytes"] for row in of.report["phases"] if row["name"] in ("backward", "optimizer")]
    share = of.whole(min(in_vain - needed, of.peak - max(training, default=0)))
    text = (
        f"models ran with gradients, but no backward pass followed: the peak would be about {percent(share)} lower "
        "without activations that nothing needs"
    )
    to_try = "with torch.no_grad(): or torch.inference_mode(): around calls that do not train"
    return Said(text, share, _largest(of, "activations"), to_try, "peak")
