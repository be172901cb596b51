"""C2: `mindtorch.profile()`, and what a report says of single calls, iterations and parameters."""

import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

import mindtorch
from mindtorch.profile import Profiler

README = Path(__file__).resolve().parents[2] / "README.md"


def test_C2_the_readmes_block():
    (example,) = re.findall(r"<!-- example: profile -->\n```python\n(.+?)```", README.read_text(), re.DOTALL)
    out = io.StringIO()
    names = {}
    with redirect_stdout(out):
        exec(example, names)
    text = out.getvalue()
    assert "genie profile" in text and "\nPhases" in text and "Linear" in text and "Next" not in text
    assert "line" in names["p"].show(by="line") and names["p"].report()["totals"]["macs"] == 2 * 32 * 64 * 8
    assert isinstance(names["p"], Profiler)


def test_C2_profile_is_a_public_name_without_importing_more():
    program = ("import mindtorch, sys; assert 'mindtorch.profile' not in sys.modules; p = mindtorch.profile\n"
               "from mindtorch.profile import Profiler; assert p is mindtorch.profile and 'profile' in dir(mindtorch)\n"
               "with p(warmup=1) as q: within = str(q)\n"
               "assert 'genie profile' in str(q) and 'genie profile' not in within\n")  # fmt: skip
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with mindtorch.profile() as p, pytest.raises(RuntimeError, match="the block to have ended"):
        p.show()


def test_C2_forward_backward_and_single_calls_of_modules(record, Net):
    def program():
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(5):
            net(torch.zeros(3, 5, dtype=torch.int64)).sum().backward()
            optimizer.step()

    report, _ = record(program)
    phases = {row["name"]: row["time_s"] for row in report["phases"]}
    rows = report["modules"]
    tops = [row for row in rows if not row["depth"]]
    assert sum(row["forward_s"] for row in tops) == pytest.approx(phases["forward"])
    assert sum(row["backward_s"] for row in tops) == pytest.approx(phases["backward"])
    for row in rows:
        assert row["forward_s"] + row["backward_s"] <= row["total_s"] * 1.000001
        times = row["call_s"]
        assert (times is None) == (not row["calls"])
        if times:
            assert 0 < times["min"] <= times["median"] <= times["max"]
            assert times["min"] * row["calls"] < 3 * row["forward_s"]
    steps = report["steps"]["time_s"]
    assert 0 < steps["min"] <= steps["median"] <= steps["max"] <= report["totals"]["wall_s"]
    assert 5 * steps["min"] <= report["totals"]["time_s"]


def test_C2_trainable_and_frozen_parameters(record, Net):
    net = Net()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("attn" in name)
    report, _ = record(lambda: net(torch.zeros(3, 5, dtype=torch.int64)))
    trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    rows = {row["path"]: row for row in report["modules"]}
    assert report["totals"]["trainable_params"] == rows["Net"]["trainable_params"] == trained
    assert rows["Net"]["params"] == sum(p.numel() for p in net.parameters()) > trained
    assert rows["Net.embed"]["trainable_params"] == 0 < rows["Net.embed"]["params"]
    assert rows["Net.blocks.0.attn"]["trainable_params"] == rows["Net.blocks.0.attn"]["params"]
    net.requires_grad_(False)

    def thaw():
        net(torch.zeros(3, 5, dtype=torch.int64))
        net.head.requires_grad_(True)  # after the first call

    report, _ = record(thaw)
    assert report["totals"]["trainable_params"] == net.head.weight.numel()
