"""L1: what importing costs, in counts: no collection of garbage, and nothing imported that a program does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mindtorch.base import torch_facts

#: Imports a program and says what that cost: collections by generation, and modules of ours.
CODE = """
import gc, json, sys
{before}
import torch
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]) if phase == "start" else None)
was = gc.isenabled()
import mindtorch
gc.callbacks.clear()
young = len(gc.get_objects(0)) + len(gc.get_objects(1))
ours = [name for name in sys.modules if name.split(".")[0] == "mindtorch"]
print(json.dumps({{"collections": collections, "ours": ours, "was": was, "collects": gc.isenabled(),
                  "young": young, "frozen": gc.get_freeze_count()}}))
"""


def imported(tmp_path: Path, before: str = "") -> dict[str, Any]:
    command = [sys.executable, "-c", CODE.format(before=before)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("before", "collects"), [("", True), ("gc.disable()", False)])
def test_L1_importing_collects_no_garbage_and_leaves_the_collector_as_it_was(
    before: str, collects: bool, tmp_path: Path
) -> None:
    """One collection goes through all of torch's objects: more than half of the time that importing took."""
    found = imported(tmp_path, before)
    assert set(found["collections"]) <= {0}, "of the youngest objects: before and after"
    assert len(found["collections"]) <= 3, "it would be about thirty"
    assert found["was"] is found["collects"] is collects
    if collects:
        assert found["young"] < 1_000, "the next collection would go through ten thousand objects"
    assert found["frozen"] == 0


def test_L1_importing_leaves_frozen_what_the_program_froze(tmp_path: Path) -> None:
    found = imported(tmp_path, "import torch; gc.freeze()")
    assert found["frozen"] > 100_000


def test_L1_importing_leaves_out_what_a_program_may_never_need(tmp_path: Path) -> None:
    """Reports, estimates, the cluster and the command are imported by whoever asks for them."""
    ours = imported(tmp_path)["ours"]
    parts = ("cli", "cluster", "npu.compat", "npu.kernel", "npu.staging", "profile", "program", "engine.remote")
    assert [name for name in ours if name.removeprefix("mindtorch.").startswith(parts)] == []
    assert len(ours) <= 183 + torch_facts.assumes_cuda(), "torch 2.12 has one more"


def test_C1_a_profile_searches_for_no_garbage_once_the_program_has_ended(tmp_path: Path) -> None:
    """One collection that goes through all of torch's objects takes as long as making the whole report."""
    (tmp_path / "empty.py").write_text(
        "import atexit, gc\n"
        "seen = []\n"
        "gc.callbacks.append(lambda phase, info: seen.append(info['generation']) if phase == 'start' else None)\n"
        "atexit.register(lambda: print(max(seen, default=0), gc.isenabled()))\n"
    )
    command = [sys.executable, "-m", "mindtorch.cli.main", "profile", "empty.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "0 True"


def test_C1_a_profile_of_nothing_loads_no_tables_and_no_patterns(tmp_path: Path) -> None:
    """A program that runs no op has no report: what makes and shows one is loaded by the others alone."""
    (tmp_path / "empty.py").write_text(
        "import atexit, sys\natexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))\n"
    )
    command = [sys.executable, "-m", "mindtorch", "profile", "empty.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr.startswith("genie: empty.py ran no torch op\n") and done.stdout == ""
    loaded = done.stderr.splitlines()[-1].split()
    ours = (
        "cli.report",
        "cli.render",
        "graph.patterns",
        "profile.report.build",
        "profile.cost.op_time",
    )
    parts = ("rich", "statistics", "tomllib", *(f"mindtorch.{name}" for name in ours))
    assert [name for name in loaded if name.startswith(parts)] == []
    assert len([name for name in loaded if name.split(".")[0] == "mindtorch"]) <= 255


def test_C1_a_profile_of_nothing_has_a_report_where_one_is_asked_for(tmp_path: Path) -> None:
    # Without close_fds subprocess goes by os.posix_spawn, and since Python 3.13 with it: that is one process, too.
    (tmp_path / "empty.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''], close_fds=False)\n"
    )
    command = [sys.executable, "-m", "mindtorch", "profile", "--json", "report.json", "empty.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["totals"]["ops"] == 0 and report["unseen"] == [{"what": "child process", "count": 1}]
    plain = [word for word in command if word not in ("--json", "report.json")]
    shown = subprocess.run(plain, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert "genie does not see what 1 child process ran" in shown.stderr
    assert set(done.stderr.splitlines()) > set(shown.stderr.splitlines())


def test_L1_a_profile_of_a_program_that_loads_dynamo_hooks_nothing(tmp_path: Path) -> None:
    """Dynamo asked for the package by name when it was loaded: that counted as an import by the program, the device was
    enabled, and the report said that torch lacks a name."""
    (tmp_path / "adam.py").write_text(
        "import sys, torch\nnet = torch.nn.Linear(2, 2)\noptimizer = torch.optim.Adam(net.parameters())\n"
        "net(torch.ones(1, 2)).sum().backward()\noptimizer.step()\n"
        "print('torch._dynamo' in sys.modules, sys.modules['mindtorch'].is_enabled(), file=sys.stderr)\n"
    )
    command = [sys.executable, "-m", "mindtorch", "profile", "--json", "-", "adam.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert "True False\n" in done.stderr
    assert not [text for text in json.loads(done.stdout)["warnings"] if "lacks" in text]
