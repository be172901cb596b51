"""The first hour on an NPU: what must work there, tried on the device and held against the CPU (SPEC N7, C7).

``genie devices npu --test`` runs each check in a process of its own: a device that has stopped, a crash and a wait that
never ends are then that check's alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["CHECKS", "Skipped", "check", "run"]

_PATIENCE = 300  # seconds for one check: the first call of an operator may compile it


class Skipped(Exception):
    """A check that this machine cannot make, and why."""


def run(index: int) -> Iterator[dict[str, Any]]:
    """Each check on that device, as it ends: its name, "passed", "failed" or "skipped", seconds, what was seen, and of
    a failure the traceback or how the process ended.
    """
    for name in CHECKS:
        command = [sys.executable, "-c", _START, name, str(index)]
        began, row = time.perf_counter(), {"check": name, "result": "failed", "seen": ""}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            row["error"] = f"it did not end in {_PATIENCE} s"
        else:
            said = done.stdout.strip().rpartition("\n")[2]
            if done.returncode == 0 and said.startswith("{"):
                row |= json.loads(said)
            else:
                row["error"] = f"the process ended with exit code {done.returncode}\n{done.stderr[-4000:]}".strip()
        yield {**row, "seconds": time.perf_counter() - began}


_START = "import sys; from mindtorch.npu import selftest; selftest.check(sys.argv[1], int(sys.argv[2]))"


def check(name: str, index: int) -> None:
    """Make one check in this process, and write the result to stdout as a line of JSON."""
    import mindtorch.npu as npu

    row: dict[str, Any] = {"result": "passed"}
    try:
        npu.set_device(index)
        row["seen"] = CHECKS[name](index) or ""
        npu.synchronize(index)
    except Skipped as reason:
        row |= {"result": "skipped", "seen": str(reason)}
    except Exception:  # noqa: BLE001 - not swallowed: it is the result, and shown
        row |= {"result": "failed", "error": traceback.format_exc()}
    sys.stdout.write(f"{json.dumps(row)}\n")


# ---- the device ------------------------------------------------------------------------------------------------------
def _copies(index: int) -> str:
    import torch

    from . import pin_memory

    device, count = f"npu:{index}", 0
    for dtype in (torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool):
        for size in ((), (1,), (7,), (1025,), (3, 5, 7), (1 << 20,)):
            x = torch.randint(0, 2, size).to(dtype)
            _same(x, x.to(device).cpu(), f"{dtype}, {size}")
            count += 1
    x = torch.arange(6000.0).view(60, 100)
    _same(x.t(), x.to(device).t().contiguous().cpu(), "a transposed view")
    _same(x[3:50:7, 9:], x.to(device)[3:50:7, 9:].cpu(), "a strided view")
    pinned = pin_memory(torch.arange(1 << 20))
    there = [pinned.to(device, non_blocking=True) for _ in range(8)]
    for each in there:
        _same(pinned, each.cpu(), "pinned memory, without waiting")
    return f"{count + 10} copies"


def _streams(index: int) -> str:
    import torch

    import mindtorch.npu as npu

    x = torch.ones(1 << 20, device=f"npu:{index}")
    one, other = npu.Stream(index), npu.Stream(index)
    for step in range(20):
        one.wait_stream(npu.current_stream(index))
        with npu.stream(one):
            y = x * 2 + step
        ready = one.record_event()
        other.wait_event(ready)
        with npu.stream(other):
            z = y - step
        npu.current_stream(index).wait_stream(other)
        _same(torch.full((1 << 20,), 2.0), z.cpu(), f"step {step}")
    first, last = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    first.record()
    y = x + 1
    last.record()
    last.synchronize()
    took = first.elapsed_time(last)
    if not (last.query() and took >= 0):
        raise AssertionError(f"expected an event that has ended, at no negative time, got {last.query()}, {took} ms")
    return f"20 rounds on two streams; an addition took {took:.3f} ms between its events"


def _devices(index: int) -> str:
    import torch

    import mindtorch.npu as npu

    count = npu.device_count()
    if count < 2:
        raise Skipped("there is one device")
    other = (index + 1) % count
    x = torch.arange(1 << 20, dtype=torch.float32)
    here, there = npu.Stream(index), npu.Stream(other)
    for step in range(20):
        with npu.stream(here):
            y = x.to(f"npu:{index}") + step
        event = here.record_event()
        there.wait_event(event)
        with npu.stream(there):
            z = y.to(f"npu:{other}") * 2
        there.synchronize()
        _same((x + step) * 2, z.cpu(), f"step {step}, npu:{index} to npu:{other}")
    return f"20 rounds between npu:{index} and npu:{other}"


def _memory(index: int) -> str:
    import torch

    import mindtorch.npu as npu

    free, total = npu.mem_get_info(index)
    before = npu.memory_allocated(index)
    x = torch.zeros(1 << 22, dtype=torch.uint8, device=f"npu:{index}")
    if npu.memory_allocated(index) < before + (1 << 22):
        raise AssertionError(
            f"allocating 4 MiB raised memory_allocated by {npu.memory_allocated(index) - before} bytes"
        )
    try:
        torch.empty(2 * total, dtype=torch.uint8, device=f"npu:{index}")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError(f"an allocation of twice the device's {total} bytes succeeded")
    _same(torch.zeros(1 << 22, dtype=torch.uint8), x.cpu(), "after memory ran out")
    return f"{free} of {total} bytes were free"


def _random(index: int) -> str:
    import torch

    for draw in (torch.rand, torch.randn):
        torch.manual_seed(7)
        expected = draw(1000)
        torch.manual_seed(7)
        _same(expected, draw(1000, device=f"npu:{index}").cpu(), draw.__name__)
    return "a seed gives the CPU's numbers"


def _deterministic(index: int) -> str:
    import torch

    torch.use_deterministic_algorithms(True)
    found = []
    for _ in range(3):
        loss, gradients = _step(_convolutional, index, torch.float32)[:2]
        found.append([loss, *gradients])
    for again in found[1:]:
        for one, other in zip(found[0], again, strict=True):
            _same(one, other, "the same step again")
    return "three runs of a step have the same bits"


# ---- five models beside the CPU --------------------------------------------------------------------------------------
def _perceptron() -> tuple[Any, Any]:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
    return model, lambda model, to: nn.functional.cross_entropy(
        model(to(torch.randn(16, 32))), to(torch.arange(16) % 10)
    )


def _convolutional() -> tuple[Any, Any]:
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip
    return model, lambda model, to: nn.functional.cross_entropy(
        model(to(torch.randn(8, 3, 16, 16))), to(torch.arange(8) % 10)
    )


def _encoder() -> tuple[Any, Any]:
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, lambda model, to: model(to(torch.randn(4, 12, 32))).float().square().mean()


def _decoder() -> tuple[Any, Any]:
    import torch
    from torch import nn

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm, self.head = nn.Embedding(64, 32), nn.LayerNorm(32), nn.Linear(32, 64)
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, tokens: Any) -> Any:
            x = self.table(tokens)
            q, k, v = self.qkv(self.norm(x)).view(*tokens.shape, 3, 4, 8).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.head(x + self.out(y.transpose(1, 2).flatten(2)))

    tokens = torch.arange(48).view(4, 12) * 7 % 64
    return Decoder(), lambda model, to: nn.functional.cross_entropy(
        model(to(tokens)).flatten(0, 1), to(tokens.roll(-1, 1).flatten())
    )


def _recurrent() -> tuple[Any, Any]:
    import torch
    from torch import nn

    return nn.LSTM(16, 24, 2, batch_first=True), lambda model, to: model(to(torch.randn(4, 10, 16)))[0].square().mean()


def _step(make: Callable[[], tuple[Any, Any]], index: int | None, dtype: Any) -> tuple[Any, list[Any], Counter[str]]:
    """Loss and gradients of a training step's second run, on the CPU, and how often each operator was staged."""
    import torch

    from .staging import staged_counts

    device = "cpu" if index is None else f"npu:{index}"
    torch.manual_seed(0)
    model, loss_of = make()
    model = model.to(device, dtype)

    def to(t: Any) -> Any:
        return t.to(device, dtype if t.is_floating_point() else None)

    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    staged: Counter[str] = Counter()
    for _ in range(2):
        torch.manual_seed(1)
        before = Counter(staged_counts)
        optimizer.zero_grad()
        loss = loss_of(model, to)
        loss.backward()
        optimizer.step()
        staged = Counter(staged_counts) - before
    return loss.detach().cpu(), [p.grad.cpu() for p in model.parameters() if p.grad is not None], staged


def _beside_the_cpu(make: Callable[[], tuple[Any, Any]]) -> Callable[[int], str]:
    def check(index: int) -> str:
        import torch

        import mindtorch.npu as npu

        from .chips import multiplies_float32

        single = 1e-3 if multiplies_float32(npu.get_device_name(index)) else 2e-2
        said = []
        # In bfloat16 the CPU's own step of the encoder is 5e-2 from its step in float32: roundings, and AdamW's signs.
        for dtype, most in ((torch.float32, single), (torch.bfloat16, 1e-1)):
            if dtype is torch.bfloat16 and not npu.is_bf16_supported():
                said.append("no bfloat16 on this chip")
                continue
            expected = _step(make, None, dtype)
            found = _step(make, index, dtype)
            off = max(_off([expected[0]], [found[0]]), _off(expected[1], found[1]))
            staged = ", ".join(f"{name} {count} ×" for name, count in found[2].most_common(5)) or "nothing"
            said.append(f"{str(dtype)[6:]}: {off:.1e} off, staged: {staged}")
            if not off <= most:
                raise AssertionError(f"{'; '.join(said)}: expected a difference of at most {most:.0e}")
        return "; ".join(said)

    return check


def _off(expected: list[Any], found: list[Any]) -> float:
    """The largest difference, as a share of the largest number of all: some gradients are 0 but for rounding. Infinite
    where something is no number."""
    if [t.shape for t in expected] != [t.shape for t in found] or not all(t.isfinite().all() for t in found):
        return float("inf")
    apart = max(float((one.float() - other.float()).abs().max()) for one, other in zip(expected, found, strict=True))
    return apart / max(float(t.float().abs().max()) for t in expected)


def _same(expected: Any, found: Any, what: str) -> None:
    import torch

    if expected.dtype != found.dtype or not torch.equal(expected, found):
        raise AssertionError(f"{what}: expected {str(expected)[:300]}, got {str(found)[:300]}")


#: By name, in the order in which they are made.
CHECKS: dict[str, Callable[[int], str]] = {
    "copies": _copies,
    "streams and events": _streams,
    "events across devices": _devices,
    "memory": _memory,
    "random numbers": _random,
    "perceptron": _beside_the_cpu(_perceptron),
    "convolutions": _beside_the_cpu(_convolutional),
    "encoder": _beside_the_cpu(_encoder),
    "decoder": _beside_the_cpu(_decoder),
    "LSTM": _beside_the_cpu(_recurrent),
    "deterministic algorithms": _deterministic,
}
