"""SPEC C1, C2, C8 and "Bad input": ``genie profile`` from the command line to the files it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindtorch.cli.main import cli

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 10)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def build():
    return Net()

class Sick(nn.Module):
    def forward(self, x):
        raise KeyError("sick")
"""
TRAIN = (
    NET
    + """
import sys
print("argv", sys.argv[1:])
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
print("trained")
"""
)
FLOPS = 2 * 32 * (64 * 128 + 128 * 10)  # one forward of Net on 32 rows: the two matrix products


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def genie(*args: str):
    return CliRunner().invoke(cli, ["profile", *args], prog_name="genie")


ENTRY = "import sys; sys.argv[0] = 'genie'; from mindtorch.cli.main import entry; entry()"


@pytest.fixture
def shell(forked):
    """The command in a process of its own."""
    return lambda *args: forked("-c", ENTRY, "profile", *args)


def test_C1_training_script_with_its_own_options(here):
    result = genie("--json", "out.json", "train.py", "--lr", "0.1", "--help")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("argv ['--lr', '0.1', '--help']\ntrained\n")
    report = json.loads((here / "out.json").read_text())
    assert report["schema_version"] == 2 and report["mode"] == "measured" and report["device"] == "cpu"
    assert report["command"] == ["train.py", "--lr", "0.1", "--help"]
    assert report["exit_code"] == 0 and report["interrupted"] is False
    assert {"forward", "backward", "optimizer"} <= {row["name"] for row in report["phases"]}
    paths = [row["path"] for row in report["modules"]]
    assert {"Net", "Net.first", "Net.second"} <= set(paths)
    assert report["model"]["params"] == 64 * 128 + 128 + 128 * 10 + 10
    forward = next(row for row in report["phases"] if row["name"] == "forward")
    assert forward["flops"] >= 3 * FLOPS
    text = result.stdout
    for word in ("Phases", "forward", "backward", "optimizer", "Modules", "first", "second", "Ops", "addmm", "Next"):
        assert word in text
    report_lines = text[text.index("genie profile") - 5 :].splitlines()
    assert max(map(len, report_lines)) <= 80 and "\x1b" not in text


def test_C2_nothing_counted_twice(here):
    genie("--json", "out.json", "train.py")
    report = json.loads((here / "out.json").read_text())
    total = report["totals"]["time_s"]
    for table in ("modules", "ops"):
        assert sum(row["self_s"] for row in report[table]) == pytest.approx(total, rel=1e-6, abs=1e-9)
    assert sum(row["time_s"] for row in report["phases"]) == pytest.approx(total, rel=1e-6, abs=1e-9)
    assert sum(row["self_flops"] for row in report["modules"]) == report["totals"]["flops"]
    assert sum(row["flops"] for row in report["ops"]) == report["totals"]["flops"]


def test_C1_model_in_a_file(here):
    result = genie("net.py:build", "--input", "32x64", "--steps", "2", "--warmup", "1", "--json", "out.json")
    assert result.exit_code == 0, result.output
    report = json.loads((here / "out.json").read_text())
    assert report["command"] == ["net.py:build"]
    assert report["totals"]["flops"] >= 2 * FLOPS
    assert next(row for row in report["modules"] if row["path"] == "Net")["calls"] == 2
    assert "backward" not in {row["name"] for row in report["phases"] if row["ops"]}
    assert "--input 32x64" in result.stdout


@pytest.mark.parametrize("by", ["op", "module", "line", "phase"])
def test_C2_by(here, by):
    result = genie("--by", by, "train.py")
    assert result.exit_code == 0
    headings = {"op": "Ops", "module": "Modules", "line": "Lines", "phase": "Phases"}
    for kind, heading in headings.items():
        assert (f"\n{heading}" in result.stdout) is (kind == by)
    if by == "line":
        assert "net(torch.randn(32, 64)).square().mean().backward()" in result.stdout


def test_C2_every_output_at_once(here):
    result = genie("--json", "a.json", "--csv", "a.csv", "--trace", "a.trace.json", "train.py")
    assert result.exit_code == 0, result.output
    json.loads((here / "a.json").read_text())
    trace = json.loads((here / "a.trace.json").read_text())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    assert any("addmm" in event.get("name", "") for event in events)
    assert "," in (here / "a.csv").read_text().splitlines()[0]
    assert not [name for name in os.listdir(here) if name.startswith(".genie-")]


def test_C8_json_on_stdout_is_nothing_but_json(here, shell):
    (here / "noisy.py").write_text(
        "import os, subprocess, torch\nprint('said')\nos.write(1, b'written\\n')\n"
        "subprocess.run(['echo', 'child'])\ntorch.ones(3) + 1\n"
    )
    done = shell("--json", "-", "noisy.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema_version"] == 2
    for word in ("said", "written", "child"):
        assert word in done.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("end", ["sys.stdout.close()", "sys.stdout = None", "os.close(1)"])
def test_C8_a_script_that_closes_stdout(here, forked, end):
    (here / "closes.py").write_text(f"import os, sys, torch\nprint(torch.ones(2).sum().item(), flush=True)\n{end}\n")
    done = forked("-m", "mindtorch.cli.main", "profile", "closes.py")
    plain = forked("closes.py")
    assert done.stdout.startswith("2.0\n") and "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.returncode == plain.returncode or end == "os.close(1)"
    assert "genie profile" in done.stdout or end == "os.close(1)"


def test_C8_script_that_raises(here, shell):
    (here / "bad.py").write_text("import torch\n\ndef f():\n    torch.ones(2, 3) @ torch.ones(2, 3)\n\nf()\n")
    plain = subprocess.run([sys.executable, "bad.py"], capture_output=True, text=True)
    done = shell("bad.py")
    assert done.returncode == plain.returncode == 1
    own = done.stderr.removeprefix(plain.stderr)
    assert done.stdout == "" and done.stderr.startswith(plain.stderr)
    assert own.startswith("genie: bad.py ended with exit code 1 after 2 ops: ") and own.count("\n") == 1


#: How far it comes, and whether there is a report of it.
FAILING = [
    ("net(torch.randn(2, 65))", False),  # a model's very first call
    ("net(torch.randn(2, 64))\nraise ValueError(3)", False),
    ("train()\nraise ValueError(3)", False),
    ("train()\ntrain()\nraise ValueError(3)", True),
    ("net(torch.randn(2, 64))\nsys.exit(3)", True),  # of its own accord
    ("torch.randn(2, 64)\nsys.exit(3)", False),
]


@pytest.mark.parametrize("estimate", [False, True])
@pytest.mark.parametrize(("end", "told"), FAILING)
def test_C8_a_program_that_fails_has_its_traceback_and_two_lines_at_most(here, end, told, estimate):
    (here / "fails.py").write_text(f"""{NET}
import sys
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)

def train():
    net(torch.randn(2, 64)).sum().backward()
    optimizer.step()

{end}
""")
    options = ["--target", "l4"] if estimate else []
    result = genie(*options, "--json", "out.json", "fails.py", "--by", "x")
    own = [line for line in result.stderr.splitlines() if line.startswith("genie: ") and "wrote" not in line]
    assert result.exit_code == (3 if "exit" in end else 1)
    assert ("Phases" in result.stdout) == told and ("genie profile" in result.stdout) == told, result.stdout
    assert 1 <= len(own) <= 2 and "fails.py ended with exit code" in own[0], own
    assert ("after" in own[0] and "too little" in own[0]) != told
    assert ("Error" in result.stderr) == ("exit" not in end)
    assert json.loads((here / "out.json").read_text())["exit_code"] == result.exit_code


@pytest.mark.parametrize(
    ("source", "code", "word"),
    [("import sys; sys.exit(3)", 3, "exit code 3"), ("import sys; sys.exit('no data')", 1, "no data"),
     ("x = = 1", 1, "SyntaxError"), ("\0\0", 1, "null bytes"), ("raise KeyboardInterrupt", 130, "interrupted")],
)  # fmt: skip
def test_C8_exit_code_is_passed_through(here, source, code, word):
    (here / "end.py").write_text(source)
    result = genie("end.py")
    assert result.exit_code == code
    assert word in result.stderr
    assert "mindtorch" not in result.stderr
    assert result.stdout == ""  # a report of nothing helps nobody


@pytest.mark.parametrize(
    ("args", "word"),
    [(["nowhere.py"], "nowhere.py does not exist"), ([], "PROGRAM"), (["."], "directory"),
     (["net.py:missing", "--input", "1x64"], "build"), (["net.py:build"], "forward(x)"),
     (["net.py:build", "--input", "1xx64"], "[NAME=]SHAPE"), (["net.py:build", "--input", "y=1x64"], "forward(x)"),
     (["--input", "1x64", "train.py"], "--input is for a model"), (["--steps", "0", "train.py"], "--steps"),
     (["--json", "no/such/dir/x.json", "train.py"], "no directory"), (["--json", ".", "train.py"], "directory"),
     (["--trace", "train.py", "train.py"], "program to run"),
     (["--json", "x", "--csv", "x", "train.py"], "two outputs"),
     (["--json", "-", "--csv", "-", "train.py"], "two outputs"), (["--top", "0", "train.py"], "--top"),
     (["--nope", "train.py"], "--nope"), (["net.py:build", "extra", "--input", "1x64"], "extra")],
)  # fmt: skip
def test_C8_bad_requests_are_one_line_and_exit_code_2(here, args, word):
    before = sorted(os.listdir(here))
    result = genie(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and word in result.stderr
    assert [name for name in sorted(os.listdir(here)) if name != "__pycache__"] == before


def test_C8_input_that_does_not_fit_the_model(here):
    result = genie("net.py:build", "--input", "3x5", "--json", "out.json")
    assert result.exit_code == 2
    # torch 2.15 says of which operator
    assert re.search("RuntimeError: (addmm: )?mat1 and mat2 shapes cannot be multiplied", result.stderr)
    assert result.stderr.splitlines()[-1] == "genie: net.py:build failed when called with 3x5 (float32)"
    assert not (here / "out.json").exists()


def test_C8_model_that_raises_on_its_own(here):
    result = genie("net.py:Sick", "--input", "1")
    assert result.exit_code == 2 and "KeyError: 'sick'" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_C8_full_disk_behind_stdout_is_one_line(here, forked):
    (here / "one.py").write_text("import torch\ntorch.ones(2) + 1\n")
    ran = forked("-c", "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); " + ENTRY, "profile", "one.py")
    assert ran.returncode == 1 and ran.stderr == "genie: cannot write to standard output: No space left on device\n"


def test_C8_interrupt_still_reports(here):
    (here / "loop.py").write_text(
        "import torch, time\nx = torch.ones(64, 64)\nfor _ in range(50):\n    x = x @ x * 0.01\n"
        "open('running', 'w').close()\nwhile True:\n    time.sleep(0.05)\n    x = x + 1\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", ENTRY, "profile", "--json", "out.json", "loop.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A job that a shell started in the background ignores the signal, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    for _ in range(600):
        if (here / "running").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "interrupted" in stdout and "interrupted" in stderr and "Traceback" not in stderr
    report = json.loads((here / "out.json").read_text())
    assert report["interrupted"] and report["exit_code"] == 130
    assert next(row for row in report["ops"] if row["name"] == "aten::mm")["calls"] >= 50


def test_C8_file_that_only_defines_a_model_gets_a_hint(here):
    result = genie("net.py")
    assert result.exit_code == 0
    assert "genie profile net.py:Net --input" in result.stderr


def test_C8_option_behind_the_script_gets_a_hint(here):
    (here / "strict.py").write_text("import argparse; argparse.ArgumentParser().parse_args()")
    result = genie("strict.py", "--json", "x.json")
    assert result.exit_code == 2
    assert "put genie's options before it" in result.stderr


def test_C8_an_option_that_the_script_has_too_gets_no_hint(here):
    (here / "own.py").write_text(
        "import argparse, torch\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--top')\n"
        "parser.parse_args()\n"
        "for _ in range(3):\n"
        "    torch.ones(2).sum().item()\n"
        "1 / torch.ones(2).sum().sub(2).item()\n"
    )
    result = genie("own.py", "--top", "3")
    assert result.exit_code == 1 and "ZeroDivisionError" in result.stderr
    assert "genie's options" not in result.stderr


def test_C8_a_program_that_fails_for_what_was_assumed_is_told_the_line_that_it_failed_at(here):
    (here / "divides.py").write_text(
        "import torch\nx = torch.randn(2)\nfor _ in range(3):\n    x.mean().item()\n1 / x.argmax().item()\n"
    )
    result = genie("--target", "h100", "divides.py")
    assert result.exit_code == 1 and "ZeroDivisionError" in result.stderr
    assert "an unknown value at " in result.stderr and "divides.py:5, assumed to be 0;" in result.stderr


def test_C8_script_may_change_directory_and_streams(here):
    (here / "sub").mkdir()
    (here / "move.py").write_text(
        "import os, sys, torch\ntorch.ones(2) + 1\nos.chdir('sub')\nsys.stdout = open(os.devnull, 'w')"
    )
    result = genie("--json", "out.json", "move.py")
    os.chdir(here)
    assert result.exit_code == 0, result.output
    assert (here / "out.json").exists() and "genie profile" in result.stdout


def test_C8_closed_pipe_is_not_an_error(here):
    (here / "quiet.py").write_text(NET + "build()(torch.ones(1, 64))")  # one that prints gets the error itself
    command = f'{sys.executable} -c "{ENTRY}" profile quiet.py | head -n 1'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Broken pipe" not in done.stderr


def test_C2_program_on_lazy_tensors_shows_that_and_its_devices(here):
    (here / "lazy.py").write_text(
        "import torch, mindtorch\n"
        "net = torch.nn.Linear(256, 256).to('remote_accelerator:0')\n"
        "with torch.no_grad():\n"
        "    y = net(torch.ones(64, 256).to('remote_accelerator:0'))\n"
        "print(y.sum().item())\n"
    )
    result = genie("--json", "lazy.json", "lazy.py")
    assert result.exit_code == 0, result.output
    assert "remote_accelerator:0" in result.stdout and "ops ran when values were read" in result.stdout
    report = json.loads((here / "lazy.json").read_text())
    linear = next(op for op in report["ops"] if op["name"] == "aten::addmm")
    assert linear["calls"] == 1 and linear["flops"] / linear["self_s"] < 1e13  # the run, not the recording


def test_C2_trace_that_leaves_events_out_says_so(tmp_path, monkeypatch, capsys):
    from types import SimpleNamespace

    from mindtorch.cli.output import OutputFile
    from mindtorch.cli.profile import _write
    from mindtorch.profile.report import trace
    from mindtorch.profile.report.export import FORMATS

    (drawn,) = (each for each in FORMATS if each.name == "trace")

    for dropped in (0, 1234):
        monkeypatch.setattr(trace, "write_trace", lambda recording, path, n=dropped: Path(path).write_text("{}") and n)
        _write(drawn, OutputFile(str(tmp_path / f"{dropped}.json")), {}, SimpleNamespace(recording=lambda: None))
        error = capsys.readouterr().err
        assert error.count("\n") == bool(dropped) and ("leaves out the last 1,234 events" in error) == bool(dropped)
        assert (tmp_path / f"{dropped}.json").read_text() == "{}"


def test_C2_a_larger_peak_before_the_first_iteration_is_said(here):
    (here / "loads.py").write_text(
        "import sys, torch\n"
        "data = torch.ones(int(sys.argv[1]), 1024)\n"
        "data = (data * 2)[:1].clone()\n"
        "net = torch.nn.Linear(1024, 8)\n"
        "for _ in range(2):\n"
        "    net(data).sum().backward()\n"
    )
    for rows, said in ((1024, True), (1, False)):
        result = genie("--json", "out.json", "loads.py", str(rows))
        report = json.loads((here / "out.json").read_text())
        assert (report["startup"]["peak_bytes"] > report["totals"]["peak_bytes"]) == said
        assert ("8.00 MiB earlier, in start-up" in result.output) == said, result.output


def test_C1_what_a_file_does_at_its_top_level_is_not_counted(here):
    (here / "busy.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self, n=8):\n"
        "        super().__init__(n, n)\n"
        "large = Net(64)\n"
        "optimizer = torch.optim.SGD(large.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    large(torch.ones(100, 64)).sum().backward()\n"
        "    optimizer.step()\n"
        "with torch.no_grad():\n"
        "    for _ in range(3):\n"
        "        large(torch.ones(100, 64))\n"
    )
    for more in ([], ["--device", "meta"]):
        result = genie("busy.py:Net", "--input", "2x8", "--steps", "2", *more, "--json", "out.json")
        assert result.exit_code == 0, result.output
        report = json.loads((here / "out.json").read_text())
        assert report["totals"]["macs"] == 2 * 2 * 8 * 8 and report["totals"]["params"] == 8 * 8 + 8
        assert report["steps"]["count"] - report["steps"]["warmup"] == 2
        assert (", median " in result.output) == (not more), "half of the iterations take longer: it is not each"
        assert [row["calls"] for row in report["modules"] if row["path"]] == [2]
        assert report["model"]["params"] == 72 and not any(row["name"] == "backward" for row in report["phases"])


def test_C2_shapes_by_option(here):
    (here / "shapes.py").write_text("import torch\nnet = torch.nn.Linear(64, 3)\nnet(torch.ones(5, 64)).sum()\n")
    result = genie("--shapes", "--json", "out.json", "--trace", "out.trace", "shapes.py")
    assert result.exit_code == 0, result.output
    report = json.loads((here / "out.json").read_text())
    found = next(row for row in report["shapes"] if row["name"] == "aten::addmm")
    assert [shape["shape"] for shape in found["inputs"]] == [[3], [5, 64], [64, 3]] and found["calls"] == 1
    assert found["outputs"] == [{"dtype": "float32", "shape": [5, 3]}] and found["flops"] == 2 * 5 * 64 * 3
    assert "float32[5, 64] float32[64, 3] -> float32[5, 3]" in " ".join(result.stdout.split())
    events = json.loads((here / "out.trace").read_text())["traceEvents"]
    event = next(event for event in events if event["name"] == "aten::addmm")
    assert event["args"]["outputs"] == "float32[5, 3]"
    assert "Shapes" not in genie("shapes.py").stdout
    assert "--shapes is for a measured run" in genie("--shapes", "--device", "meta", "shapes.py").stderr


@pytest.mark.parametrize("options", [[], ["--steps", "1", "--warmup", "1"], ["--target", "h100"], ["--target", "cpu"]])
def test_C2_flame_of_a_run_and_of_an_estimate_sums_to_the_time_in_the_header(here, options):
    result = genie(*options, "--flame", "f.json", "--json", "r.json", "train.py")
    assert result.exit_code == 0 and "genie: wrote f.json" in result.stderr
    flame, report = json.loads(Path("f.json").read_text()), json.loads(Path("r.json").read_text())
    total = round(report["totals"]["time_s"] * 1e9)
    assert total > 0 and [profile["name"] for profile in flame["profiles"]] == ["by module", "by line"]
    assert {sum(profile["weights"]) for profile in flame["profiles"]} == {total}
    assert {profile["endValue"] for profile in flame["profiles"]} == {total}
    assert flame["name"] == "genie profile train.py"
    assert {"Net", "Net.first", "aten::addmm"} <= {frame["name"] for frame in flame["shared"]["frames"]}


def test_C2_flame_is_refused_where_nothing_has_a_time(here):
    result = genie("--device", "meta", "--flame", "f.json", "train.py")
    assert result.exit_code == 2 and not (here / "f.json").exists()
    assert "--flame shows times: add --target NAME, or leave out --device" in result.stderr


def page_data(text: str) -> dict:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', text)
    return json.loads(data)


@pytest.mark.parametrize("options", [[], ["--steps", "1", "--warmup", "1"], ["--target", "h100"], ["--device", "meta"]])
def test_C2_page_of_a_run_and_of_an_estimate_has_the_reports_totals(here, options):
    result = genie(*options, "--html", "p.html", "--json", "r.json", "train.py")
    assert result.exit_code == 0 and "genie: wrote p.html" in result.stderr
    found, report = page_data(Path("p.html").read_text()), json.loads(Path("r.json").read_text())
    assert found["report"]["totals"] == report["totals"] and found["report"]["steps"] == report["steps"]
    for flame in found["flames"].values():
        assert sum(flame["ns"]) == round(report["totals"]["time_s"] * 1e9)
        assert sum(flame["flops"]) == report["totals"]["flops"]
    assert bool(found["shapes"]["rows"]) == (report["mode"] == "measured")
    assert "Shapes" not in result.stdout  # which were not asked for there


def test_C2_page_goes_to_stdout_too(here):
    result = genie("--html", "-", "--device", "meta", "train.py")
    assert result.exit_code == 0 and result.stdout.startswith("<!doctype html>")
    assert page_data(result.stdout)["report"]["command"] == ["train.py"]


def test_C2_page_of_gpt2_is_smaller_than_400_kb(here):
    """All of its modules and operations, with narrow layers, so that it is quick."""
    example = str(Path(__file__).parents[2] / "examples" / "gpt2.py")
    result = genie("--html", "p.html", "--json", "r.json", example, "--width", "48", "--vocab", "500", "--steps", "2")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("r.json").read_text())["totals"]["ops"] > 5000
    assert os.path.getsize("p.html") <= 400_000


@pytest.mark.parametrize("option", ["--flame", "--html"])
def test_C8_flame_and_page_are_refused_before_the_run_where_they_cannot_be_written(here, option):
    for name, why in (("no/f.json", "no directory"), (".", "directory"), ("net.py", "will not replace")):
        result = genie(option, name, "train.py")
        assert result.exit_code == 2 and why in result.stderr and name in result.stderr and not result.stdout
    assert (here / "net.py").read_text() == NET
