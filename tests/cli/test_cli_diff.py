"""SPEC C5: ``genie diff`` from the command line: reports, revisions, conditions, and what it leaves behind."""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mindtorch import load_report
from mindtorch.base.errors import UsageError
from mindtorch.cli.main import cli
from mindtorch.cli.revisions import both

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 100)
        self.second = nn.Linear(100, 10)
    def forward(self, x):
        return self.second(self.first(x))
"""
TRAIN = """
import torch
from model import Net

net = Net()
net(torch.randn(8, 64)).sum().backward()
print("trained")
"""
WIDER = MODEL.replace("100", "101")
GENIE = "import sys; sys.argv[0] = 'genie'; from mindtorch.cli.main import entry; entry()"


def genie(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), prog_name="genie")


def git(*words: str, cwd: Path | None = None) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(["git", *words], cwd=cwd, env={**os.environ, **identity}, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with before.json and after.json, of which the model is one percent wider."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("before", MODEL), ("after", WIDER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text(text)
        done = genie("profile", "--json", f"{name}.json", "--steps", "5", f"{name}/net.py:Net", "--input", "8x64")
        assert not done.exit_code, done.output
    return tmp_path


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with a training script in a folder, whose model was made wider after the last commit."""
    top = tmp_path / "project"
    (top / "training").mkdir(parents=True)
    (top / "training" / "model.py").write_text(MODEL)
    (top / "training" / "train.py").write_text(TRAIN)
    (top / ".gitignore").write_text("__pycache__/\n")
    git("init", "-q", "-b", "main", cwd=top)
    git("add", "-A", cwd=top)
    git("commit", "-qm", "first", cwd=top)
    (top / "training" / "model.py").write_text(WIDER)
    monkeypatch.chdir(top / "training")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    return top


def is_clean(top: Path) -> bool:
    """Whether there is no other working tree, nor anything of one."""
    left = [each for each in (top.parent / "temporary").iterdir() if each.name.startswith("genie-diff")]
    return git("worktree", "list", cwd=top).count("\n") == 1 and not left and not (top / ".git" / "worktrees").exists()


# ------------------------------------------------------------------------------------------------------------- reports


def test_C5_two_reports_side_by_side(reports: Path) -> None:
    done = genie("diff", "before.json", "after.json")
    assert done.exit_code == 0, done.output
    assert re.search(r"^FLOPs +\S+ k +\S+ k +\+\S+ k? +1\.01\d*×$", done.stdout, re.M), done.stdout
    assert re.search(r"^addmm, forward, Net\.first, after/net\.py:10$", done.stdout, re.M)
    assert "    return self.second(self.first(x))" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_C5_a_report_and_itself(reports: Path) -> None:
    done = genie("diff", "--fail-if", "ops>+0", "--fail-if", "peak>+0%", "before.json", "before.json")
    assert done.exit_code == 0 and "no op, FLOP, byte or parameter differs" in done.stdout
    assert "Rows" not in done.stdout and "Modules" not in done.stdout


def test_C5_exit_code_1_where_a_condition_holds_and_one_line_that_says_where(reports: Path) -> None:
    done = genie("diff", "before.json", "after.json", "--fail-if", "flops>+2%", "--fail-if", "flops>+0.5%",
                 "--fail-if", "params>+10")  # fmt: skip
    assert done.exit_code == 1
    flops, params = done.stderr.splitlines()
    assert re.fullmatch(
        r"genie: flops>\+0\.5% holds: FLOPs \S+ k → \S+ k \(\+1\.00 %\); "
        r"most in Net\.first \(\+5\.12 k\); there addmm, forward, after/net\.py:10 \(\+5\.12 k\)", flops,
    ), flops  # fmt: skip
    assert params.startswith("genie: params>+10 holds: parameters 7.51 k → ") and "most in Net.first (+65)" in params


def test_C5_json_has_every_number(reports: Path) -> None:
    done = genie("diff", "--json", "-", "--fail-if", "flops>+0.5%", "before.json", "after.json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1 and found["schema_version"] == 1 and found["diff"] == ["before.json", "after.json"]
    assert found["totals"]["params"] == {"before": 7510, "after": 7585, "difference": 75, "ratio": 7585 / 7510}
    assert len(found["failed"]) == 1 and {row["module"] for row in found["rows"]} == {"Net.first", "Net.second"}
    assert not genie("diff", "--json", "diff.json", "before.json", "after.json").exit_code
    assert json.loads((reports / "diff.json").read_text())["totals"] == found["totals"]
    assert not genie("diff", "--json", "diff.json", "before.json", "after.json").exit_code, "ours: it may be replaced"


def test_C5_markdown_for_the_summary_of_a_job(reports: Path) -> None:
    done = genie("diff", "--markdown", "-", "--fail-if", "flops>+0.5%", "before.json", "after.json")
    lines = done.stdout.splitlines()
    assert done.exit_code == 1 and lines[0].startswith("**genie diff** `before.json` → `after.json`: ")
    assert [line for line in lines if line.startswith("- :x: flops")]
    rows = [line for line in lines if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 2, "tables of six and of seven columns"
    assert any(re.match(r"\| addmm, forward, Net\.first, after/net\.py:10 \| FLOPs \| ", line) for line in rows)
    assert done.stdout.count("<details>") == done.stdout.count("</details>") > 0
    assert not genie("diff", "--markdown", "summary.md", "before.json", "after.json").exit_code
    assert not genie("diff", "--markdown", "summary.md", "before.json", "after.json").exit_code, "ours"


def test_C5_names_cannot_break_a_table(reports: Path) -> None:
    report = json.loads((reports / "after.json").read_text())
    for row in report["detail"]["rows"]:
        row[1] = row[1].replace("aten::addmm", "a|b`<script>")
    (reports / "odd.json").write_text(json.dumps(report))
    done = genie("diff", "--markdown", "-", "before.json", "odd.json")
    assert r"a\|b\`\<script\>, forward" in done.stdout and "<script>" not in done.stdout


def test_C5_compressed_reports(reports: Path) -> None:
    for name in ("before", "after"):
        (reports / f"{name}.json.gz").write_bytes(gzip.compress((reports / f"{name}.json").read_bytes()))
    assert genie("diff", "before.json.gz", "after.json.gz").stdout.count("Net.first")


@pytest.mark.parametrize(
    "damage",
    [
        lambda report: report.update(command=None),
        lambda report: report["detail"]["rows"][0].pop(),
        lambda report: report["detail"]["rows"][0].__setitem__(3, 9999),
        lambda report: report["totals"].update(flops="many"),
        lambda report: report["phases"].append(7),
        lambda report: report["detail"].update(rows=None),
        lambda report: report["detail"]["rows"][0].__setitem__(0, None),
        lambda report: report["detail"]["rows"][0].__setitem__(5, "many"),
    ],
)
def test_C5_a_damaged_report_is_one_line_and_no_condition_that_holds(damage: Callable[..., Any], reports: Path) -> None:
    report = json.loads(Path("after.json").read_text())
    damage(report)
    Path("odd.json").write_text(json.dumps(report))
    done = genie("diff", "before.json", "odd.json")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1, done.output
    assert "odd.json is damaged: " in done.stderr
    with pytest.raises(UsageError, match=r"odd\.json is damaged: .*; make it again"):
        load_report("odd.json")


def test_C5_totals_are_whole_whatever_is_asked_for(reports: Path) -> None:
    done = genie("diff", "--top", "1", "before.json", "after.json")
    for name in ("ops", "FLOPs", "bytes", "parameters", "peak memory"):
        assert re.search(rf"^{name} ", done.stdout, re.M), name
    assert "more: --top" in done.stdout


def test_C5_a_page_for_a_browser(reports: Path) -> None:
    done = genie("diff", "--html", "-", "--fail-if", "flops>+0.5%", "before.json", "after.json")
    assert done.exit_code == 1 and done.stdout.startswith("<!doctype html>\n<!-- genie diff: ")
    assert "flops\\u003e" not in done.stdout and "flops>+0.5% holds" in done.stdout
    for _ in range(2):  # ours
        assert not genie("diff", "--html", "page.html", "before.json", "after.json").exit_code
    assert "% holds" not in Path("page.html").read_text()
    Path("theirs.html").write_text("<!doctype html>\n<p>mine")
    done = genie("diff", "--html", "theirs.html", "before.json", "after.json")
    assert done.exit_code == 2 and "will not replace theirs.html" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["before.json"], "expected two reports, BEFORE and AFTER, got 1"),
        (["before.json", "nothing.json"], "cannot read nothing.json: No such file or directory"),
        (["before.json", "before/net.py"], "before/net.py: expected a file that genie profile --json made, got someth"),
        (["before.json", "diff.json"], "diff.json: expected a file that genie profile --json made, got something else"),
        (
            ["before.json", "sized.json"],
            "expected two reports of one kind, got before.json, which was measured, and siz",
        ),
        (["--fail-if", "flops>1%", "before.json", "after.json"], "expected a condition like 'flops>+1%' or "),
        (["--fail-if", "time>+1%", "before.json", "after.json"], "'time>+1%' compares estimated times"),
        (["--json", "after.json", "before.json", "after.json"], "cannot write after.json: it is one of the reports"),
        (["--markdown", "before/net.py", "before.json", "after.json"], "will not replace before/net.py"),
        (["--json", "x", "--markdown", "x", "before.json", "after.json"], "x is given for two outputs"),
    ],
)
def test_C5_what_cannot_be_done_is_one_clear_line(words: list[str], says: str, reports: Path) -> None:
    genie("diff", "--json", "diff.json", "before.json", "after.json")
    genie("profile", "--target", "h100", "--json", "sized.json", "before/net.py:Net", "--input", "8x64")
    done = genie("diff", *words)
    assert done.exit_code == 2 and says in done.stderr and done.stderr.count("\n") == 1, done.output
    assert json.loads((reports / "after.json").read_text())["totals"]


def test_C5_an_estimates_time_can_be_a_condition(reports: Path) -> None:
    for name in ("before", "after"):
        genie("profile", "--target", "h100", "--json", f"{name}.json", f"{name}/net.py:Net", "--input", "8x64")
    done = genie("diff", "--fail-if", "time>+50%", "before.json", "after.json")
    assert done.exit_code == 0 and re.search(r"^time +\S+ µs ", done.stdout, re.M)


_STEPS = """
import sys, torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_C5_a_step_of_an_estimate_is_compared_whatever_their_number(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(_STEPS)
    for steps in (1, 4, 8):
        genie("profile", "--target", "h100", "--json", f"{steps}.json", "train.py", str(steps))
    done = genie("diff", "--json", "diff.json", "4.json", "8.json")
    totals = json.loads(Path("diff.json").read_text())["totals"]
    assert totals["time"]["ratio"] > 1.5 and abs(totals["step_time"]["ratio"] - 1) < 1e-9
    assert re.search(r"^time per step +(\S+ µs) +\1 ", done.stdout, re.M), done.stdout
    done = genie("diff", "--html", "diff.html", "4.json", "8.json")
    assert done.exit_code == 0 and '"step_time":' in Path("diff.html").read_text()
    done = genie("diff", "--json", "-", "1.json", "8.json")
    assert "step_time" not in json.loads(done.stdout)["totals"]  # of one step, its start is no part that is known


# ----------------------------------------------------------------------------------------------------------- revisions


@pytest.mark.usefixtures("children_in_forks")
def test_C5_a_revision_and_the_working_tree(repository: Path) -> None:
    with open("train.py", "a") as file:
        file.write("import atexit; atexit.register(print, 'at the very end')\n")
    done = genie("diff", "--base", "main", "--fail-if", "flops>+0.5%", "--", "profile", "train.py")
    assert done.exit_code == 1, done.output
    assert "at the very end" in done.stderr and "at the very end" not in done.stdout
    assert re.search(r"genie diff  main \([0-9a-f]{10}\) → the working tree", done.stdout)
    assert "most in Net.first (+2.06 k); there addmm, forward, model.py:10 (+1.02 k)" in done.stderr
    assert re.search(r"^parameters, model\.py:7 +25\.\d KiB +25\.\d KiB ", done.stdout, re.M)
    assert "trained" not in done.stdout and is_clean(repository)
    assert git("status", "--short", cwd=repository).split() == ["M", "training/model.py", "M", "training/train.py"]


@pytest.mark.whole
def test_C5_nothing_changed_since_a_revision(repository: Path) -> None:
    git("commit", "-qam", "wider", cwd=repository)
    words = ("--fail-if", "ops>+0", "--json", "-", "--", "profile", "--target", "h100", "train.py")
    done = genie("diff", "--base", "HEAD", *words)
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["rows"] == found["modules"] == found["held"] == found["notes"] == []


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("base", "words", "says"),
    [
        ("nowhere", ["profile", "train.py"], "--base nowhere: this clone has no such revision"),
        ("--all", ["profile", "train.py"], "--base --all: this clone has no such revision"),
        ("main", ["train.py"], "--base expects the command to compare, as in -- profile train.py, got train.py"),
        ("main", [], "--base expects the command to compare, as in -- profile train.py, got nothing"),
        ("main", ["profile", "--json", "x.json", "train.py"], "--json would be written twice"),
        ("main", ["profile", "--stepz", "3", "train.py"], "No such option '--stepz'"),
        ("main", ["profile", "new.py"], "genie profile ended with exit code 2 at main"),
        ("main", ["profile", "failing.py"], "genie profile ended with exit code 3 at main"),
        ("main", ["profile", "{here}/train.py"], "train.py, which is in the working tree: give paths relative to"),
    ],
)
def test_C5_a_run_that_fails_leaves_nothing(base: str, words: list[str], says: str, repository: Path, capfd) -> None:
    (repository / "training" / "failing.py").write_text("raise SystemExit(3)")
    git("add", "training/failing.py", cwd=repository)
    git("commit", "-qm", "fails", cwd=repository)
    (repository / "training" / "new.py").write_text("pass")
    words = [word.replace("{here}", os.getcwd()) for word in words]
    done = genie("diff", f"--base={base}", "--", *words)
    assert done.exit_code == 2 and says in done.stderr, done.output
    assert is_clean(repository)


def test_C5_no_repository_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    done = genie("diff", "--base", "main", "--", "profile", "train.py")
    assert done.exit_code == 2 and "--base needs a git repository; this folder is in none" in done.stderr


def test_C5_a_folder_that_is_new_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "new").mkdir()
    monkeypatch.chdir(repository / "new")
    done = genie("diff", "--base", "main", "--", "profile", "../training/train.py")
    assert done.exit_code == 2 and "--base main: this folder is not in that revision" in done.stderr
    assert is_clean(repository)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_C5_a_job_that_is_cancelled_leaves_no_working_tree(number: signal.Signals, repository: Path) -> None:
    (repository / "training" / "slow.py").write_text(
        "import pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1]).write_text(str(__import__('os').getpid()))\n"
        "time.sleep(600)\n"
    )
    git("add", "-A", cwd=repository)
    git("commit", "-qm", "slow", cwd=repository)
    said = repository.parent / "pid"
    running = subprocess.Popen(
        [sys.executable, "-c", GENIE, "diff", "--base", "main", "--", "profile", "slow.py", str(said)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background job has none
    )  # fmt: skip
    while not (said.exists() and said.read_text()):
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    assert not is_clean(repository)
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode in (128 + number, -number), running.returncode
    assert is_clean(repository)
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.read_text()), 0)


def test_C5_hooks_are_not_run_and_a_hook_may_run_it(repository: Path) -> None:
    """In a hook of git's, its variables name the index of the commit that is being made."""
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    call = f'{sys.executable} -c "{GENIE}" diff --base HEAD --json ../../found.json -- profile train.py'
    script = f"#!/bin/sh\ncd training && {call}"
    for name, text in (("post-checkout", f"#!/bin/sh\ntouch {repository.parent}/ran\n"), ("pre-commit", script)):
        (hooks / name).write_text(text)
        (hooks / name).chmod(0o755)
    git("commit", "-qam", "wider", cwd=repository)
    assert json.loads((repository.parent / "found.json").read_text())["totals"]["params"]["difference"] == 75
    assert not (repository.parent / "ran").exists() and is_clean(repository)
    assert git("show", "--stat", "--format=", "HEAD", cwd=repository).count("\n") == 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["PYTHONPATH", "path of an installation"])
def test_C5_packages_of_the_repository_are_those_of_the_revision(
    how: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed in place, they would be imported from the working tree in both runs."""
    (repository / "src").mkdir()
    (repository / "src" / "model.py").write_text(MODEL)
    git("rm", "-qf", "--cached", "training/model.py", cwd=repository)
    (repository / "training" / "model.py").unlink()
    git("add", "-A", cwd=repository)
    git("commit", "-qm", "src", cwd=repository)
    (repository / "src" / "model.py").write_text(WIDER)
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    if how != "PYTHONPATH":
        monkeypatch.delenv("PYTHONPATH")
        monkeypatch.syspath_prepend(repository / "src")
        monkeypatch.setattr(
            "mindtorch.cli.child_command._GENIE", f"import sys; sys.path.append({str(repository / 'src')!r}); {GENIE}"
        )
    before, after, _ = both("main", ["profile", "train.py"])
    assert (before["totals"]["params"], after["totals"]["params"]) == (7510, 7585)


# ---------------------------------------------------------------------------------------------------------- the recipe


def test_C5_the_recipe_for_continuous_integration_runs(repository: Path) -> None:
    """The steps of the workflow in docs/DIFF.md that are shell, in a shallow clone as actions/checkout makes it."""
    page = (ROOT / "docs" / "DIFF.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    found = re.findall(r"^ {6}- run: (?:\|\n((?: {10}.*\n)+)|(.*\n))", text, re.M)
    steps = [step for step in map("".join, found) if not step.startswith("pip install")]
    assert len(steps) == 2 and len(found) == text.count(" run:")
    git("checkout", "-qb", "wider", cwd=repository)
    git("mv", "training/model.py", "training/train.py", ".", cwd=repository)
    git("commit", "-qam", "moved", cwd=repository)
    git("branch", "-f", "main", cwd=repository)
    (repository / "model.py").write_text(WIDER.replace("101", "111"))
    git("commit", "-qam", "wider", cwd=repository)
    clone = repository.parent / "clone"
    git("clone", "-q", "--depth", "1", "--branch", "wider", f"file://{repository}", str(clone))
    tools = repository.parent / "bin"
    tools.mkdir()
    (tools / "genie").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{GENIE}" "$@"\n')
    (tools / "genie").chmod(0o755)
    summary = repository.parent / "summary.md"
    summary.write_text("written before\n")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "GITHUB_BASE_REF": "main",
                   "GITHUB_STEP_SUMMARY": str(summary)}  # fmt: skip
    codes = [
        subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step], cwd=clone, env=environment, capture_output=True, text=True
        )
        for step in steps
    ]
    assert [done.returncode for done in codes] == [*[0] * (len(steps) - 1), 1], [done.stderr for done in codes]
    assert re.search(r"genie: flops>\+1% holds: .*most in Net\.first .*, model\.py:10", codes[-1].stderr)
    assert summary.read_text().startswith("written before\n**genie diff** `origin/main (")
