"""The README and the pages in docs/ are what people paste, so every block of commands or code in them is run here.

A block that cannot be run has an HTML comment above it, ``<!-- not run: why -->``, and is counted.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
import shlex
import textwrap
import xml.etree.ElementTree
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import mindtorch
from mindtorch.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
#: How many blocks of each page are not run here. The README's are the two that install.
NOT_RUN = {
    "README.md": 3,
    "CONTRIBUTING.md": 2,
    "docs/ACCURACY.md": 1,
    "docs/DIFF.md": 1,
    "docs/EXECUTORS.md": 1,
    "docs/PROFILE.md": 1,
    "docs/NPU.md": 2,
    "docs/index.md": 2,
    "docs/CLUSTER.md": 4,
    "docs/CHECKS.md": 11,
}
BLOCK = re.compile(
    r"(?:^<!-- (?P<kind>[a-z ]+): (?P<what>[^\n]+) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)

# What the pages' commands are about: a training script with an option of its own, models that files build, a
# configuration of transformers.
TRAIN = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=parser.parse_args().lr)
for _ in range(3):
    optimizer.zero_grad()
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(16, 8)
        self.h = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    def forward(self, ids):
        x = self.wte(ids)
        for layer in self.h:
            x = layer(x).relu()
        return x

def build():
    return Net()
"""
DICT = """
import torch

class Net(torch.nn.Module):
    def forward(self, batch):
        return batch["ids"].sum() + batch["image"].mean()

def build():
    return Net()
"""
CONFIG = """
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
 "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
"""
VISION = """
{"model_type": "qwen2_vl", "image_token_id": 60, "video_token_id": 61,
 "text_config": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "vocab_size": 64, "rope_parameters": {"rope_type": "default",
                 "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}},
 "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4}}
"""


@dataclass(frozen=True)
class Block:
    page: str
    kind: str  # of the comment above it: command, example, file, not run, prints, same; "" without one
    what: str
    language: str
    text: str

    @property
    def is_run(self) -> bool:
        return self.kind not in ("command", "not run", "prints", "same")

    def commands(self) -> list[str]:
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    found = [
        Block(page, match["kind"] or "", match["what"] or "", match["language"], match["text"])
        for match in BLOCK.finditer(text)
    ]
    assert len(re.findall("^ *```", text, re.M)) == 2 * len(found), "a block without a language, or within a list"
    return found


def command(word: str) -> str:
    (line,) = re.findall(rf"<!-- command: {word} -->\n```sh\n(.+)\n```", README)
    return line


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("profile", "genie profile examples/gpt2.py"),
        ("test", "pytest -n 2 --dist worksteal"),
    ],
)
def test_layout_readme_commands_are_one_line_from_nothing(word: str, end: str) -> None:
    line = command(word)
    assert line.startswith("python3 -m venv .venv && . .venv/bin/activate && pip install -c constraints.txt ")
    assert line.endswith(f" && {end}")


def test_layout_ci_runs_the_readmes_test_command() -> None:
    assert "<!-- command: test -->" in (ROOT / ".ci" / "run").read_text()


def test_layout_the_readme_is_for_newcomers() -> None:
    assert len(README.splitlines()) <= 120
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert {page for page in pages if f"]({page})" not in README} == set(), "pages that the README does not lead to"


def test_layout_blocks_that_are_not_run_say_why(pytestconfig: pytest.Config) -> None:
    left_out = [b for page in PAGES for b in blocks(page) if not b.is_run and b.kind not in ("prints", "same")]
    assert {page: sum(block.page == page for block in left_out) for page in PAGES} == dict.fromkeys(PAGES, 0) | NOT_RUN
    assert all(block.kind == "not run" or block.page == "README.md" for block in left_out)
    for words in (shlex.split(line, comments=True) for block in left_out for line in block.commands()):
        options = words[words.index("pytest") :] if "pytest" in words else []
        for option in options:
            if option.startswith("--"):
                pytestconfig.getoption(option.partition("=")[0])  # ValueError: pytest has no such option


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pages' commands run: the files that they name."""
    files = {"train.py": TRAIN, "model.py": MODEL, "dict.py": DICT, "config.json": CONFIG,
             "qwen2_vl.json": VISION, "pkg/__main__.py": TRAIN, "pkg/train.py": TRAIN}  # fmt: skip
    files |= {block.what: block.text for page in PAGES for block in blocks(page) if block.kind == "file"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


#: A minute of commands whose options the tests of the command have, too.
LONG = "docs/ESTIMATE.md"
WITH_COMMANDS = [page for page in PAGES if any(block.is_run and block.language == "sh" for block in blocks(page))]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.whole if page == LONG else ()) for page in WITH_COMMANDS]
)
def test_layout_every_command_runs(page: str, folder: Path) -> None:
    for line in (
        line for block in blocks(page) if block.is_run and block.language == "sh" for line in block.commands()
    ):
        genie, *words = shlex.split(line, comments=True)
        assert genie == "genie", f"a command that this test cannot run, and that does not say so: {line}"
        done = CliRunner().invoke(cli, words, prog_name="genie")
        expected = {0, *map(int, re.findall(r"exit code (\d+)", line.partition("#")[2]))}
        assert done.exit_code in expected and done.output, f"{line}\n{done.output}\n{done.exception!r}"
        for name in (words[i + 1] for i, word in enumerate(words) if word in ("--json", "--csv", "--trace", "--dot")):
            assert (folder / name).stat().st_size, line


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language in ("python", "pycon") for b in blocks(page))]
)
def test_layout_every_piece_of_python_runs(page: str, request: pytest.FixtureRequest) -> None:
    """The blocks of a page in one namespace, as somebody types them; what they are said to show is what they show."""
    names: dict[str, object] = {"__name__": "page"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    executor = mindtorch.get_executor()
    request.addfinalizer(lambda: mindtorch.get_executor() is executor or mindtorch.set_executor(executor))
    for block in blocks(page):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(block.text, names)
        elif block.language == "pycon":
            test = doctest.DocTestParser().get_doctest(block.text, names, page, page, 0)
            out = io.StringIO()
            assert test.examples and not runner.run(test, out=out.write, clear_globs=False).failed, out.getvalue()
            names = test.globs


def test_layout_no_block_is_of_a_kind_that_nothing_runs() -> None:
    for block in (block for page in PAGES for block in blocks(page)):
        assert block.kind in ("", "command", "example", "file", "not run", "prints", "same"), block
        # A workflow's steps, which tests/cli/test_cli_diff.py runs; the tutorial, which test_examples.py runs.
        others = {("toml", "file"), ("yaml", "example"), ("text", "prints")}
        assert block.language in ("sh", "python", "pycon") or (block.language, block.kind) in others, block


@pytest.fixture(scope="module")
def make_picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_picture", ROOT / "docs" / "make_picture.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(svg: str) -> list[str]:
    """The text in a picture, line by line, without empty lines and the spaces at their ends."""
    lines: dict[float, str] = {}
    for element in xml.etree.ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        y, column = float(element.attrib["y"]), round(float(element.attrib["x"]) / 12.2)  # a character is 12.2 wide
        lines[y] = lines.get(y, "").ljust(column) + (element.text or "").replace("\xa0", " ")
    return [line for y in sorted(lines) if (line := lines[y].rstrip())]


def heads(lines: list[str]) -> list[str]:
    """A report's headings and heads of columns: what is the same whatever was measured, if the report's form is."""
    words = {"Phases", "phase", "Memory", "kind", "Modules", "module", "Ops", "op", "Next"}
    return [line for line in lines if line.split()[:1] and line.split()[0] in words and not re.search(r"\d", line)]


@pytest.mark.whole
def test_layout_the_picture_is_what_the_first_command_prints(make_picture: ModuleType) -> None:
    assert command("profile").endswith(f" && {make_picture.COMMAND}")
    printed = make_picture.terminal_output(make_picture.COMMAND)
    plain = [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", printed).splitlines()]
    drawn = lines_of(make_picture.picture(make_picture.COMMAND, printed))
    assert drawn == [f"$ {make_picture.COMMAND}", *(line for line in plain if line)]
    kept = lines_of(make_picture.PICTURE.read_text(encoding="utf-8"))
    assert len(heads(drawn)) == 9
    assert heads(kept) == heads(drawn), "the report has changed: python docs/make_picture.py"


def test_layout_the_picture_loads_nothing(make_picture: ModuleType) -> None:
    svg = make_picture.PICTURE.read_text(encoding="utf-8")
    assert "url(#" in svg and "url(" not in svg.replace("url(#", "")
    assert not re.search(r"href|src|@import|@font-face|<image|<script", svg)
    assert re.findall(r"\w+://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]  # the name of the format


def test_L11_every_environment_variable_is_in_the_table() -> None:
    sources = [ROOT / "setup.py"]
    for folder in ("mindtorch", "cli", "_ext"):
        sources += [path for suffix in ("py", "pyx") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    used = {name for path in sources for name in re.findall(r"\bGENIE_[A-Z_]+\b", path.read_text())}
    table = (ROOT / "docs" / "ENVIRONMENT.md").read_text()
    documented = set(re.findall(r"^\| `(GENIE_[A-Z_]+)` \|", table, re.MULTILINE))
    assert documented - used == set(), "the table promises what nothing reads"
    assert used - documented == set(), "missing from the table"
