# ruff: noqa: E501
"""How much hosts differ: published decoding that its host limits, beside its estimate: ``python asv_bench/published_hosts.py``.

Each row is one token of a model, batch 1, in eager mode. A host is one machine of one source. What an estimate assumes of
a host (`op_time.HOST_KERNEL`) was fitted to the first one; the doubt (`op_time.HOST_DOUBT`) is made from all but `CHECKS`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import published
from estimates import estimated

LLAMA = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    num_hidden_layers={layers}, hidden_size={hidden}, intermediate_size={inner}, num_attention_heads={heads},
    num_key_value_heads={shared}, vocab_size={words},
)
model = LlamaForCausalLM(config).to("cuda", torch.float16).eval()
model.generate(torch.ones(1, {length}, dtype=torch.long, device="cuda"), max_new_tokens=4, do_sample=False)
"""
GPT2 = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer={layers})).cuda().eval()
model.generate(torch.ones(1, 6, dtype=torch.long, device="cuda"), max_new_tokens=4, do_sample={drawn})
"""
#: layers, hidden, inner, heads, shared, words
LLAMAS = {
    "Llama-2-7B": (32, 4096, 11008, 32, 32, 32000), "Llama-2-13B": (40, 5120, 13824, 40, 40, 32000),
    "Llama-7B": (32, 4096, 11008, 32, 32, 32000), "Llama-3.1-8B": (32, 4096, 14336, 32, 8, 128256),
}  # fmt: skip
QWEN2, H2O, OPTIMUM, BITS, LATENCY, QWEN3 = "Qwen2", "h2oGPT", "optimum", "bitsandbytes", "transformers", "Qwen3"
FASTER, DEPLOY, XSERV = "FasterTransformer", "LMDeploy", "xserv"
SOURCES = """
Qwen2, Qwen3: sources 5 and 6 of the published runs below. h2oGPT: h2oai/h2ogpt, `benchmarks/perf.md`, backend
transformers, 16 bits, one card. optimum: huggingface/optimum, the README of its benchmarks of August 2023, float16.
bitsandbytes: bitsandbytes-foundation/bitsandbytes, the README of its benchmarks, results as of v0.45.0 (transformers 4.46.3,
torch 2.5.1). transformers: its documentation, "Optimizing inference", the example of batched generation. FasterTransformer:
NVIDIA/FasterTransformer, a comment of June 2023 in pull request 611. LMDeploy: InternLM/lmdeploy, issue 210. xserv: the page
"GPT-2 124M baseline" of its documentation, on an RTX 5090, which the package does not know: here an RTX 4090, which is not
the limit either. Only models whose weights stream by in less than three quarters of the published time are here. Lengths of
prompts that a source does not tell are assumed; they change what the device does, not the host.
"""


class Row(NamedTuple):
    """seconds: of a token, as published."""

    source: str
    chip: str
    what: str
    seconds: float
    program: str

    @property
    def host(self) -> str:
        return f"{self.source}, {self.chip}"


def _llama(source: str, chip: str, what: str, seconds: float, length: int) -> Row:
    names = ("layers", "hidden", "inner", "heads", "shared", "words")
    text = LLAMA.format(length=length, **dict(zip(names, LLAMAS[what], strict=True)))
    return Row(source, chip, what, seconds, text)


def _qwen(source: str, chip: str, what: str, seconds: float, *sizes: int, tied: bool = False) -> Row:
    run = published._qwen(what, 1 / seconds, *sizes, tied)  # type: ignore[arg-type]
    return Row(source, chip, what, seconds, run.program)


def _published(source: str, number: int, *names: str) -> list[Row]:
    """Those of the published runs."""
    runs = [run for run in published.RUNS if run.source == number and run.what.startswith(names)]
    return [Row(source, run.chip, run.what.partition(" ")[0], run.seconds, run.program) for run in runs]


ROWS = (
    *_published(QWEN2, published.QWEN, "Qwen2.5-", "Qwen2-"),
    *_published(QWEN3, published.QWEN3, "Qwen3-"),
    _llama(H2O, "a100", "Llama-2-7B", 1 / 32.4529, 1024),
    _llama(H2O, "a100", "Llama-2-13B", 1 / 24.9301, 1024),
    _llama(H2O, "a6000", "Llama-2-7B", 1 / 29.8526, 1024),
    _llama(H2O, "rtx3090", "Llama-2-7B", 1 / 18.0571, 1024),
    _llama(OPTIMUM, "a100", "Llama-2-13B", 36.958e-3, 512),
    _llama(BITS, "h100", "Llama-3.1-8B", 24.4e-3, 64),
    _qwen(BITS, "h100", "Qwen2.5-32B", 50.8e-3, 64, 5120, 27648, 40, 8),
    _qwen(BITS, "t4", "Qwen2.5-3B", 39e-3, 36, 2048, 11008, 16, 2, tied=True),
    Row(LATENCY, "rtx3090", "DistilGPT-2", 1 / 418.3, GPT2.format(layers=6, drawn=True)),
    _llama(H2O, "rtx4090", "Llama-2-7B", 1 / 40.9252, 1024),
    _llama(FASTER, "a100", "Llama-7B", 1 / 34.265, 64),
    _llama(DEPLOY, "a10", "Llama-2-7B", 34e-3, 20),
    Row(XSERV, "rtx4090", "GPT-2", 3.8e-3, GPT2.format(layers=12, drawn=False)),
)
#: Hosts that are not in the interval: estimated after its commit.
CHECKS = ("h2oGPT, rtx4090", "FasterTransformer, a100", "LMDeploy, a10", "xserv, rtx4090")
HEAD = """## Hosts that nobody measured

Where the host is the limit, the time of a program is that of a machine that the estimate knows nothing of. This table
compares published decoding, a token at a time, with its estimate (`asv_bench/published_hosts.py`). *Takes*: the published
time as a share of the estimated one, for each host the geometric mean of its rows. The estimate assumes what was fitted to
the first host. The interval of eight in ten is made from all hosts, each of which counts once.

| host | models | published | about | takes | inside the others' interval |
|---|---|---|---|---|---|
"""


def interval(logs: Sequence[float]) -> tuple[float, float]:
    """Log-errors that a tenth of further hosts is expected below, and above."""
    more = [share * (len(logs) + 1) - 1 for share in (0.1, 0.9)]
    low, high = np.percentile(logs, [min(max(100 * at / (len(logs) - 1), 0), 100) for at in more])
    return float(low), float(high)


def section() -> str:
    """The part of the page."""
    if importlib.util.find_spec("transformers") is None:
        return HEAD + "\nLeft out: transformers is not installed.\n"
    hosts: dict[str, list[tuple[Row, float]]] = {}
    for row in ROWS:
        hosts.setdefault(row.host, []).append((row, estimated(row.chip, row.program)["about_s"]))
        print(row.host, row.what, f"{row.seconds / hosts[row.host][-1][1]:.3f}", flush=True)
    logs = {host: float(np.mean([np.log(row.seconds / about) for row, about in rows])) for host, rows in hosts.items()}
    used = {host: log for host, log in logs.items() if host not in CHECKS}
    lines, within = [], []
    for host, rows in hosts.items():
        low, high = interval([log for other, log in used.items() if other != host])
        inside = low <= logs[host] <= high
        within += [inside] if host in used else []
        published_, about = (
            ", ".join(f"{1e3 * s:.3g}" for s in each)
            for each in ([row.seconds for row, _ in rows], [s for _, s in rows])
        )
        names = ", ".join(row.what for row, _ in rows)
        said = ("yes" if inside else "no") + ("" if host in used else " (not in the interval)")
        lines.append(f"| {host} | {names} | {published_} ms | {about} ms | {np.exp(logs[host]):.0%} | {said} |")
    low, high = (np.exp(end) for end in interval(list(used.values())))
    middle, share = np.exp(np.median(list(used.values()))), np.mean(within)
    fresh = [log for host, log in logs.items() if host not in used]
    inside, off = (
        np.mean(each) for each in ([low <= np.exp(log) <= high for log in fresh], np.abs(np.expm1(-np.array(fresh))))
    )
    lines += [
        "",
        f"The interval of these hosts is {low:.0%} to {high:.0%} of the host's time; their median is {middle:.0%}. Each host",
        f"left out in turn, {share:.0%} are inside the interval of the others. Of the {len(fresh)} hosts that were first estimated after the",
        f"commit of the interval, {inside:.0%} are inside, and the mean error is {off:.1%}.",
    ]
    return HEAD + "\n".join([*lines, SOURCES])


if __name__ == "__main__":
    print(section())
