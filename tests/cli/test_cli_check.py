"""C4: ``genie check``: exit code 0 where an accelerator takes a program, 1 where it does not, and the line."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli

BAD = """
import torch
from torch import nn

def step(model, x):
    return model(x)

try:
    torch.ones(3).cuda() + torch.ones(3)
except RuntimeError:
    print("caught")
step(nn.Linear(8, 2).cuda(), torch.ones(3, 8))
"""
GOOD = """
import sys
import torch
from torch import nn
device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
best = float("inf")
for _ in range(2):
    x, y = torch.randn(32, 64, device=device), torch.randint(10, (32,)).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if loss.item() < best:
        torch.save(model.state_dict(), "best.pt")
model.load_state_dict(torch.load("best.pt"))
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


def genie(*args: str) -> Any:
    return CliRunner().invoke(cli, ["check", *args], prog_name="genie")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    gc.collect()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "good.py").write_text(GOOD)
    return tmp_path


@pytest.mark.parametrize("args", [["--target", "h100", "bad.py"], ["bad.py", "--target", "h100"]])
def test_C4_what_is_refused_is_listed_with_its_line(here: Path, args: list[str]) -> None:
    result = genie(*args)
    assert result.exit_code == 1
    assert f"bad.py:{BAD.splitlines().index('    return model(x)') + 1}: NVIDIA H100" in result.output
    assert "    return model(x)\n" in result.output and "cuda:0 and cpu" in result.output
    assert "caught" in result.output and "Traceback" not in result.output


def test_C4_what_is_taken_is_said_to_be(here: Path) -> None:
    result = genie("--target", "h100", "good.py")
    assert result.exit_code == 0 and "takes all of it" in result.output
    result = genie("--target", "h100", "good.py", "3")
    assert result.exit_code == 0 and "exit code 3" in result.output
    assert not (here / "best.pt").exists()


def test_C4_what_does_not_fit_is_refused(here: Path) -> None:
    (here / "large.py").write_text("import torch\nx = torch.empty(2**40, device='cuda')\n")
    result = genie("--target", "l4", "--json", "large.py")
    [row] = json.loads(result.stdout)["refused"]
    assert result.exit_code == 1
    assert (row["kind"], row["error"], row["line"]) == ("does not fit", "OutOfMemoryError", 2)


def test_C4_what_an_estimate_cannot_tell_is_no_refusal(here: Path) -> None:
    (here / "odd.py").write_text(
        "import torch\ntorch.ones(2**25, device='cuda').tolist() or torch.randn(2**25).tolist()\n"
    )
    result = genie("--target", "h100", "odd.py")
    assert result.exit_code == 2 and "an estimate cannot tell" in result.output


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "mixtral", "vit"])
@pytest.mark.parametrize("train", [[], ["--train"]], ids=["forward", "train"])
def test_C4_no_false_alarm_over_models(here: Path, name: str, train: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
             "num_key_value_heads": 2}  # fmt: skip
    sizes = {"gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4}, "t5": {"d_model": 32, "num_layers": 2, "d_kv": 8}}
    config = transformers.AutoConfig.for_model(name, **sizes.get(name, small))
    kinds = {"bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration", "gpt2": "GPT2LMHeadModel",
             "vit": "ViTForImageClassification"}  # fmt: skip
    config.architectures = [kinds.get(name, f"{name.capitalize()}ForCausalLM")]
    (here / "config.json").write_text(json.dumps(config.to_dict() | {"architectures": config.architectures}))
    result = genie("--target", "h100", *train, "config.json")
    assert result.exit_code == 0, result.output
