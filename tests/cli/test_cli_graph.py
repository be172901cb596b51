"""SPEC C6: ``genie graph`` as text, JSON, DOT, SVG and a page."""

from __future__ import annotations

import json
import os
import re
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner

from mindtorch.cli.main import cli

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return torch.relu(self.layer(x))
"""

DEEP = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(Block() for _ in range(16))
    def forward(self, x):
        for block in self.h:
            x = block(x)
        return x
"""
LOOP = """
model = Deep()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(4):
    optimizer.zero_grad()
    (model(torch.ones(3, 4)) + i).sum().backward()
    optimizer.step()
print("done")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "deep.py").write_text(DEEP)
    (tmp_path / "loop.py").write_text(DEEP + LOOP)
    (tmp_path / "use.py").write_text(NET + "\nprint('said')\nNet()(torch.ones(3, 4)).sum().backward()\n")
    return tmp_path


def genie(*args: str):
    return CliRunner().invoke(cli, ["graph", *args], prog_name="genie")


def test_C6_text(here):
    result = genie("net.py:Net", "--input", "3x4")
    assert result.exit_code == 0, result.output
    assert "layer" in result.stdout and "relu" in result.stdout


def test_C6_json(here):
    result = genie("net.py:Net", "--input", "3x4", "--json", "-")
    assert result.exit_code == 0, result.output
    graph = json.loads(result.stdout)
    assert graph["nodes"] and "edges" in graph


def test_C6_dot_to_a_file_and_json_beside_it(here):
    result = genie("--dot", "g.dot", "--json", "g.json", "use.py")
    assert result.exit_code == 0, result.output
    assert (here / "g.dot").read_text().lstrip().startswith("digraph")
    json.loads((here / "g.json").read_text())
    assert result.stdout == "said\n"


@pytest.mark.sample(1)
@pytest.mark.parametrize("device", [(), ("--device", "meta")])
def test_C6_svg_and_html_of_a_training_script(here, device):
    result = genie("--svg", "g.svg", "--html", "g.html", "--json", "g.json", *device, "loop.py")
    assert result.exit_code == 0, result.output
    assert result.stdout == "done\n" and "wrote g.svg" in result.stderr and "wrote g.html" in result.stderr
    root = ElementTree.parse(here / "g.svg").getroot()
    words = [text.text or "" for text in root.iter() if text.tag.endswith("}text")]
    graph = json.loads((here / "g.json").read_text())
    assert words[0] == f"{graph['counts']['ops']:,} ops: feed-forward 16 ×; optimizer update 1 ×"
    assert "initialization: 64 parameters, 128 ops" in words or device
    assert any("h.0 … h.15  16 × Block" in word for word in words) and "iterations" in words
    page = (here / "g.html").read_text()
    assert page.startswith("<!doctype html>\n<!-- genie graph: ") and "<title>genie graph loop.py</title>" in page
    for name in ("g.svg", "g.html"):  # ours: written anew
        assert genie("--svg", "g.svg", "--html", "g.html", "--depth", "0", "loop.py").exit_code == 0, name
    assert "16 × Block" not in (here / "g.svg").read_text()


def test_C6_focus_and_module_in_svg(here):
    deep = ("--input", "3x4", "deep.py:Deep")
    assert genie("--svg", "g.svg", "--focus", "h.7.up", *deep).exit_code == 0
    words = re.findall(r'<text class="name"[^>]*>([^<]*)', (here / "g.svg").read_text())
    assert words[0] == "forward, Deep.h.0 … h.15  16 × Block" and "up  Linear" in words and "down  Linear" not in words
    assert genie("--svg", "-", "--module", "h.7", *deep).stdout.count("left out: ") == 1


@pytest.mark.usefixtures("children_in_forks")
def test_C6_programs_side_by_side(here):
    result = genie("--svg", "g.svg", "--html", "g.html", "--beside", "deep.py:Deep", "--beside", "loop.py --lr 0.1",
                   "net.py:Net", "--input", "3x4")  # fmt: skip
    assert result.exit_code == 0, result.output
    words = re.findall(r'<text class="name"[^>]*>([^<]*)', (here / "g.svg").read_text())
    titles = ["net.py:Net", "deep.py:Deep", "loop.py --lr 0.1"]
    assert [word for word in words if word in titles] == titles and words.count("iterations") == 1
    page = (here / "g.html").read_text()
    assert "<title>genie graph net.py:Net | deep.py:Deep | loop.py --lr 0.1</title>" in page
    assert page.count('"kind":"graph"') == 3


def test_C6_a_program_beside_that_fails_is_one_clear_line(here, capfd):
    (here / "bad.py").write_text("raise RuntimeError('no')\n")
    result = genie("--svg", "g.svg", "--beside", "bad.py", "use.py")
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == "genie: --beside 'bad.py': genie graph ended with exit code 1\n"
    assert "RuntimeError: no" in capfd.readouterr().err and not (here / "g.svg").exists()


def test_C6_networkx_json(here):
    import networkx

    model = ("net.py:Net", "--input", "3x4")
    printed = genie("--format", "networkx-json", *model)
    assert printed.exit_code == 0, printed.output
    assert genie("--format", "networkx-json", "--json", "g.json", *model).exit_code == 0
    assert (here / "g.json").read_text() == printed.stdout
    made = networkx.node_link_graph(json.loads(printed.stdout), edges="edges")
    assert "aten::relu" in [op for _, op in made.nodes.data("op")]
    assert genie("--json", "g.json", *model).exit_code == 0, "ours: written anew"


def test_C6_init_shows_what_makes_parameters(here):
    assert "\ninitialization: 64 parameters, 128 ops\n" in genie("loop.py").stdout
    result = genie("--init", "--dot", "g.dot", "--svg", "g.svg", "loop.py")
    assert result.exit_code == 0, result.output
    assert all("uniform_" in (here / name).read_text() for name in ("g.dot", "g.svg"))
    text = genie("--init", "loop.py").stdout
    assert "uniform_(" in text and "initialization" not in text


def test_C6_script_prints_before_the_graph(here):
    result = genie("use.py")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("said\n")


@pytest.mark.parametrize(
    ("args", "word"),
    [(["nowhere.py"], "does not exist"), (["net.py:nope"], "Net"), (["--dot", ".", "use.py"], "directory"),
     (["net.py:Net", "--input", "x"], "[NAME=]SHAPE"), (["--depth", "-1", "use.py"], "x>=0"),
     (["--steps", "0", "use.py"], "x>=1"), (["--module", "h..0", "use.py"], "not a module path"),
     (["--module", "", "use.py"], "not a module path"), (["--device", "cuda", "use.py"], "meta"),
     (["--beside", "use.py", "use.py"], "--beside is for --svg and --html"),
     (["--svg", "x.svg", "--beside", "nowhere.py", "use.py"], "nowhere.py"),
     (["--svg", "x.svg", "--beside", "'", "use.py"], "No closing quotation"),
     (["--svg", "x.svg", "--beside", "--json g.json use.py", "use.py"], "got another option"),
     (["--format", "csv", "use.py"], "networkx-json"),
     (["--focus", "h", "use.py"], "--focus is for --svg and --html"), (["--focus", "", "use.py"], "not a module path"),
     (["--focus", "layr", "--svg", "x.svg", "net.py:Net", "--input", "3x4"], "'layr'; nearest: Net.layer"),
     (["--module", "nope", "net.py:Net", "--input", "3x4"], "no module matches 'nope'; there are Net, Net.layer")],
)  # fmt: skip
def test_C8_bad_requests(here, args, word):
    before = sorted(os.listdir(here))
    result = genie(*args)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and word in result.stderr
    assert [name for name in sorted(os.listdir(here)) if name != "__pycache__"] == before


def test_C8_script_that_fails_keeps_its_exit_code_and_what_it_recorded(here):
    (here / "bad.py").write_text("import torch\ntorch.ones(2) + 1\nraise SystemExit(4)")
    result = genie("bad.py")
    assert result.exit_code == 4 and "add" in result.stdout


def test_C8_input_that_does_not_fit(here):
    result = genie("net.py:Net", "--input", "3x5")
    assert result.exit_code == 2 and "3x5 (float32)" in result.stderr and result.stdout == ""


@pytest.mark.parametrize("device", [(), ("--device", "meta")])
def test_C6_depth_and_module_in_text_json_and_dot(here, device):
    deep = ("--input", "3x4", *device, "deep.py:Deep")
    text = genie("--depth", "1", *deep).stdout
    (line,) = (line for line in text.splitlines() if "h.0 … h.15" in line)
    assert "×16" in line and "▸" in line and " relu" not in text and "left out: " in text
    result = genie("--depth", "1", "--json", "-", "--dot", "d.dot", *deep)
    graph = json.loads(result.stdout)
    assert [node["module"] for node in graph["nodes"] if node["kind"] == "module"] == [f"Deep.h.{i}" for i in range(16)]
    assert graph["left_out"]["deeper_than"] == 1 and graph["left_out"]["parameters"] == 64
    assert (here / "d.dot").read_text().count("component") == 1
    graph = json.loads(genie("--module", "h.3.*", "--module", "h.4", "--json", "-", *deep).stdout)
    assert graph["left_out"]["modules_but"] == ["h.3.*", "h.4"]
    ran = {node["module"] for node in graph["nodes"] if node["kind"] == "op"}
    assert ran == {"Deep.h.3.up", "Deep.h.3.down", "Deep.h.4", "Deep.h.4.up", "Deep.h.4.down"}


@pytest.mark.parametrize("device", [(), ("--device", "meta")])
def test_C6_steps_end_the_graph_not_the_program(here, device):
    def phases(*options: str) -> tuple[int, list[str]]:
        """How many iterations there are, and the phases of the one that is shown."""
        result = genie(*options, *device, "loop.py")
        assert result.exit_code == 0 and result.stdout.startswith("done\n"), result.output
        found = re.findall(r"^(?:── |├─ |└─ )(forward|backward|optimizer)\b", result.stdout, re.MULTILINE)
        times = re.search(r"^── iterations ─+\n(\d+) × these", result.stdout, re.MULTILINE)
        return int(times[1]) if times else 1, found

    whole = ["forward", "backward", "optimizer"]
    assert phases() == (4, whole)
    for steps in (1, 3, 4):
        assert phases("--steps", str(steps)) == (steps, whole)
    graph = json.loads(genie("--steps", "2", "--json", "-", *device, "loop.py").stdout)
    assert graph["left_out"] == {"after_steps": 2}
    sources = {os.path.basename(node["source"][0]) for node in graph["nodes"] if node.get("source")}
    assert sources == {"loop.py"}, "nothing of the command's own"
    assert "fewer than 9 iterations" in genie("--steps", "9", *device, "loop.py").stderr


def test_C6_steps_of_a_model_are_calls(here):
    assert genie("--steps", "3", "net.py:Net", "--input", "3x4", "--json", "-").stdout.count("aten::addmm") == 3


def test_C6_meta_says_which_values_were_taken_for_what(here):
    (here / "reads.py").write_text(NET + "\nif Net()(torch.ones(3, 4)).sum() > 1: torch.exp(torch.ones(2))\n")
    result = genie("--device", "meta", "reads.py")
    assert result.exit_code == 0 and "unknown values were assumed: " in result.stderr
    assert "reads.py:12" in result.stderr and "exp" not in result.stdout


def test_C6_lazy_modules(here):
    (here / "lazy.py").write_text("from torch import nn\nnet = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2))\n")
    for device in ((), ("--device", "meta")):
        result = genie(*device, "lazy.py:net", "--input", "3x5")
        assert result.exit_code == 0, result.stderr
        assert "addmm(bias" in result.stdout and "t(weight)" in result.stdout and "LazyLinear" not in result.stdout


def test_C6_compiled_functions_are_named_as_left_out(here):
    (here / "fast.py").write_text(NET + "\ntorch.compile(Net(), backend='eager')(torch.ones(3, 4))\n")
    result = genie("fast.py")
    torch._dynamo.reset()
    assert result.exit_code == 0 and "leaves out operations of 1 compiled function" in result.stderr


def test_C3_raw_threads_are_in_the_graph(here):
    (here / "raw.py").write_text(
        "import _thread, torch\nlock = _thread.allocate_lock()\nlock.acquire()\n"
        "_thread.start_new_thread(lambda: (torch.exp(torch.ones(2)), lock.release()), ())\nlock.acquire()\n"
    )
    result = genie("raw.py")
    assert result.exit_code == 0 and " exp(" in result.stdout


@pytest.mark.parametrize("device", [[], ["--device", "meta"]])
def test_L13_why_says_where_a_pattern_is_and_why_not_elsewhere(here, device):
    (here / "why.py").write_text(DEEP + "Deep()(torch.ones(3, 4))\nprint('ran')\n")
    result = CliRunner().invoke(cli, ["graph", *device, "--why", "feed-forward", "--why", "attention", "why.py"])
    assert result.exit_code == 0, result.output
    said = result.stdout.splitlines()
    assert said[0] == "ran" and re.fullmatch(r"feed-forward: \d\d candidates", said[1])
    assert said[2] == "  16 × compared with a reference: same result (activation relu, gated False)"
    assert "aten::addmm, Deep.h.0.down, " in said[3] and said[5:7] == [said[5], "      and 13 more"]
    assert said[-1] == "attention: no candidates"


def test_L13_why_takes_part_of_a_graph_beside_a_file(here):
    (here / "why.py").write_text(DEEP + "Deep()(torch.ones(3, 4))\n")
    result = CliRunner().invoke(
        cli, ["graph", "--why", "feed-forward", "--module", "h.3", "--json", "g.json", "why.py"]
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("feed-forward: 1 candidate\n") and (here / "g.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--why", "atention"], "got 'atention'; did you mean 'attention'?"),
        (["--why", "attention", "--json", "-"], "--why prints to stdout, so the graph needs a file name"),
    ],
)
def test_L13_why_refuses_before_the_program_runs(here, options, words):
    (here / "why.py").write_text("open('ran', 'w')\n")
    result = CliRunner().invoke(cli, ["graph", *options, "why.py"])
    assert result.exit_code == 2 and words in " ".join(result.stderr.replace("│", " ").split())
    assert not (here / "ran").exists()


def test_C8_option_behind_the_script_of_a_graph_gets_a_hint(here):
    (here / "strict.py").write_text("import argparse; argparse.ArgumentParser().parse_args()")
    result = genie("strict.py", "--html", "graph.html")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "genie: --html was given to strict.py; put genie's options before it"
