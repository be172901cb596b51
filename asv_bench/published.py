# ruff: noqa: E501
"""Published runs beside their estimates: ``python asv_bench/published.py`` shows the table of docs/ACCURACY.md.

Each row is a program of our own that does what the source says was run; no factor was fitted to these figures.
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import published_programs as programs
from estimates import estimated

NVIDIA, LECTURE, GPT_FAST, DIFFUSION, QWEN, QWEN3 = 1, 2, 3, 4, 5, 6
SOURCES = """
1. NVIDIA/DeepLearningExamples, PyTorch, ResNet50 v1.5, README (pytorch-21.03). TF32 and float32 in torch's default layout,
   mixed precision with channels last.
2. karpathy/build-nanogpt, the commits of 2024-06-07, and the chapters of the lecture that goes with them, which name
   the times; 16 × 1,024 tokens. The lecture says that the GPU is an A100 SXM of 80 GB. Attention is computed op by op,
   unless the row says "fused".
3. pytorch-labs/gpt-fast, README. One token at a time, after a prompt of five; boards limited to 330 W. Several GPUs
   are tensor parallel in one machine. Experts are grouped products here; there, compiled sums over the weights by index.
4. huggingface/diffusion-fast, and the tutorial "Accelerate inference of text-to-image diffusion models" of
   huggingface/diffusers. Batch 1, an A100 of 400 W. Estimated without the text encoders.
5. Qwen's documentation, "Speed Benchmark" of Qwen2.5 (transformers 4.46, torch 2.3.1) and of Qwen2 (4.38.2, torch 2.1.2): an
   input of one token, one A100 of 80 GB, flash attention; here by the installed transformers, with torch's own attention.
   The host's time was fitted to those of Qwen2.5.
6. The same of Qwen3 (transformers 4.51, torch 2.6), on a machine with an H20; nothing of it was seen when
   these rows were first estimated. Its host takes about 9 µs from one kernel to the next, half of what that of source 5
   takes; releases are newer, the processors are not named. It is one of the nine hosts that the interval is made from.
"""
HEAD = """## Published runs

This table compares published times of one step, one token or one image with the estimate of a program that does the
same (`asv_bench/published.py` and `asv_bench/published_programs.py`). The host's factors were fitted to those of source
5. What programs in 16 bits take of their calls' time, 1.14, was fitted to those of sources 2 to 4 and to LLM-Foundry's
above: source 2 alone gives 1.13, source 3 gives 1.15, source 4 gives 1.14, LLM-Foundry more than 1.2. The cost models of
convolutions and of compiled code were developed with these figures in view, so this is not a held-out test. One factor,
for products at odd addresses, comes from a commit to nanoGPT, a program much like those of source 2.

Limits of the models: a kernel that `torch.compile` fuses from a chain of ops is assumed to take as long as the longest of
them, with the dtypes before and after the chain; which results it writes for backward is unknown. The stream factors are
from plain float32 ops: whether two-byte ops that broadcast or convert reach the same bandwidth was not measured (eager,
bfloat16). Convolutions on ordinary units use the factors of the chip's products, which on the T4 are well below its
peak. Convolutional networks have few shapes of matrix products, so their calls are taken to need what they need alone.
"""
TABLE = [
    "| run | chip | published | at least | about | interval | error | source |",
    "|---|---|---|---|---|---|---|---|",
]


class Run(NamedTuple):
    """One published figure: seconds of a step, or of a token."""

    what: str
    chip: str
    seconds: float
    source: int  # of `SOURCES`
    program: str
    needs: str = ""  # a package that the program imports and that is not one of ours


def _resnet(program: str, what: str, chip: str, rate: float, half: bool) -> Run:
    text = program.format(batch=256, half=half)
    precision = "mixed precision" if half else "TF32" if chip == "a100" else "float32"
    return Run(f"ResNet-50 {what}, batch 256, {precision}", chip, 256 / rate, NVIDIA, text)


def _gpt2(what: str, seconds: float, words: int = 50257, **having: bool) -> Run:
    flags = dict.fromkeys(("tf32", "half", "compiled", "flash"), False) | having
    return Run(f"GPT-2 124M training, {what}", "a100", seconds, LECTURE, programs.GPT2.format(words=words, **flags))


def _decoding(what: str, rate: float, ranks: int = 1, **sizes: int) -> Run:
    text = programs.DECODING.format(ranks=ranks, **({"experts": 0} | sizes))
    chip = "a100" if ranks == 1 else f"{ranks}xa100"
    return Run(f"{what} decoding, bfloat16, compiled", chip, 1 / rate, GPT_FAST, text)


def _sdxl(what: str, seconds: float, **having: bool) -> Run:
    flags = dict.fromkeys(("half", "fused", "compiled"), False) | having
    return Run(
        f"SDXL, 1,024 x 1,024, 30 steps, {what}", "a100", seconds, DIFFUSION, programs.SDXL.format(**flags),
        needs="diffusers",
    )  # fmt: skip


def _qwen(what: str, rate: float, layers: int, hidden: int, inner: int, heads: int, shared: int, tied: bool) -> Run:
    third = what.startswith("Qwen3")
    sizes = dict(layers=layers, hidden=hidden, inner=inner, heads=heads, shared=shared, tied=tied)
    text = programs.QWEN.format(number=3 if third else 2, words=151936 if tied or third else 152064, **sizes)
    chip, source = ("h20", QWEN3) if third else ("a100", QWEN)
    return Run(f"{what} decoding, bfloat16", chip, 1 / rate, source, text, needs="transformers")


MIXTRAL = {"shared": 8, "inner": 14336, "words": 32000, "experts": 8}
RUNS = (
    _resnet(programs.RESNET_TRAINING, "training", "a100", 938, False),
    _resnet(programs.RESNET_TRAINING, "training", "a100", 2470, True),
    _resnet(programs.RESNET_TRAINING, "training", "v100-16gb", 1200, True),
    _resnet(programs.RESNET_INFERENCE, "inference", "v100-16gb", 1261, False),
    _resnet(programs.RESNET_INFERENCE, "inference", "v100-16gb", 3382, True),
    _resnet(programs.RESNET_INFERENCE, "inference", "t4", 415, False),
    _resnet(programs.RESNET_INFERENCE, "inference", "t4", 1198, True),
    _gpt2("float32", 1.0),
    _gpt2("TF32", 0.333, tf32=True),
    _gpt2("bfloat16", 0.300, tf32=True, half=True),
    _gpt2("bfloat16, compiled", 0.130, tf32=True, half=True, compiled=True),
    _gpt2("the same, fused attention", 0.096, tf32=True, half=True, compiled=True, flash=True),
    _gpt2("the same, 50,304 tokens", 0.093, 50304, tf32=True, half=True, compiled=True, flash=True),
    _decoding("Llama-2-7B", 104.9, shared=32, inner=11008, words=32000),
    _decoding("Llama-3.1-8B", 93.89, shared=8, inner=14336, words=128256),
    _decoding("Mixtral-8x7B", 96.67, 2, **MIXTRAL),
    _decoding("Mixtral-8x7B", 155.35, 4, **MIXTRAL),
    _sdxl("TF32", 7.36),
    _sdxl("bfloat16", 4.63, half=True),
    _sdxl("bfloat16, fused attention", 3.31, half=True, fused=True),
    _sdxl("the same, compiled", 2.54, half=True, fused=True, compiled=True),
    _qwen("Qwen2.5-0.5B", 47.40, 24, 896, 4864, 14, 2, True),
    _qwen("Qwen2.5-1.5B", 39.68, 28, 1536, 8960, 12, 2, True),
    _qwen("Qwen2.5-3B", 30.80, 36, 2048, 11008, 16, 2, True),
    _qwen("Qwen2.5-7B", 40.38, 28, 3584, 18944, 28, 4, False),
    _qwen("Qwen2-0.5B", 49.94, 24, 896, 4864, 14, 2, True),
    _qwen("Qwen2-1.5B", 40.89, 28, 1536, 8960, 12, 2, True),
    _qwen("Qwen2-7B", 37.97, 28, 3584, 18944, 28, 4, False),
    _qwen("Qwen3-1.7B", 59.83, 28, 2048, 6144, 16, 8, True),
    _qwen("Qwen3-4B", 45.94, 36, 2560, 9728, 32, 8, True),
    _qwen("Qwen3-8B", 45.32, 36, 4096, 12288, 32, 8, False),
)


def section() -> str:
    """The part of the page."""
    lines = [HEAD, *TABLE]
    errors, seen, missing, below = [], [], [], 0
    for run in RUNS:
        if run.needs and importlib.util.find_spec(run.needs) is None:
            missing.append(f"{run.what} ({run.needs} is not installed)")
            continue
        t = estimated(run.chip, run.program)
        errors.append(t["about_s"] / run.seconds - 1)
        seen += errors[-1:] if run.source != QWEN3 else []
        below += run.seconds < t["bound_s"]
        low, high = t["about_low_s"] * 1e3, t["about_high_s"] * 1e3
        inside = "" if low <= run.seconds * 1e3 <= high else " (outside)"
        lines.append(
            f"| {run.what} | {run.chip} | {run.seconds * 1e3:.4g} ms | {t['bound_s'] * 1e3:.4g} ms | "
            f"{t['about_s'] * 1e3:.4g} ms | {low:.4g}–{high:.4g} ms{inside} | {errors[-1]:+.1%} | {run.source} |"
        )
    mean = sum(map(abs, errors)) / len(errors)
    lines += ["", f"Mean error: {mean:.1%}; {below} of {len(errors)} were faster than the bound."]
    if seen:
        lines[-1] += f" Without source 6, whose host is not the one of the fit: {sum(map(abs, seen)) / len(seen):.1%}."
    lines.append(SOURCES)
    if missing:
        lines += [f"Not estimated here: {', '.join(missing)}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(section())
