"""Compares counts of what recording takes with those of the previous commit, without measuring time.

Python calls, operations, bytes and messages are the same on every machine with the same Python and torch, however busy
it is. ``python asv_bench/counts.py`` prints them next to those in ``counts.json`` and fails if one differs; ``--write``
puts them there. `tests/test_counts.py` refuses a change that ``counts.json`` does not state.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import sys
from collections.abc import Callable, Container
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import mindtorch
from mindtorch.engine.execute.values import tape
from mindtorch.engine.remote import speculation
from mindtorch.engine.remote.loopback import LoopbackExecutor
from mindtorch.profile.estimate.estimator import Estimator

KEPT = Path(__file__).with_name("counts.json")
OURS = mindtorch.__path__[0]  # in a checkout's root with `-c`, __file__ is the checkout's, and the rest is not
LAZY = "remote_accelerator:0"


def environment() -> str:
    """What the counts are for: Python calls differ between its releases, and what torch calls between its own."""
    return f"CPython {platform.python_version().rpartition('.')[0]}, torch {torch.__version__.partition('+')[0]}"


def calls(work: Callable[[], object]) -> int:
    """Python functions of mindtorch that it calls, and C functions that these call."""
    count = 0

    def told(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event == "call" or event == "c_call":
            count += frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(told)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


# ---- programs --------------------------------------------------------------------------------------------------------
def chain(n: int) -> Callable[[], torch.Tensor]:
    x, y = torch.rand(10, 10).to(LAZY), torch.rand(10, 10).to(LAZY)

    def work() -> torch.Tensor:
        z = x
        for _ in range(n):
            z = z + y
        return z

    return work


def perceptron() -> Callable[[], torch.Tensor]:
    """A step of AdamW, recorded and not read."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(*layers).to(LAZY)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(3, 8).to(LAZY), torch.tensor([0, 1, 3]).to(LAZY)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def transformer(kind: str) -> Callable[[], Any]:
    """GPT-2 of two layers: a forward pass, eight tokens, or a step of training, recorded."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(LAZY)
    tokens = torch.arange(12).reshape(1, 12).to(LAZY)
    if kind == "training":
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            return loss

        return step
    model.eval()
    if kind == "forward":
        return torch.no_grad()(lambda: model(tokens).logits)
    return lambda: model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)


PROGRAMS: dict[str, Callable[[], Callable[[], Any]]] = {
    "1000 additions": lambda: chain(1000),
    "training of a perceptron": perceptron,
    "GPT-2 forward": lambda: transformer("forward"),
    "GPT-2 generation": lambda: transformer("generation"),
    "GPT-2 training": lambda: transformer("training"),
}


def deep() -> torch.nn.Module:
    """GPT-2 of 24 layers, for an estimate."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=24, n_embd=64, n_head=2, vocab_size=100, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).eval()


ESTIMATE = "estimate of 24 layers"
EVERY = (*PROGRAMS, ESTIMATE)


# ---- counts ----------------------------------------------------------------------------------------------------------
def recorded(make: Callable[[], Callable[[], Any]]) -> dict[str, int]:
    """Of a program that has run five times, once more: operations, reads, calls of Python; bytes that stay with it."""
    work = make()
    for _ in range(5):
        work()
    _read_all()
    mindtorch.reset_stats()
    size = tape.bytes_records
    result = work()
    figures = mindtorch.stats()
    found = {
        "operations": figures["ops_recorded"],
        "reads": figures["segments"],
        "bytes of records": tape.bytes_records - size,
    }
    del result
    _read_all()
    found["calls of Python"] = min(_calls_once(work) for _ in range(4))  # more where garbage was collected in between
    return found


def _calls_once(work: Callable[[], object]) -> int:
    count = calls(work)
    _read_all()
    return count


def _read_all() -> None:
    torch.zeros(1, device=LAZY).add(1).item()
    torch.remote_accelerator.synchronize()
    gc.collect()


def estimated() -> dict[str, int]:
    """Of an estimate: operations, calls of Python; bytes that operations of its report take, to prove what it names."""

    def run() -> Estimator:
        with Estimator() as estimator, torch.no_grad():
            model(input_ids=torch.zeros(1, 1024, dtype=torch.int64), use_cache=False)
        return estimator

    with Estimator():
        model = deep()
    report = run().report()
    done = list[Estimator]()
    found = {"operations": report["totals"]["ops"], "calls of Python": calls(lambda: done.append(run()))}
    found["calls of Python for the report"] = calls(done[0].report)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as ran:
        done[0].report()
    taken = (event.self_cpu_memory_usage for event in ran.events())
    found["bytes taken for the report"] = sum(size for size in taken if size > 0)
    return found


def messages(make: Callable[[], Callable[[], Any]]) -> dict[str, int]:
    """Of a program whose ops run in a worker, and whose result is read: messages sent to it, and those waited for."""
    executor = LoopbackExecutor()
    clock, speculation.clock = speculation.clock, itertools.count().__next__  # each wait takes a second, on any machine
    before = mindtorch.get_executor()
    mindtorch.set_executor(executor)
    try:
        work = make()
        for _ in range(5):
            _read(work())
        executor.sync()
        so_far = dict(executor.stats)
        _read(work())
        executor.sync()  # one more message, which all replies before are counted with
        return {what: executor.stats[what] - so_far[what] - 1 for what in ("messages", "waits")}
    finally:
        speculation.clock = clock
        mindtorch.set_executor(before)


def _read(result: torch.Tensor) -> None:
    result.sum().item()


def counts(only: Container[str] = EVERY) -> dict[str, dict[str, int]]:
    """Program → what is counted → how many."""
    found = {name: {**recorded(make), **messages(make)} for name, make in PROGRAMS.items() if name in only}
    return {**found, ESTIMATE: estimated()} if ESTIMATE in only else found


def differences(old: dict[str, dict[str, int]], new: dict[str, dict[str, int]]) -> list[str]:
    """A sentence for each count that is another."""
    return [
        f"{name}: {what}: {old.get(name, {}).get(what, 'not counted')} before, {found} now"
        for name, kinds in new.items()
        for what, found in kinds.items()
        if not _is_same(what, old.get(name, {}).get(what), found)
    ]


def _is_same(what: str, before: int | None, now: int) -> bool:
    if before is None or not what.startswith("calls of Python"):
        return before == now
    return abs(now - before) * 20 <= before  # classes of other libraries are asked about in an order of their own


def kept() -> dict[str, dict[str, int]] | None:
    """Those of the commit before; None where it has none for this environment."""
    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return found.get(environment())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"put the counts into {KEPT.name}")
    arguments = parser.parse_args()
    new, old = counts(), kept() or {}
    for name, kinds in new.items():
        for what, found in kinds.items():
            before = old.get(name, {}).get(what)
            note = "" if _is_same(what, before, found) else f"   before: {before}"
            print(f"{name:26} {what:24} {found:>9,}{note}")
    if arguments.write:
        everything = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        KEPT.write_text(json.dumps({**everything, environment(): new}, indent=1) + "\n")
    elif differences(old, new):
        raise SystemExit(f"{len(differences(old, new))} counts are others than in {KEPT.name}")


if __name__ == "__main__":
    main()
