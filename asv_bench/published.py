"""Published runs beside their estimates: ``python asv_bench/published.py`` shows the table of docs/ACCURACY.md.

Each row is a program of our own that does what the source says was run; nothing of it was fitted to these figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

RESNET = """
import torch
from transformers import ResNetConfig, ResNetForImageClassification
model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).cuda()
x = torch.randn({batch}, 3, 224, 224, device="cuda")
if {half}:
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
"""
TRAINING = (
    RESNET
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
y = torch.randint(1000, ({batch},), device="cuda")
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16, enabled={half}):
        loss = torch.nn.functional.cross_entropy(model(x).logits, y)
    loss.backward()
    optimizer.step()
"""
)
INFERENCE = (
    RESNET
    + """
model.eval()
with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled={half}):
    for _ in range(3):
        model(x)
"""
)
GPT2 = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager", use_cache=False)
model = GPT2LMHeadModel(config).cuda()
optimizer = torch.optim.AdamW(model.parameters())
run = torch.compile(model) if {compiled} else model
ids = torch.randint(50257, (12, 1024), device="cuda")
torch.backends.cuda.matmul.allow_tf32 = True
for _ in range(3):
    with torch.autocast("cuda", torch.bfloat16):
        loss = run(ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LLAMA = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(LlamaConfig()).eval()
run = torch.compile(model)
token, cache = torch.zeros(1, 5, dtype=torch.int64, device="cuda"), None
with torch.no_grad():
    for _ in range(104):
        out = run(token, past_key_values=cache, use_cache=True)
        token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
"""
NVIDIA = "NVIDIA/DeepLearningExamples, PyTorch ResNet50 v1.5, README, pytorch-21.03"
NANOGPT = "karpathy/nanoGPT, README, efficiency notes (the GPU is that of the page's other runs)"
GPT_FAST = "pytorch-labs/gpt-fast, README (power limited to 330 W; static cache)"


class Run(NamedTuple):
    """One published figure: seconds of a step, or of a token."""

    what: str
    chip: str
    seconds: float
    source: str
    program: str
    warmup: int = 1


def _resnet(program: str, what: str, chip: str, rate: float, half: bool) -> Run:
    text = program.format(batch=256, half=half)
    return Run(
        f"ResNet-50 {what}, batch 256, {'mixed precision' if half else 'float32'}", chip, 256 / rate, NVIDIA, text
    )


RUNS = (
    _resnet(TRAINING, "training (TF32)", "a100", 938, False),
    _resnet(TRAINING, "training", "a100", 2470, True),
    _resnet(INFERENCE, "inference", "v100-16gb", 1261, False),
    _resnet(INFERENCE, "inference", "v100-16gb", 3382, True),
    _resnet(INFERENCE, "inference", "t4", 415, False),
    _resnet(INFERENCE, "inference", "t4", 1198, True),
    Run("GPT-2 124M training, 12 x 1,024, bfloat16", "a100-40gb", 0.250, NANOGPT, GPT2.format(compiled=False)),
    Run("GPT-2 124M training, compiled", "a100-40gb", 0.135, NANOGPT, GPT2.format(compiled=True)),
    Run("Llama-2-7B decoding, bfloat16, compiled", "a100", 1 / 104.9, GPT_FAST, LLAMA, 100),
)


def estimated(run: Run) -> dict[str, Any]:
    """Seconds of one step: ``bound_s``, ``about_s``, ``about_low_s``, ``about_high_s``."""
    with tempfile.TemporaryDirectory() as folder:
        script, report = Path(folder, "program.py"), Path(folder, "report.json")
        script.write_text(run.program)
        words = ["--target", run.chip, "--warmup", str(run.warmup), "--steps", "2", "--json", str(report), str(script)]
        subprocess.run([sys.executable, "-m", "mindtorch", "profile", *words], check=True, stdout=subprocess.DEVNULL)
        found = json.loads(report.read_text())
    steps = found["steps"]["count"]
    return {name: found["totals"][name] / steps for name in ("bound_s", "about_s", "about_low_s", "about_high_s")}


def section() -> str:
    """The part of the page."""
    lines = [
        "## Published runs",
        "",
        "What others have published, beside the estimate of a program that does the same. Nothing was fitted to it.",
        "",
        "| run | chip | published | at least | about | interval | error | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    errors = []
    for run in RUNS:
        t = estimated(run)
        errors.append(t["about_s"] / run.seconds - 1)
        low, high = t["about_low_s"] * 1e3, t["about_high_s"] * 1e3
        lines.append(
            f"| {run.what} | {run.chip} | {run.seconds * 1e3:.4g} ms | {t['bound_s'] * 1e3:.4g} ms | "
            f"{t['about_s'] * 1e3:.4g} ms | {low:.4g}–{high:.4g} ms | {errors[-1]:+.1%} | {run.source} |"
        )
    mean = sum(map(abs, errors)) / len(errors)
    return "\n".join([*lines, "", f"Mean error: {mean:.1%}.", ""])


if __name__ == "__main__":
    print(section())
