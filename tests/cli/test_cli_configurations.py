"""C4: configurations and targets that say something that cannot be meant, or cannot be sized, are told so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli
from tests.cli.configured import profile_config

pytestmark = pytest.mark.usefixtures("here")

pytest.importorskip("transformers")
LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
         "intermediate_size": 64, "vocab_size": 99}  # fmt: skip
RESNET = {"model_type": "resnet", "out_features": ["stage4"], "depths": [1, 1, 1, 1], "embedding_size": 8,
          "hidden_sizes": [8, 8, 8, 16]}  # fmt: skip
DETR = {"model_type": "detr", "architectures": ["DetrForObjectDetection"], "encoder_layers": 1, "decoder_layers": 1,
        "d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "use_timm_backbone": False,
        "backbone": None, "backbone_config": RESNET}  # fmt: skip


def profile(config: dict[str, Any], *options: str) -> Any:
    return profile_config(config, "--target", "h100", *options)


def test_C4_a_misspelt_architecture_is_told_of() -> None:
    result = profile(LLAMA | {"architectures": ["LamaForCausalLM"]})
    assert result.exit_code == 0, result.output
    notes = json.loads(Path("out.json").read_text())["warnings"]
    assert any("no LamaForCausalLM" in note and "LlamaForCausalLM" in note for note in notes)
    profile(LLAMA | {"architectures": ["LlamaForCausalLM"]})
    assert not [n for n in json.loads(Path("out.json").read_text())["warnings"] if "architectures" in n]


def test_C4_detection_is_of_images() -> None:
    """It has an encoder and a decoder, and no text: it was called "speech to text"."""
    result = profile(DETR)
    assert result.exit_code == 0, result.output
    assert json.loads(Path("out.json").read_text())["workload"]["kind"] == "vision"


def test_C4_quantization_of_a_part_is_not_ignored() -> None:
    part = {**LLAMA, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    result = profile({**LLAMA, "text_config": part})
    assert result.exit_code == 2 and "text_config.quantization_config" in result.output + result.stderr


def test_C4_weights_on_the_cpu_are_told_of() -> None:
    program = "import torch\ntorch.nn.Linear(1024, 1024, device={!r})(torch.ones(2, 1024, device={!r}))\n"
    for device, told in (("cpu", True), ("cuda", False)):
        Path("program.py").write_text(program.format(device, device))
        arguments = ["profile", "--target", "h100", "--json", f"{device}.json", "program.py"]
        assert CliRunner().invoke(cli, arguments, prog_name="genie").exit_code == 0
        notes = json.loads(Path(f"{device}.json").read_text())["warnings"]
        assert any("4.0 MiB of the model's parameters are on the CPU" in note for note in notes) == told, notes


MOVED = """
import torch
linear = torch.nn.LazyLinear(1024) if {lazy} else torch.nn.Linear(1024, 1024)
if {before}:
    linear(torch.ones(2, 1024))
linear.to({device!r})
for _ in range(3):
    linear(torch.ones(2, 1024, device={device!r}))
linear.cpu()
"""


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_C4_where_weights_are_is_decided_when_they_are_used(before: bool, lazy: bool) -> None:
    """Tried on the CPU, moved, used, and moved back to be saved."""
    for device, told in (("cuda", False), ("cpu", True)):
        Path("program.py").write_text(MOVED.format(before=before, device=device, lazy=lazy))
        arguments = ["profile", "--target", "h100", "--json", f"{device}.json", "program.py"]
        assert CliRunner().invoke(cli, arguments, prog_name="genie").exit_code == 0
        notes = json.loads(Path(f"{device}.json").read_text())["warnings"]
        why = ", as the program puts nothing on the accelerator: times are" if told else ""
        assert any(f"parameters are on the CPU{why}" in note for note in notes) == told, notes


def test_C4_weights_that_would_be_shown_as_nothing_are_not_told_of() -> None:
    Path("program.py").write_text(
        "import torch\ntorch.nn.Linear(8, 8)(torch.ones(2, 8))\ntorch.ones(4, device='cuda')\n"
    )
    arguments = ["profile", "--target", "h100", "--json", "out.json", "program.py"]
    assert CliRunner().invoke(cli, arguments, prog_name="genie").exit_code == 0
    assert not [n for n in json.loads(Path("out.json").read_text())["warnings"] if "are on the CPU" in n]


def test_C4_a_table_of_targets_is_not_called_cpu() -> None:
    """That one is measured: a mixture of both came of it."""
    sheet = 'name = "x"\nmemory_bytes = 1e9\nmemory_bandwidth = 1e12\n'
    rates = "matrix = { bfloat16 = 1e14 }\nvector = { bfloat16 = 1e13 }\n"
    Path("program.py").write_text("import torch\nx = torch.ones(64, 64, device='cuda')\nx @ x\n")
    for table, code in (("cpu", 2), ("mine", 0)):
        Path("target.toml").write_text(f"[{table}]\n{sheet}{rates}")
        result = CliRunner().invoke(cli, ["profile", "--target", "target.toml", "program.py"], prog_name="genie")
        assert result.exit_code == code, result.output + result.stderr


@pytest.mark.parametrize("program", ["torch.nn.Linear(8, 8)(torch.ones(2, 8))", "print(torch.ones(8).sum())", "pass"])
def test_C4_a_program_that_puts_nothing_on_the_accelerator_is_told_so(program: str) -> None:
    """A small model, or none: it was told to fit the accelerator, with times there, and nothing more."""
    for place, told in (("", program != "pass"), ("\ntorch.ones(4, device='cuda')", False)):
        Path("program.py").write_text(f"import torch\n{program}{place}\n")
        arguments = ["profile", "--target", "h100", "--json", f"out{told}.json", "program.py"]
        assert CliRunner().invoke(cli, arguments, prog_name="genie").exit_code == 0
        notes = json.loads(Path(f"out{told}.json").read_text())["warnings"]
        assert any("the program puts nothing on the accelerator" in note for note in notes) == told, notes
        said = CliRunner().invoke(cli, ["check", "--target", "h100", "program.py"], prog_name="genie")
        assert ("the program puts nothing on the accelerator" in said.output) == told, said.output
