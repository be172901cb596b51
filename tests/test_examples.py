"""The examples are plain torch programs: they run without mindtorch, and the tutorial says what they print."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SMALL = ["--layers", "2", "--width", "48", "--vocab", "101", "--seq", "8", "--decode", "3"]
TUTORIAL = (ROOT / "docs" / "TUTORIAL.md").read_text(encoding="utf-8")
#: The tutorial's commands, and the lines that it says they print.
PRINTS = re.findall(r"^```text\n\$ ([^\n]+)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)
SAME = re.findall(r"^genie run .+$", TUTORIAL.partition("<!-- same: ")[2], re.MULTILINE)


Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run(forked: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> Run:
    """Runs a line of the tutorial in a folder with the examples."""
    (tmp_path / "examples").symlink_to(EXAMPLES)

    def line(command: str) -> subprocess.CompletedProcess[str]:
        program, *words = shlex.split(command)
        start = ["-m", "mindtorch"] if program == "genie" else []
        return forked(*start, *words, folder=tmp_path, environment={**os.environ, "COLUMNS": "80"})

    return line


def pattern(line: str) -> str:
    """A line of the tutorial as a regular expression: "…" is anything, and so is how wide a space is."""
    return r"\s*" + ".*".join(r"\s+".join(map(re.escape, part.split(" "))) for part in line.strip().split("…"))


def first_of_each(commands: list[str]) -> list[bool]:
    """Whether a command is the first that does this with that example: what a sample tries."""
    seen = [(shlex.split(command)[:2], re.findall(r"examples/\w+", command)) for command in commands]
    return [each not in seen[:i] for i, each in enumerate(seen)]


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        pytest.param(*each, id=each[0], marks=() if first else pytest.mark.whole)
        for each, first in zip(PRINTS, first_of_each([command for command, _ in PRINTS]))
    ],
)
def test_C1_the_tutorials_commands_print_what_it_says(command: str, lines: str, run: Run) -> None:
    done = run(command)
    assert done.returncode == int("does not have the memory" in lines), done.stderr
    printed = iter((done.stderr + done.stdout).splitlines())
    for line in lines.splitlines():
        assert any(re.match(pattern(line), each) for each in printed), f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", SAME)
def test_C1_examples_print_the_same_on_a_worker(command: str, run: Run) -> None:
    script = shlex.split(command)[-1]
    here, there = run(f"python {script}"), run(command)
    assert here.returncode == there.returncode == 0, here.stderr + there.stderr
    assert here.stdout.count("\n") >= 2 and there.stdout == here.stdout
    assert "none of the program's parameters was ever on" not in there.stderr


def test_C1_the_tutorial_runs_every_example() -> None:
    named = set(re.findall(r"examples/\w+\.py", " ".join([command for command, _ in PRINTS] + SAME)))
    assert len(PRINTS) >= 8 and len(SAME) == 4
    assert {f"examples/{path.name}" for path in EXAMPLES.glob("*.py")} - named == {
        "examples/gpt2.py", "examples/encode.py",  # the README's, and the one with real weights
    }  # fmt: skip


def test_C1_llama_example_trains_on_two_ranks(run: Run) -> None:
    """What the estimate runs is a program that torchrun runs."""
    small = "--layers 2 --width 128 --vocab 256 --seq 32"
    done = run(f"python -m torch.distributed.run --nproc-per-node 2 examples/llama70b.py {small}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Llama: 0.0 B parameters on 2 ranks", "trained one step"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_C1_examples_are_unmodified_torch_programs(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.startswith("mindtorch")]


@pytest.mark.parametrize("training", [True, False])
def test_C1_gpt2_example_runs_with_plain_python(training: bool, run: Run) -> None:
    done = run(shlex.join(["python", "examples/gpt2.py", *SMALL, *([] if training else ["--no-train"])]))
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
