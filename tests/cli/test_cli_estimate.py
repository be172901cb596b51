"""C4: ``genie profile --device meta``, ``--target``: an unmodified script, a model or a configuration, without data."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli

LLAMA_405B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16384, "intermediate_size": 53248,
    "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
SCRIPT = """
import sys
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no cuda")
for step in range(3):
    x, y = torch.randn(32, 64, device="cuda"), torch.randint(10, (32,)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if loss.item() > 100:
        print("diverged")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
PLAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.zeros(4, dtype=torch.int64))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""


def genie(*args: str) -> Any:
    return CliRunner().invoke(cli, ["profile", *args], prog_name="genie")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    gc.collect()  # models of one test must not be found alive by the next one's profile
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "plain.py").write_text(PLAIN)
    return tmp_path


def test_C4_a_script_for_cuda_is_estimated_unchanged(here: Path) -> None:
    result = genie("--target", "l4", "--json", "out.json", "train.py")
    assert result.exit_code == 0, result.output
    report = json.loads((here / "out.json").read_text())
    assert "NVIDIA L4 24 GB\n" in result.output and "diverged" not in result.output
    assert report["mode"] == "estimate" and report["device"] == "NVIDIA L4 24 GB" and report["schema_version"] == 2
    facts = report["memory"]
    assert facts["device"] == "cuda:0" and facts["fits"] and facts["devices"] == 1
    assert facts["capacity_bytes"] == 23_650_000_000 and sum(facts["categories"].values()) == facts["peak_bytes"]
    assert facts["categories"]["optimizer state"] >= 2 * facts["categories"]["parameters"]
    [row] = report["assumed"]
    assert (row["op"], row["value"], row["calls"]) == ("item", 1e-12, 3)
    assert row["file"].endswith("train.py") and row["source"] == "if loss.item() > 100:"
    totals, roofline = report["totals"], report["roofline"]
    assert totals["time_s"] == pytest.approx(totals["predicted_s"], rel=1e-6) and totals["time_s"] > 0
    bound = roofline["compute_s"] + roofline["memory_s"] + roofline["launch_s"]
    assert bound == pytest.approx(totals["predicted_s"]) and roofline["target"] == "l4"
    assert sum(row["self_s"] for row in report["ops"]) == pytest.approx(totals["time_s"], abs=1e-9)
    place = f"train.py:{SCRIPT.splitlines().index('    if loss.item() > 100:') + 1}"
    for words in ("fits", "optimizer state", "assumed", place, "genie profile --json profile.json --target l4"):
        assert words in result.output, words
    assert max(map(len, result.output.splitlines())) <= 80


def test_C2_next_commands_run_what_ran(here: Path) -> None:
    """They left out how many iterations, and which change."""
    given = "--steps 2 --warmup 0 --target l4 --assume 0.5 --what-if bf16 --what-if half-batch"
    result = genie(*given.split(), "train.py")
    assert result.exit_code == 0, result.output
    following = " ".join(result.stdout.partition("\nNext")[2].replace("\\\n", " ").split())
    assert following.count("genie profile --") == following.count(f" {given} train.py") >= 2


@pytest.mark.parametrize("made", ["1 / x", "math.log10(1 / x)", "math.log(x)", "x ** -0.5", "1 / (1 - x)"])
@pytest.mark.parametrize("read", ["x.item()", "float(x)", "x.tolist()", "x.cpu().numpy().item()", "x.half().item()"])
def test_C4_an_estimate_goes_on_after_arithmetic_with_what_nobody_knows(here: Path, made: str, read: str) -> None:
    """The peak signal-to-noise ratio of super-resolution ended it: ZeroDivisionError."""
    program = "import math, torch\nx = torch.nn.Linear(2, 1).cuda()(torch.ones(2).cuda()).square().mean().detach()\n"
    (here / "psnr.py").write_text(f"{program}x = {read}\nprint('so', {made} == {made}, f'{{x:.4f}}', int(x))\n")
    result = genie("--target", "l4", "psnr.py")
    assert result.exit_code == 0 and "so True 0.000" in result.output, result.output
    assert genie("--target", "l4", "--assume", "0", "psnr.py").exit_code == (made not in ("1 / (1 - x)",))


def test_C4_what_an_operation_reads_is_no_result_of_it(here: Path) -> None:
    """gpytorch's torch.equal(x1, x2) was told as "equal = 1e-12"."""
    (here / "same.py").write_text(
        "import torch\na = torch.randn(2).cuda()\nprint(torch.equal(a, a * 2), a[0].item())\n"
    )
    result = genie("--target", "l4", "same.py")
    assert "equal reads 1e-12 ×2" in result.output and "item = 1e-12" in result.output


def test_C4_what_the_script_decides_can_be_assumed(here: Path) -> None:
    result = genie("--target", "l4", "--assume", "1000", "train.py")
    assert result.exit_code == 0 and "diverged" in result.output


@pytest.mark.parametrize("read", ["x.item()", "float(x)", "x.tolist()"])
def test_C4_assumed_numbers_are_shown_in_few_digits(here: Path, read: str) -> None:
    """A sum of three of float32's 1e-12 was shown as 2.9999999454696095e-12, a half of one as 5.000000413701855e-13."""
    made = "torch.nn.Linear(3, 3).cuda()(torch.ones(3).cuda()).detach()"
    (here / "sums.py").write_text(
        f"import torch\ny = {made}\nfor x in y.sum(), y.sum() * 0.55, y[0] * 3:\n    {read}\n"
    )
    result = genie("--target", "l4", "sums.py")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "e-12 ×3 sums.py:4" in said and not re.search(r"\d\.\d{5,}", said), result.output


@pytest.mark.parametrize("code", [0, 3])
def test_C4_the_exit_code_is_the_scripts(here: Path, code: int) -> None:
    assert genie("--device", "meta", "train.py", str(code)).exit_code == code


def test_C4_estimated_and_measured_reports_can_be_compared(here: Path) -> None:
    reports = []
    for options in ([], ["--device", "meta"]):
        assert genie(*options, "--json", "out.json", "plain.py").exit_code == 0
        reports.append(json.loads((here / "out.json").read_text()))
    measured, estimated = reports
    assert measured.keys() <= estimated.keys() and [r["mode"] for r in reports] == ["measured", "estimate"]
    calls = [{row["name"]: row["calls"] for row in r["ops"] if not row["name"].startswith("(")} for r in reports]
    assert calls[0] == calls[1]
    for key in ("ops", "flops", "macs", "params", "peak_bytes", "coverage"):
        assert measured["totals"][key] == estimated["totals"][key], key
    trees = [[(row["path"], row["calls"], row["flops"], row["params"]) for row in r["modules"]] for r in reports]
    assert trees[0] == trees[1]


def test_C4_the_405_billion_parameter_model(here: Path) -> None:
    pytest.importorskip("transformers")
    (here / "config.json").write_text(json.dumps(LLAMA_405B))
    result = genie("--target", "h100", "--seq", "2048", "config.json", "--json", "out.json")
    assert result.exit_code == 0, result.output
    report = json.loads((here / "out.json").read_text())
    totals, memory = report["totals"], report["memory"]
    assert totals["params"] == 405_853_388_800 and totals["coverage"] == 1.0 and report["assumed"] == []
    # As torch's FlopCounterMode on meta: 1.688 PFLOP of matrix work, attention in it.
    assert 2 * totals["macs"] == 2 * (405_853_388_800 - 128256 * 16384 - 253 * 16384) * 2048 + 126 * 4 * 2048**2 * 16384
    assert memory["categories"]["parameters"] == 2 * 405_853_388_800
    assert not memory["fits"] and memory["devices"] == 10
    assert 1.69 < totals["bound_s"] < 1.9 < totals["about_low_s"] < totals["time_s"] < 4  # 1.69 PFLOP at 989 TFLOP/s
    assert "does not fit" in result.output and "10 such devices" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "h1000", "plain.py"], "expected one of h100, h200"),
        (["--target", "missing.toml", "plain.py"], "cannot read missing.toml"),
        (["--target", "bad.toml", "plain.py"], "expected a number for memory_bytes"),
        (["--target", "l4", "--trace", "x", "plain.py"], "--trace is for a measured run"),
        (["--target", "l4", "--predict", "l4", "plain.py"], "--predict is for a measured run"),
        (["--assume", "1", "plain.py"], "add --device meta or --target"),
        (["--device", "cuda", "plain.py"], "'cuda' is not 'meta'"),
        (["--target", "l4", "--seq", "8", "plain.py"], "--seq"),
        (["--target", "l4", "--seq", "0", "config.json"], "--seq"),
        (["--target", "l4", "config.json"], "config.json does not exist"),
    ],
)
def test_C4_bad_input(here: Path, arguments: list[str], words: str) -> None:
    (here / "bad.toml").write_text("[mine]\nmemory_bytes = 'much'\n")
    result = genie(*arguments)
    assert result.exit_code == 2 and words in result.output, result.output
    assert "Traceback" not in result.output


def test_C4_a_script_that_needs_real_data_is_told_the_line(here: Path) -> None:
    (here / "data.py").write_text("import torch\nx = torch.randn(10**10)\nprint(x.tolist()[0])\n")
    result = genie("--device", "meta", "data.py")
    assert result.exit_code == 1 and "data.py:3" in result.output and "--assume" in result.output


def test_C4_memory_of_the_host_is_held_against_no_card(here: Path) -> None:
    """ "79 GiB to spare" was said of a card on which nothing was; a terabyte of the host's "did not fit"."""
    (here / "host.py").write_text("import torch\nx = torch.zeros(2 ** 40, dtype=torch.uint8)\ny = x + 1\n")
    result = genie("--target", "h100", "host.py")
    assert result.exit_code == 0, result.output
    assert "peak 2.00 TiB of host memory" in result.output
    assert "to spare" not in result.output and "does not fit" not in result.output
    result = CliRunner().invoke(cli, ["check", "--target", "h100", "host.py"], prog_name="genie")
    assert result.exit_code == 0 and "this is host memory" in result.output
    assert "to spare" in genie("--target", "h100", "train.py").output


def test_C4_what_a_line_read_is_shown_first_and_last(here: Path) -> None:
    """It was said of all reads that they were the first one's."""
    (here / "counts.py").write_text(
        "import torch\nlength = torch.zeros(1).long().cuda()\nfor _ in range(3):\n"
        "    length += (torch.rand(4).cuda() < 0.5).sum()\n    print(int(length), int(torch.rand(1).cuda().long()))\n"
    )
    result = genie("--target", "l4", "counts.py")
    assert "4 0\n8 0\n12 0" in result.output and "int = 4 … 0 ×6  counts.py:5" in result.output
