"""C2: `mindtorch.profile()`, and what a report says of single calls, iterations and parameters."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

import mindtorch
from mindtorch.profile import Profiler
from mindtorch.profile.estimate.estimator import Estimator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "PROFILE.md"


def test_C2_the_documented_block():
    (example,) = re.findall(r"<!-- example: profile -->\n```python\n(.+?)```", PAGE.read_text(), re.DOTALL)
    out = io.StringIO()
    names = {}
    with redirect_stdout(out):
        exec(example, names)
    text = out.getvalue()
    assert "genie profile" in text and "\nPhases" in text and "Linear" in text and "Next" not in text
    assert "line" in names["p"].show(by="line") and names["p"].report()["totals"]["macs"] == 2 * 32 * 64 * 8
    assert isinstance(names["p"], Profiler)


def test_C2_profile_is_a_public_name_without_importing_more(after_torch):
    program = ("import mindtorch, sys; assert 'mindtorch.profile' not in sys.modules; p = mindtorch.profile\n"
               "from mindtorch.profile import Profiler; assert p is mindtorch.profile and 'profile' in dir(mindtorch)\n"
               "with p(warmup=1) as q: within = str(q)\n"
               "assert 'genie profile' in str(q) and 'genie profile' not in within\n")  # fmt: skip
    after_torch(program)
    with mindtorch.profile() as p, pytest.raises(RuntimeError, match="a block that has ended"):
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


@pytest.mark.parametrize("estimated", [False, True])
def test_C2_what_was_trained_is_trainable_though_it_is_frozen_in_the_end(record, estimated):
    """crnn.pytorch freezes all for the evaluation at the end of each epoch: "trainable: 0" of a model that was trained.
    What was frozen before the first step, and never stepped, is not."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))

    def train():
        net(torch.ones(3, 4)).sum()  # before anything is frozen
        net[0].requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        net.requires_grad_(False)
        net(torch.ones(3, 4))

    if estimated:
        with Estimator() as estimator:
            train()
        report = estimator.report()
    else:
        report, _ = record(train)
    rows = {row["path"]: row["trainable_params"] for row in report["modules"]}
    assert report["totals"]["trainable_params"] == rows["Sequential"] == rows["Sequential.1"] == 4 * 2 + 2
    assert rows["Sequential.0"] == 0


def test_C2_all_of_the_block_is_reported():
    """A script's beginning is construction; a block is what somebody asked for."""
    layer, x = torch.nn.Linear(64, 8), torch.randn(64, 64)
    with mindtorch.profile() as p:
        for _ in range(10):
            x = torch.tanh(x @ x)
        layer(x)
    report = p.report()
    assert report["totals"]["macs"] == 10 * 64**3 + 64 * 64 * 8
    assert report["totals"]["ops"] == 10 * 2 + 2 and report["startup"]["ops"] == 0
    with mindtorch.profile(warmup=1) as p, torch.no_grad():
        for _ in range(3):
            layer(x)
    report = p.report()
    assert report["steps"]["warmup"] == 1 and report["totals"]["macs"] == 2 * 64 * 64 * 8


def test_C3_what_is_computed_before_the_first_module_is_told(record):
    layer, x = torch.nn.Linear(64, 8), torch.randn(64, 64)
    report, _ = record(lambda: layer(torch.tanh(x @ x)))
    assert report["totals"]["macs"] == 64 * 64 * 8 and report["startup"]["macs"] == 64**3
    assert any("262,144 multiply-adds (MACs) ran before the first call" in text for text in report["warnings"])
    report, _ = record(lambda: layer(x + 1))
    assert not any("construction" in text for text in report["warnings"])


def test_C2_a_profile_within_a_profile():
    layer, x = torch.nn.Linear(64, 8), torch.randn(64, 64)
    layer(x)
    with mindtorch.profile() as outer:
        layer(x)
        with mindtorch.profile() as inner:
            layer(x)
        layer(x)
        lazy = torch.ones(4, device="remote_accelerator:0")
        with mindtorch.profile() as of_lazy:
            (lazy * 2).sum().item()
        (lazy * 3).sum().item()
    for profile, calls in ((outer, 3), (inner, 1)):
        report = profile.report()
        assert report["totals"]["macs"] == calls * 64 * 64 * 8
        assert [(row["path"], row["calls"]) for row in report["modules"] if row["calls"]] == [("Linear", calls)]
        assert report["model"]["name"] == "Linear"
        assert sum(row["calls"] for row in report["ops"] if row["name"] == "aten::addmm") == calls
    assert outer.report()["lazy"]["runs"] > of_lazy.report()["lazy"]["runs"] > 0


@pytest.mark.parametrize("asked", [{"by": "bogus"}, {"sort": "bogus"}])
def test_C8_a_table_that_there_is_not_is_refused(asked):
    with mindtorch.profile() as p:
        torch.ones(2) + 1
    with pytest.raises(ValueError, match=r"expected (by|sort)= to be one of .*, got 'bogus'"):
        p.show(**asked)
