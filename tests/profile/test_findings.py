"""C2: what stands out in a report is said in a sentence, with its place and a number; what does not, is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from mindtorch.profile import Profiler
from mindtorch.profile.cost import op_time, targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.report import time_findings

Report = dict[str, Any]
_HERE = Path(__file__)


pytestmark = pytest.mark.usefixtures("as_it_was", "idle_machine")


def line_of(text: str, file: Path = _HERE) -> int:
    """The only line of the file that ends so."""
    lines = file.read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {text}")]
    return found


def measured(program: Callable[..., object], *args: Any, **options: Any) -> Report:
    with Profiler(**options) as seen:
        program(*args)
    return seen.report()


def estimated(program: Callable[..., object], *args: Any, target: str = "h100", **options: Any) -> Report:
    with Estimator(target=targets.find(target), **options) as seen:
        program("cuda", *args)
    return seen.report()


def the(report: Report, which: str, text: str = "", module: str | None = None, file: Path = _HERE) -> Report:
    """That finding, whose place is the line of the file that ends with `text`."""
    found = {row["id"]: row for row in report["findings"]}
    assert which in found, list(found)
    row = found[which]
    assert list(row) == ["id", "text", "share", "of", "seconds", "place", "try"]
    assert 0.05 <= row["share"] <= 1 and row["try"]
    if row["of"] == "time":
        assert row["seconds"] == pytest.approx(row["share"] * report["totals"]["time_s"])
    else:
        assert row["of"] == "peak" and row["seconds"] is None
    if text:
        assert Path(row["place"]["file"]) == file and row["place"]["line"] == line_of(text, file)
        assert row["text"].endswith(f" ({file.name}:{line_of(text, file)})")
    assert module is None or row["place"]["module"] == module
    return row


def ids(report: Report) -> set[str]:
    return {row["id"] for row in report["findings"]}


def rows_of(report: Report, **wanted: Any) -> float:
    """Seconds of the report's rows by module, op, phase and line of which this holds."""
    names = report["detail"]["columns"]
    rows = [dict(zip(names, row, strict=True)) for row in report["detail"]["rows"]]
    return sum(row["self_s"] for row in rows if all(test(row[key]) for key, test in wanted.items()))


# ---- one program for each, and the same without its cause


class Slow(Dataset[torch.Tensor]):
    def __init__(self, seconds: float, items: int = 6) -> None:
        self.seconds, self.items = seconds, items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)  # slow data
        return torch.ones(1024)


@torch.no_grad()
def load(seconds: float) -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
    for batch in DataLoader(Slow(seconds), batch_size=3):
        model(batch.repeat(100, 1))


def test_C2_finding_data_wait() -> None:
    report = measured(load, 0.3)
    row = the(report, "data-wait", "slow data")
    assert row["seconds"] == pytest.approx(rows_of(report, phase=lambda phase: phase == "data")) and row["share"] > 0.5
    assert row["seconds"] >= 6 * 0.3 * 0.9
    assert "data-wait" not in ids(measured(load, 0.0))


def test_C2_finding_data_wait_of_short_waits_is_at_the_line_that_makes_batches() -> None:
    """Half of such waits are seen there, the others at the line that asks the loader."""

    def program() -> None:
        for _ in DataLoader(Slow(0.0035, 120), batch_size=8):
            nn.Identity()(torch.ones(1))

    the(measured(program, whole=True), "data-wait", "slow data")


def test_C2_finding_data_wait_says_what_more_there_is_where_workers_work() -> None:
    def program() -> None:
        for _ in DataLoader(Slow(0.2), batch_size=3, num_workers=1):
            nn.Identity()(torch.ones(1))

    with Profiler(whole=True) as seen:
        program()
    assert the(seen.report(), "data-wait")["try"].startswith("more num_workers")


@torch.no_grad()
def crunch(n: int) -> None:
    model = nn.Linear(1024, 1024)
    for _ in range(4):
        model(torch.ones(1024, 1024))
        sum(i * i for i in range(n))  # Python at work


def test_C2_finding_python_line() -> None:
    report = measured(crunch, 3_000_000, warmup=1)
    row = the(report, "python-line", "Python at work")
    (line,) = [each for each in report["lines"] if each["line"] == row["place"]["line"]]
    assert 0.2 <= row["share"] and row["seconds"] == pytest.approx(line["python_s"], rel=0.01)
    assert "python-line" not in ids(measured(crunch, 0, warmup=1))


def go_back() -> None:
    loss = torch.ones((), requires_grad=True)
    for _ in range(300):
        loss = loss * 1.0
    for _ in range(10):
        loss.backward(retain_graph=True)


def step_only() -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(100)]
    optimizer = torch.optim.Adam(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    for _ in range(4):
        optimizer.step()


@pytest.mark.parametrize("program", [go_back, step_only])
def test_C2_no_finding_python_line_where_torch_works_between_operations(
    program: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_findings, "_CALLING", 0)  # as on a machine that is busy with other things
    assert "python-line" not in ids(measured(program))


def hook() -> None:
    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        y = x * 2
        y.register_hook(lambda g: time.sleep(0.1))  # Python within backward
        y.sum().backward()


def test_C2_finding_python_line_of_a_hook() -> None:
    the(measured(hook), "python-line", "Python within backward")


@torch.no_grad()
def begin(seconds: float) -> None:
    model = nn.Linear(512, 512)
    for step in range(4):
        model(torch.ones(512, 512))
        time.sleep(seconds if not step else 0.05)


def test_C2_finding_first_iteration() -> None:
    report = measured(begin, 1.0)
    row, steps = the(report, "first-iteration", module=""), report["steps"]
    assert row["seconds"] == pytest.approx(steps["first_s"] - steps["time_s"]["median"])
    assert row["seconds"] >= 0.5 and f"{steps['first_s'] / steps['time_s']['median']:.1f} ×" in row["text"]
    assert "python-line" not in ids(report), "the same second is told once"
    assert "first-iteration" not in ids(measured(begin, 0.05))
    assert "first-iteration" not in ids(measured(begin, 1.0, warmup=1))


@torch.no_grad()
def many(device: str, size: int) -> None:
    model = nn.Identity()
    x = torch.ones(size, device=device)
    for _ in range(3):
        for _ in range(50):
            x = model(x) + 1  # tiny


def test_C2_finding_host_bound() -> None:
    report = estimated(many, 16)
    row = the(report, "host-bound", "tiny")
    launches = sum(each["self_s"] for each in report["ops"] if each["name"] == "(launch)")
    assert row["seconds"] == pytest.approx(launches) and row["share"] > 0.2 and "launch 15" in row["text"]
    assert "host-bound" not in ids(estimated(many, 1 << 26))


def ask(device: str, reads: bool) -> None:
    model = nn.Linear(4096, 4096, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(4):
            y = model(torch.ones(2048, 4096, device=device, dtype=torch.bfloat16))
            total = 0.0
            for _ in range(16):
                total += float(y[0, 0]) if reads else 0.0  # asks


def test_C2_finding_device_reads() -> None:
    report = estimated(ask, True)
    row = the(report, "device-reads", "asks")
    target = targets.find("h100")
    assert row["seconds"] == pytest.approx(4 * 16 * op_time.HOST_KERNEL * target.launch_s)
    assert "the device 16 × an iteration" in row["text"]
    assert "device-reads" not in ids(estimated(ask, False))


@pytest.mark.parametrize("steps", [1, 40])
def test_C2_reads_before_training_and_after_it_are_not_its_iterations(steps: int) -> None:
    """A dataset that a solver makes first: 297 × an iteration, of a loop that read 2 values."""

    def program(device: str) -> None:
        model = nn.Linear(64, 64, device=device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.ones(8, 64, device=device)
        with torch.no_grad():
            for _ in range(20):
                if float(model(x).sum()) < 0:
                    break
        for _ in range(steps):
            loss = model(x).sum()
            loss.item()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()  # the next iteration's, as far as anybody can tell
        for _ in range(30):
            model(x).sum().item()

    report = estimated(program)
    row = next((row for row in report["findings"] if row["id"] == "device-reads"), None)
    assert report["steps"]["count"] == steps
    if steps > 1:
        assert row is not None and "the device 2 × an iteration" in row["text"]
        launch = op_time.HOST_KERNEL * targets.find("h100").launch_s
        assert row["seconds"] == pytest.approx(steps * 2 * launch)
    else:  # its own, and the last of those before
        assert row is None or "the device 2 × an iteration" in row["text"]


def test_C2_an_iteration_that_reads_less_than_the_next_one_is_counted_as_it_is() -> None:
    """LBFGS reads more from its second step on: 64 × an iteration, of 96 reads in two."""

    def program(device: str) -> None:
        model = nn.Linear(64, 64, device=device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.ones(8, 64, device=device)
        for reads in (5, 15):
            loss = model(x).sum()
            for _ in range(reads):
                loss.item()
            loss.backward()
            optimizer.step()

    row = next(row for row in estimated(program)["findings"] if row["id"] == "device-reads")
    assert "the device 10 × an iteration" in row["text"]
    assert row["seconds"] == pytest.approx(20 * op_time.HOST_KERNEL * targets.find("h100").launch_s)


def test_C4_the_device_does_not_wait_for_kernels_where_ops_run_on_the_host() -> None:
    """The line that made a model with spectral norms, before `.to(device)`, was the one to blame for the waiting."""

    def program(device: str) -> None:
        model = nn.Linear(64, 64, device=device)
        x, here = torch.ones(8, 64, device=device), torch.ones(8)
        for _ in range(3):
            y = model(x)
            for _ in range(60):
                here = here + 1.0  # on the host
            for _ in range(40):
                y = y + 1.0  # launches

    row = next(row for row in estimated(program)["findings"] if row["id"] == "host-bound")
    assert "launches" in row["place"]["source"], row
    assert "launch 123 kernels" in row["text"] and 0.3 < row["share"] < 0.45, row


class Attention(nn.Module):
    def __init__(self, fused: bool | None, size: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.fused, self.heads = fused, size // 64
        self.qkv = nn.Linear(size, 3 * size, device=device, dtype=dtype)
        self.out = nn.Linear(size, size, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        elif self.fused is None:
            y = (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v  # on one line
        else:
            scores = q @ k.transpose(-1, -2) / 8
            y = scores.softmax(-1) @ v  # written out
        return self.out(y.transpose(1, 2).reshape(b, t, d))


def attend(device: str, fused: bool | None, learns: bool, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    model = Attention(fused, shape[-1], device, dtype)
    for _ in range(3):
        with torch.set_grad_enabled(learns):
            y = model(torch.ones(shape, device=device, dtype=dtype))
        if learns:
            y.sum().backward()
            model.zero_grad()


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize(("fused", "place"), [(False, "written out"), (None, "on one line")])
def test_C2_finding_attention_written_out_saves_what_the_fused_one_is_faster(
    fused: bool | None, place: str, learns: bool, dtype: torch.dtype
) -> None:
    torch.set_float32_matmul_precision("high")
    shape = (8, 2048, 1024)
    report, other = (estimated(attend, which, learns, shape, dtype) for which in (fused, True))
    row = the(report, "attention-written-out", place, module="Attention")
    gain = report["totals"]["time_s"] - other["totals"]["time_s"]
    assert row["seconds"] == pytest.approx(gain, rel=0.25)
    assert f"about {100 * row['share']:.0f} %" in row["text"]
    assert "attention-written-out" not in ids(other)


@pytest.mark.parametrize("learns", [False, True])
def test_C2_finding_attention_written_out_where_it_was_measured(learns: bool) -> None:
    shape = (24, 1024, 128)  # a finding of less than 0.05 s is not told: a quick machine takes that for eight
    report = measured(attend, "cpu", False, learns, shape, torch.float32)
    row = the(report, "attention-written-out", "written out", module="Attention")
    softmax = rows_of(report, op=lambda op: "softmax" in op)
    products = rows_of(report, op=lambda op: op in ("aten::bmm", "aten::mm", "aten::addmm"))
    assert softmax <= row["seconds"] <= report["totals"]["time_s"] - products
    other = measured(attend, "cpu", True, learns, shape, torch.float32)
    assert "attention-written-out" not in ids(other)
    (pattern,) = [each for each in other["patterns"] if each["name"] == "attention"]
    assert pattern["attributes"]["form"] == "one call"


def multiply(device: str, dtype: torch.dtype) -> None:
    model = nn.Sequential(*(nn.Linear(2048, 2048, device=device, dtype=dtype) for _ in range(4)))
    with torch.no_grad():
        for _ in range(2):
            model(torch.ones(2048, 2048, device=device, dtype=dtype))  # multiplies


def test_C2_finding_float32_products_says_what_tf32_saves() -> None:
    report = estimated(multiply, torch.float32)
    row = the(report, "float32-products", "multiplies")
    torch.set_float32_matmul_precision("high")
    other = estimated(multiply, torch.float32)
    assert row["seconds"] == pytest.approx(report["totals"]["time_s"] - other["totals"]["time_s"], rel=1e-3)
    assert "float32-products" not in ids(other)
    torch.set_float32_matmul_precision("highest")
    assert "float32-products" not in ids(estimated(multiply, torch.bfloat16))
    assert "float32-products" not in ids(estimated(multiply, torch.float32, target="v100"))  # it has no TF32


def route(device: str) -> None:
    with torch.no_grad():
        for _ in range(2):
            torch.ones(1 << 16, 16, 8, device=device) @ torch.ones(1 << 16, 8, 1, device=device)


def test_C2_no_finding_float32_products_where_products_wait_for_memory() -> None:
    report = estimated(route)
    assert report["roofline"]["memory_s"] > report["roofline"]["compute_s"] and "float32-products" not in ids(report)


class Deep(nn.Module):
    def __init__(self, device: str, again: bool) -> None:
        super().__init__()
        self.again = again
        self.layers = nn.ModuleList(
            nn.Sequential(*(nn.Linear(1024, 1024, device=device), nn.GELU()) * 4) for _ in range(16)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)  # a layer
        return x


def fill(device: str, again: bool) -> None:
    model = Deep(device, again)
    model(torch.ones(50_000, 1024, device=device)).sum().backward()


def test_C2_finding_activations_where_the_card_is_full() -> None:
    report = estimated(fill, False, target="l4")
    row = the(report, "activations", "a layer")
    memory = report["memory"]
    assert row["share"] == memory["categories"]["activations"] / memory["peak_device_bytes"] > 0.5  # as the header says
    assert row["text"].startswith("the program does not fit") and memory["fits"] is False
    assert "activations" not in ids(estimated(fill, True, target="l4"))
    assert "activations" not in ids(estimated(fill, False, target="h100"))


def clear(late: bool) -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for _ in range(3):
        if not late:
            optimizer.zero_grad()
        loss = model(torch.ones(2048, 512)).relu().sum()
        if late:
            optimizer.zero_grad()
        loss.backward()  # makes gradients
        optimizer.step()


def test_C2_finding_kept_gradients_says_what_the_peak_is_lower_without() -> None:
    report, other = measured(clear, True), measured(clear, False)
    row = the(report, "kept-gradients", "makes gradients")
    peaks = [each["totals"]["peak_bytes"] for each in (report, other)]
    assert row["share"] * peaks[0] == pytest.approx(peaks[0] - peaks[1], rel=0.1)
    assert "kept-gradients" not in ids(other)


# ---- those that deserve none


def _trained(device: str, dtype: torch.dtype = torch.float32, steps: int = 4) -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024, device=device, dtype=dtype) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8192 if device == "cuda" else 512, 1024, device=device, dtype=dtype)).sum().backward()
        optimizer.step()


@torch.no_grad()
def _products(device: str) -> None:
    for _ in range(4):
        nn.Linear(2048, 2048)(torch.ones(256, 2048, device=device))


@torch.no_grad()
def _convolved(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
    for _ in range(3):
        model(torch.ones(2, 3, 96, 96, device=device))


@torch.inference_mode()
def _looked_up(device: str) -> None:
    model = nn.Embedding(1000, 512)
    ids = torch.zeros(64, 256, dtype=torch.long, device=device)
    kept = [model(ids) for _ in range(3)]  # else much time goes to giving the memory back
    del kept


@torch.no_grad()
def _loaded(device: str) -> None:
    load(0.0)


NONE = {
    "a trained model": lambda: measured(_trained, "cpu", warmup=1),
    "products": lambda: measured(_products, "cpu", warmup=1),
    "convolutions": lambda: measured(_convolved, "cpu", warmup=1),
    "an embedding": lambda: measured(_looked_up, "cpu", warmup=1),
    "a loader": lambda: measured(_loaded, "cpu", warmup=1),
    "fused attention": lambda: measured(attend, "cpu", True, False, (2, 512, 256), torch.float32, warmup=1),
    "estimated training": lambda: estimated(_trained, torch.bfloat16, warmup=1),
    "estimated attention": lambda: estimated(attend, True, False, (8, 2048, 1024), torch.bfloat16),
    "estimated products": lambda: estimated(multiply, torch.bfloat16),
    "large element-wise": lambda: estimated(many, 1 << 26),
}


@pytest.mark.parametrize("which", NONE)
def test_C2_finding_none_where_there_is_none(which: str) -> None:
    report = NONE[which]()
    assert report["totals"]["ops"] > 0 and report["findings"] == []
