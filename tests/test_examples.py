"""The examples are plain torch programs: they run without mindtorch, and are what they say."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SMALL = ["--layers", "2", "--width", "48", "--vocab", "101", "--seq", "8", "--decode", "3"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_C1_examples_are_unmodified_torch_programs(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.startswith("mindtorch")]


@pytest.mark.parametrize("training", [True, False])
def test_C1_gpt2_example_runs_with_plain_python(training: bool, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "gpt2.py"), *SMALL, *([] if training else ["--no-train"])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 layers" in done.stdout and "generated" in done.stdout
    assert ("trained step 1, loss " in done.stdout) == training


def test_C1_gpt2_example_has_gpt2s_parameters() -> None:
    spec = importlib.util.spec_from_file_location("gpt2_example_shape", EXAMPLES / "gpt2.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.device("meta"):
        model = module.GPT2()
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


def test_C1_gpt2_example_decodes_with_its_cache_as_it_would_without() -> None:
    spec = importlib.util.spec_from_file_location("gpt2_example_cache", EXAMPLES / "gpt2.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.GPT2(layers=2, heads=2, width=32, vocab=101, context=64).eval()
    prompt = torch.randint(101, (1, 6))
    tokens = module.generate(model, prompt, 4)
    with torch.no_grad():
        whole, _ = model(torch.cat((prompt, tokens[:, :-1]), dim=1))
    assert whole[:, 5:].argmax(-1).tolist() == tokens.tolist()
