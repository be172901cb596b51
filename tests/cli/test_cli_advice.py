"""C4: ``--what-if`` and ``--advise``: a changed program is estimated as if its author had written it so."""

from __future__ import annotations

import gc
import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from mindtorch.cli import advice
from mindtorch.cli.main import cli
from mindtorch.profile.estimate import what_if

pytestmark = pytest.mark.usefixtures("here")

TRAINING = """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from torch.utils.data import DataLoader, TensorDataset

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x):
            return x + self.down(self.up(x).relu())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x):
            for block in self.blocks:
                x = CALL
            return x

    net = Net().cuda()
    optimizer = OPTIMIZER
    for (x,) in DataLoader(TensorDataset(torch.randn(512, 64)), batch_size=BATCH):
        x = x.cuda()
        WITH:
            y = net(x)
        loss = y.float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
AS_IS = {"CALL": "block(x)", "OPTIMIZER": "torch.optim.AdamW(net.parameters())", "BATCH": "512", "WITH": "if True"}
WRITTEN = {
    "half-batch": {"BATCH": "256"},
    "bf16": {"WITH": "with torch.autocast('cuda', torch.bfloat16)"},
    "checkpointing": {"CALL": "checkpoint(block, x, use_reentrant=False)"},
    "fused-optimizer": {"OPTIMIZER": "torch.optim.AdamW(net.parameters(), fused=True)"},
    "adafactor": {"OPTIMIZER": "torch.optim.Adafactor(net.parameters(), lr=1e-3)"},
    "no-grad": {"WITH": "with torch.no_grad()"},
}
INFERENCE = ("no-grad",)
SMALL = """
    [small]
    name = "Small"
    source = "a test"
    memory_bytes = {memory}
    memory_bandwidth = 1e12
    launch_s = 1e-6
    matrix = {{ float32 = 1e13 }}
    vector = {{ float32 = 1e13 }}
"""


def program(name: str, **other: str) -> str:
    text = TRAINING
    for word, value in {**AS_IS, **other}.items():
        text = text.replace(word, value)
    if other.get("WITH") == WRITTEN["no-grad"]["WITH"]:
        text = text.partition("    loss =")[0]
    Path(name).write_text(textwrap.dedent(text))
    return name


def totals(*args: str) -> dict[str, Any]:
    gc.collect()  # models of one run must not be found alive by the next one
    result = CliRunner().invoke(cli, ["profile", "--target", "h100", "--json", "report.json", *args], prog_name="genie")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(Path("report.json").read_text())
    Path("report.json").unlink()
    return found


def test_C4_every_change_has_a_name_and_is_made() -> None:
    assert set(advice.CHANGES) == {*what_if._MAKERS, "half-seq"}
    assert set(WRITTEN) == set(advice.CHANGES) - {"half-seq", "tf32", "expandable-segments"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WRITTEN)
def test_C4_what_if_is_what_its_author_would_have_written(name: str) -> None:
    plain = program("plain.py") if name not in INFERENCE else None
    if plain is None:
        text = Path(program("plain.py")).read_text().partition("    loss =")[0]
        Path(plain := "plain.py").write_text(text)
    found, expected, before = (
        totals("--what-if", name, plain), totals(program("written.py", **WRITTEN[name])), totals(plain),
    )  # fmt: skip
    for key in ("flops", "ops", "peak_bytes"):
        assert found["totals"][key] == expected["totals"][key], key
    assert any(found["totals"][key] != before["totals"][key] for key in ("ops", "peak_bytes"))
    assert any(str(warning).startswith("what if: ") for warning in found["warnings"])


def test_C4_what_if_fused_optimizer_leaves_what_torch_refuses_to_fuse() -> None:
    lines = ["import torch", "weight = torch.ones(64, dtype=torch.complex64, device='cuda', requires_grad=True)",
             "optimizer = torch.optim.AdamW([weight])", "weight.abs().sum().backward()",
             "optimizer.step()"]  # fmt: skip
    Path("waves.py").write_text("\n".join(lines))
    plain, found = totals("waves.py"), totals("--what-if", "fused-optimizer", "waves.py")
    assert found["totals"]["ops"] == plain["totals"]["ops"]
    assert not any("is fused" in str(warning) for warning in found["warnings"])


def test_C4_what_if_tf32_puts_back_what_a_program_said_in_newer_words(
    as_it_was: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # torch has no older word for both together
    with what_if.changed(["tf32"]):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32" and torch.backends.cudnn.conv.fp32_precision == "ieee"


def test_C4_what_if_tf32_takes_what_the_finding_says() -> None:
    """It was set back before anybody looked."""
    lines = ["import torch", "model = torch.nn.Linear(4096, 4096, device='cuda')", "with torch.no_grad():",
             "    model(torch.ones(4096, 4096, device='cuda'))"]  # fmt: skip
    Path("products.py").write_text("\n".join(lines))
    before = torch.get_float32_matmul_precision()
    plain, found = totals("products.py"), totals("--what-if", "tf32", "products.py")
    assert torch.get_float32_matmul_precision() == before and found["roofline"]["tf32"]
    (row,) = [row for row in plain["findings"] if row["id"] == "float32-products"]
    assert row["seconds"] == pytest.approx(plain["totals"]["time_s"] - found["totals"]["time_s"], rel=1e-6) != 0
    assert row["place"]["line"] == 4 and found["findings"] == []
    assert "what if: products in float32 run in TF32" in found["warnings"]


def test_C4_changes_of_a_configuration_and_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:False")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32, "n_head": 2}
    Path("config.json").write_text(json.dumps(config))
    sizes = ["--batch", "4", "--seq", "64"]
    found = totals("--what-if", "half-batch", "--what-if", "half-seq", *sizes, "config.json")["workload"]
    assert (found["batch"], found["seq"]) == (2, 32)
    with what_if.changed(["expandable-segments"]):
        assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:True"
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:False"


@pytest.mark.usefixtures("children_in_forks")
def test_C4_advice_is_computed_for_a_program_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alternative by a process of its own; together where none suffices alone."""
    few = {name: advice.CHANGES[name] for name in ("checkpointing", "half-batch", "no-grad")}
    monkeypatch.setattr(advice, "CHANGES", few)
    Path("small.toml").write_text(textwrap.dedent(SMALL.format(memory=1e6)))
    script = program("plain.py")
    args = ["profile", "--target", "small.toml", "--advise", "--json", "report.json", script]
    result = CliRunner().invoke(cli, args, prog_name="genie")
    assert result.exit_code == 0, result.output
    rows = json.loads(Path("report.json").read_text())["advice"]
    assert [row["changes"] for row in rows] == [["checkpointing"], ["half-batch"], ["checkpointing", "half-batch"]]
    alone = totals("--what-if", "checkpointing", script)["totals"]["peak_bytes"]
    assert rows[2]["peak_bytes"] <= rows[1]["peak_bytes"] and alone > 0  # whole segments: so small, they are equal
    assert all(row["fits"] is False and row["what"] and row["time_s"] > 0 for row in rows)
    shown = result.output[result.output.index("Alternatives") :]
    assert "checkpointing + half-batch" in shown and "checkpointing: torch.utils.checkpoint" in shown


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--advise", "plain.py"], "is for an estimate: add --device meta or --target NAME"),
        (["--what-if", "bf16", "plain.py"], "is for an estimate: add --device meta or --target NAME"),
        (["--target", "h100", "--what-if", "nothing", "plain.py"], "'nothing' is not one of 'bf16'"),
        (["--target", "h100", "--what-if", "half-seq", "plain.py"], "is for a config.json"),
    ],
)
def test_C4_wrong_requests_are_one_line(args: list[str], told: str) -> None:
    program("plain.py")
    result = CliRunner().invoke(cli, ["profile", *args], prog_name="genie")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and told in result.stderr
