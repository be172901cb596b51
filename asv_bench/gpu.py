"""Compares profile, estimate, recording with torch's own figures on a GPU: ``python asv_bench/gpu.py [program ...]``.

For each program: a step's time, the allocator's peak and the memory in use by the driver's count, FLOPs by
FlopCounterMode, ops by torch.profiler; the same figures of the Profiler (and how much longer a step takes under it) and
of the estimate; and whether two steps recorded on ``remote_accelerator`` and run on the GPU have eager's bits. Exits
with 1 if FLOPs differ. ``--device cpu --small`` tries the program itself without a GPU.

torch.profiler also counts what kernels call. Under any dispatch mode, autograd sums gradients into new tensors: ``add``
instead of ``add_``, and more calls of ``detach``. The allocator's peak includes workspaces of cuBLAS and cuDNN, which a
profile does not see; those of cuBLAS are shown.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from accuracy_cpu import Residual, _example
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode

import mindtorch
from mindtorch.profile import Profiler
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator

LAZY = "remote_accelerator:0"
MB = 1e6

Step = Callable[[], Tensor]
Made = tuple[nn.Module, Step]
Make = Callable[[str, bool], Made]  # (device, small)


def _training(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Made:
    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.detach()

    return model, step


def _gpt2(device: str, small: bool, dtype: torch.dtype, train: bool) -> Made:
    example = _example("gpt2")
    model = (example.GPT2(2, 2, 64, 500, 128) if small else example.GPT2()).to(dtype).to(device)
    vocabulary, context = (500, 32) if small else (50257, 512)
    tokens = torch.randint(vocabulary, (1 if small else 8, context)).to(device)
    if train:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        return model, lambda: example.train_step(model, optimizer, tokens)
    return model, lambda: example.generate(model, tokens, 4)


def convnet(device: str, small: bool) -> Made:
    """Training step of a residual network, channels last, float16 or bfloat16 by autocast, gradients scaled."""
    width, size = (8, 16) if small else (64, 128)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
    ).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
    images = torch.randn(4 if small else 64, 3, size, size).to(device).to(memory_format=torch.channels_last)
    classes = torch.randint(10, (len(images),)).to(device)
    kind = device.partition(":")[0]

    def loss() -> Tensor:
        with torch.autocast(kind, torch.bfloat16):
            return F.cross_entropy(model(images), classes)

    return _training(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), loss)


def mlp(device: str, small: bool) -> Made:
    width = 64 if small else 4096
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
    model, x = model.to(device), torch.randn(32 if small else 2048, width).to(device)
    return _training(model, torch.optim.Adam(model.parameters()), lambda: model(x).square().mean())


def _encoder(device: str, small: bool, dropout: float) -> Made:
    width = 32 if small else 512
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True, dtype=torch.bfloat16)
    model = nn.TransformerEncoder(layer, 2 if small else 6, enable_nested_tensor=False).to(device)
    x = torch.randn(2 if small else 16, 16 if small else 256, width, dtype=torch.bfloat16).to(device)
    return _training(model, torch.optim.AdamW(model.parameters()), lambda: model(x).float().square().mean())


def llama(device: str, small: bool) -> Made:
    """32 tokens by transformers' greedy generation, with its cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 64 if small else 1024
    config = LlamaConfig(
        vocab_size=1000 if small else 32000,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2 if small else 12,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval().to(torch.float32 if small else torch.bfloat16).to(device)
    ids = torch.randint(1000, (2, 16)).to(device)
    options = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False, "pad_token_id": 0}
    return model, lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options)


def checkpointed(device: str, small: bool) -> Made:
    width = 32 if small else 1024
    blocks = (
        nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))
        for _ in range(8)
    )
    model = nn.Sequential(*blocks).to(device)
    x = torch.randn(64 if small else 4096, width).to(device).requires_grad_()
    return _training(
        model,
        torch.optim.AdamW(model.parameters()),
        lambda: checkpoint_sequential(model, 4, x, use_reentrant=False).square().mean(),
    )


PROGRAMS: dict[str, Make] = {
    "gpt2 train": lambda device, small: _gpt2(device, small, torch.float32, True),
    "gpt2 train bf16": lambda device, small: _gpt2(device, small, torch.bfloat16, True),
    "gpt2 generate": lambda device, small: _gpt2(device, small, torch.float32, False),
    "gpt2 generate bf16": lambda device, small: _gpt2(device, small, torch.bfloat16, False),
    "convnet": convnet, "mlp": mlp,
    "encoder": lambda device, small: _encoder(device, small, 0.0),
    "encoder dropout": lambda device, small: _encoder(device, small, 0.1),
    "llama": llama, "checkpointed": checkpointed,
}  # fmt: skip


def timed(step: Step, wait: Callable[[], None], runs: int) -> float:
    found = []
    for _ in range(runs):
        wait()
        began = time.perf_counter()
        step()
        wait()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def plain(make: Make, device: str, small: bool, runs: int) -> dict[str, Any]:
    """Torch's own figures of one step, of a model that has made two."""
    cuda = torch.device(device).type == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    _model, step = make(device, small)
    step()
    step()
    found: dict[str, Any] = {"seconds": timed(step, wait, runs)}
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        step()
        wait()
        found["peak"], found["reserved"] = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        free, total = torch.cuda.mem_get_info()
        found["driver"] = total - free
        before = torch.cuda.memory_allocated()
        torch._C._cuda_clearCublasWorkspaces()
        found["workspaces"] = before - torch.cuda.memory_allocated()
    try:
        with FlopCounterMode(display=False) as flops:
            step()
        found["flops"] = flops.get_total_flops()
    except AssertionError:  # of grouped queries, which torch's formula refuses
        found["flops"] = None
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        step()
    found["calls"] = Counter({row.key: row.count for row in prof.key_averages() if row.key.startswith("aten::")})
    return found


def profiled(make: Make, device: str, small: bool, runs: int) -> dict[str, Any]:
    _model, step = make(device, small)
    step()
    step()
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    with Profiler() as profiler:
        profiler.stage("main")
        step()
    with Profiler():
        seconds = timed(step, wait, runs)
    return {**profiler.report(), "seconds": seconds}


def estimated(make: Make, device: str, small: bool, target: str) -> dict[str, Any]:
    with Estimator(target=targets.find(target)) as estimator:
        estimator.stage("init")
        _model, step = make(device, small)
        step()
        step()
        estimator.stage("main")
        step()
    return estimator.report()


def results(make: Make, device: str, small: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model, step = make(device, small)
    torch.manual_seed(1)  # models draw their weights on the host, whatever the device
    outputs = [step().cpu(), step().cpu()]
    return [*outputs, *(t.detach().cpu() for t in (*model.parameters(), *model.buffers()))]


def same_bits(make: Make, device: str, small: bool) -> str:
    """Two steps recorded and run on the device beside eager ones, from the same seed, with deterministic algorithms."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    previous = mindtorch.set_executor(mindtorch.LocalExecutor(device))
    try:
        eager, again, recorded = (results(make, place, small) for place in (device, device, LAZY))
    except (RuntimeError, TypeError) as error:  # what the table is there to show
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    finally:
        mindtorch.set_executor(previous)
        torch.use_deterministic_algorithms(False)
    off = _off(eager, recorded)
    return f"off by {off:.1e}, eager from itself by {_off(eager, again):.1e}" if off else "same bits"


def _off(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(some, others, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="program", help=f"of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--target", default="h200", help="accelerator to estimate (default: h200)")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if unknown := sorted(set(args.programs) - set(PROGRAMS)):
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    wrong = 0
    for name in args.programs or PROGRAMS:
        make = PROGRAMS[name]
        gc.collect()
        torch.manual_seed(0)
        theirs, ours = (measure(make, args.device, args.small, args.runs) for measure in (plain, profiled))
        gpu = args.device if args.device.startswith("cuda") else "cuda:0"
        guess = estimated(make, gpu, args.small, args.target)
        calls = Counter({row["name"]: row["calls"] for row in ours["ops"] if row["name"].startswith("aten::")})
        totals = ours["totals"]
        more = {op: (calls[op], theirs["calls"][op]) for op in calls if calls[op] > theirs["calls"][op]}
        flops = 2 * totals["macs"]  # as FlopCounterMode counts: products alone
        slower, off = ours["seconds"] / theirs["seconds"], guess["totals"]["time_s"] / theirs["seconds"]
        print(f"{name}: {same_bits(make, args.device, args.small)}")
        print(
            f"  step     {theirs['seconds'] * 1e3:.2f} ms, profiled {ours['seconds'] * 1e3:.2f} ms (x{slower:.2f}), "
            f"estimated {guess['totals']['time_s'] * 1e3:.2f} ms (x{off:.2f})"
        )
        counted = "refused by torch" if theirs["flops"] is None else f"{theirs['flops']:,}"
        print(f"  FLOPs    {counted}, profiled {flops:,}, estimated {2 * guess['totals']['macs']:,}")
        print(
            f"  calls    {sum(theirs['calls'].values())} by torch.profiler, profiled {sum(calls.values())}, "
            f"oftener than its (ours, its): {more or 'none'}"
        )
        if "peak" in theirs:
            peaks = (
                theirs["peak"],
                theirs["workspaces"],
                totals["peak_bytes"],
                guess["totals"]["peak_bytes"],
                theirs["reserved"],
                theirs["driver"],
            )
            print(
                "  peak     {:.2f} MB allocated ({:.2f} of it cuBLAS's), profiled {:.2f}, estimated {:.2f}; reserved "
                "{:.2f}, driver {:.2f}".format(*(nbytes / MB for nbytes in peaks))
            )
        # On the CPU FlopCounterMode leaves out attention.
        wrong += "peak" in theirs and theirs["flops"] not in (None, flops)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
