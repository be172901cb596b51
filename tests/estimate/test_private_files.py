"""C4: an estimate writes nothing. Whatever a program writes, renames or removes, the disk is as it was; C8."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from mindtorch.base.words import counted
from mindtorch.cli.main import cli
from mindtorch.profile.estimate import private_files
from mindtorch.profile.estimate.accelerator import Accelerator
from mindtorch.profile.estimate.estimating import estimating

WRITERS = Path(__file__).with_name("writers.py")
GPU = Accelerator("Test GPU", 10**9)
LONG_AGO = 1_500_000_000
FILES = {
    "log.txt": "old\n", "both.txt": "0123456789", "keep.txt": "keep", "a.txt": "a", "b.txt": "b", "mode.txt": "mode",
    "times": "", "linked.txt": "linked", "mapped.bin": "0123", "metrics.csv": "0.1234", "state.json": "{}",
    "fork.txt": "", "child.txt": "", "keep_c.txt": "keep", "c1.txt": "c1", "c3.txt": "c3", "model.pt": "last week's",
    "folder/one.txt": "one", "folder/inner/two.txt": "two", "tree/leaf.txt": "leaf", "tree/branch/leaf.txt": "leaf",
    "home/settings.ini": "kept", "tmp/somebody": "else's",
}  # fmt: skip


def lay_out(at: Path) -> None:
    """A folder with all that the writers look for, with a home and a folder for temporary files in it."""
    for name, text in FILES.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    (at / "empty").mkdir()
    (at / "link.txt").symlink_to("linked.txt")
    torch.save({"w": torch.arange(3.0)}, at / "weights.pt")
    with sqlite3.connect(at / "old.db") as base:
        base.execute("create table t (a)")
        base.execute("insert into t values (1)")
    base.close()
    (at / "mode.txt").chmod(0o640)
    for path in sorted(at.rglob("*"), reverse=True):
        os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    os.utime(at, (LONG_AGO, LONG_AGO))


def snapshot(at: Path) -> dict[str, Any]:
    """Every byte, mode and time stamp."""
    found: dict[str, Any] = {"/dev/shm": Path("/dev/shm", f"writers-{at.parent.name}").exists()}
    for path in (at, *at.rglob("*")):
        state = path.lstat()
        content: Any = None
        if stat.S_ISREG(state.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(state.st_mode):
            content = os.readlink(path)
        facts = (state.st_mode, state.st_uid, state.st_gid, state.st_nlink, state.st_mtime_ns, state.st_ino, content)
        found[str(path.relative_to(at))] = facts
    return found


def has_mounts() -> bool:
    """Whether the kernel lends a process mounts of its own."""
    program = "import sys; sys.argv = ['genie']; from mindtorch.base import mounts; sys.exit(not mounts.own())"
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "work"
    lay_out(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder / "home"))
    yield folder


Forked = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def genie(forked: Forked) -> Forked:
    def run(at: Path, *args: str, mounts: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TMPDIR": str(at / "tmp"), "GENIE_PRIVATE_MOUNTS": str(int(mounts))}
        return forked("-m", "mindtorch.cli.main", *args, folder=at, environment=environment)

    return run


def but_for_scratch(found: dict[str, Any]) -> dict[str, Any]:
    """genie makes a folder where temporary files go, and removes it: so that folder has another time stamp."""
    return {path: facts[:4] + facts[5:] if path == "tmp" else facts for path, facts in found.items()}


#: What writers.py writes or removes, that the program's Python could see.
NAMED = {
    "metrics.csv", "log.txt", "both.txt", "plus.bin", "made.txt", "moved.md", "data.bin", "deep/er/empty", "keep.txt",
    "a.txt", "x/y/here.txt", "soft", "hard", "linked.txt", "mode.txt", "times", "moved_copies/one.txt",
    "archive.zip", "table.csv", "state.json", "umlaut.txt", "a.npy", "b.npz", "c.txt", "d.bin", "e.bin", "mapped.bin",
    "new.db", "old.db", "plain.dbm.dat", "shelf.dat", "z.zip", "t.tar.gz", "g.gz", "unpacked/mode.txt",
    "from_elsewhere", "model.pt", "checkpoints.pt", "best.pt", "pickled.pkl", "weights2.pt", "run.log",
    "runs/events.out.tfevents.1",
    "by_thread.txt", "by_fork.txt", "fork.txt", "generated.py", "home/settings.ini", "home/.cache/program/x",
}  # fmt: skip


REMOVING = """
import os, shutil
import torch

def write(path):
    with open(path, "w") as file:
        file.write("x")

write("made.txt"), os.remove("made.txt")
write("made.tmp"), os.replace("made.tmp", "new.txt")
write("one"), os.rename("one", "two"), os.remove("two")
os.mkdir("once"), os.rmdir("once")
os.makedirs("more/inner"), write("more/inner/x"), shutil.rmtree("more")
os.makedirs("kept/inner"), write("kept/inner/x"), os.remove("kept/inner/x")
torch.save({"w": torch.ones(2)}, "new.pt"), os.remove("new.pt")
write("a.txt")
os.remove("b.txt"), write("b.txt")
write("keep.txt"), os.remove("keep.txt")
os.remove("log.txt")
shutil.rmtree("folder"), os.mkdir("folder"), write("folder/three.txt"), os.remove("folder/three.txt")
torch.nn.Linear(2, 2, device="cuda")(torch.ones(1, 2, device="cuda"))
"""


@pytest.mark.parametrize("mounts", [True, False], ids=["overlays", "functions"])
def test_C4_an_estimate_writes_nothing(at: Path, mounts: bool, genie: Forked) -> None:
    """25 kinds of writers; the program reads what it wrote, and the report names it. The report itself is written."""
    covered = mounts and has_mounts()
    before = snapshot(at)
    report = at.parent / "report.json"
    line = ["profile", "--target", "h100", "--json", str(report), str(WRITERS), str(at), *(["all"] if covered else [])]
    ran = genie(at, *line, mounts=mounts)
    assert ran.returncode == 0, ran.stderr
    assert f"done: {25 if covered else 23}\n" in ran.stdout and ran.stderr.endswith("at exit: done\n")
    assert but_for_scratch(snapshot(at)) == but_for_scratch(before)
    found = json.loads(report.read_text())
    named = {os.path.relpath(path, at) for path in (*found["not_written"], *found["not_removed"])}
    assert named >= NAMED
    assert not any("__pycache__" in path or "genie" in path for path in named)
    folders = sum(path.endswith("/") for path in found["not_written"])
    and_folders = f" and {counted(folders, 'folder')}" if folders else ""
    words = f"{len(found['not_written']) - folders} files{and_folders}"
    assert f"{words} were not written: " in " ".join(ran.stdout.split())
    if covered:
        assert named >= {"by_c.txt", "keep_c.txt", "c2.txt", "c3.txt", "by_child.txt", "child.txt", "by_system"}
        assert found["not_held_back"] == []


def test_C8_check_and_graph_write_nothing(at: Path, genie: Forked) -> None:
    before = snapshot(at)
    ran = genie(at, "check", "--target", "h100", "--json", str(WRITERS), str(at))
    assert ran.returncode == 0 and "done: 23\n" in ran.stderr, ran.stderr  # standard output is the JSON
    found = json.loads(ran.stdout)
    assert {os.path.relpath(path, at) for path in (*found["not_written"], *found["not_removed"])} >= NAMED
    assert but_for_scratch(snapshot(at)) == but_for_scratch(before)
    (at / "writes.py").write_text("import torch\ntorch.ones(2) + 1\nopen('keep.txt', 'w').close()\n")
    words = "1 file was not written: keep.txt\n"
    for line in (["check", "--target", "h100"], ["graph", "--device", "meta"]):
        done = CliRunner().invoke(cli, [*line, "writes.py"], prog_name="genie")
        assert done.exit_code == 0 and done.output.count(words) == 1, done.output
    assert (at / "keep.txt").read_text() == "keep"


def test_C4_an_estimate_within_a_program_writes_nothing(at: Path) -> None:
    """Python's functions are led elsewhere, and are Python's own again afterwards."""
    before, functions = snapshot(at), (open, os.open, os.rename, os.stat, os.listdir, sqlite3.connect)
    module = runpy.run_path(str(WRITERS))
    with estimating(GPU):
        for writer in module["PYTHONS"]:
            if writer.__name__ != "in_a_fork":  # torch's threads are running
                writer(at)
        changed = (*private_files.left_alone()["not_written"], *private_files.left_alone()["not_removed"])
        named = {os.path.relpath(path, at) for path in changed}
    assert snapshot(at) == before
    assert named >= NAMED - {"by_fork.txt", "fork.txt"}
    assert functions == (open, os.open, os.rename, os.stat, os.listdir, sqlite3.connect)
    assert os.getcwd() == str(at)


@pytest.mark.sample(1)
@pytest.mark.parametrize("mounts", [True, False], ids=["overlays", "functions"])
def test_C4_what_is_named_is_what_would_be_there_or_there_no_more(at: Path, mounts: bool, genie: Forked) -> None:
    """pyGAT's "2 files were not written: 0.pkl, 3.pkl" named one that it removes."""
    (at / "program.py").write_text(REMOVING)
    before = snapshot(at)
    ran = genie(at, "check", "--target", "h100", "--json", "program.py", mounts=mounts)
    found = json.loads(ran.stdout)
    written, removed = ([os.path.relpath(path, at) for path in found[key]] for key in ("not_written", "not_removed"))
    assert written == ["a.txt", "b.txt", "kept/inner", "new.txt"]
    assert removed == ["folder/inner", "folder/one.txt", "keep.txt", "log.txt"]
    assert but_for_scratch(snapshot(at)) == but_for_scratch(before)
    ran = genie(at, "check", "--target", "h100", "program.py", mounts=mounts)
    said = " ".join(ran.stdout.split())
    assert "3 files and 1 folder were not written: a.txt, b.txt, kept/inner/, new.txt" in said
    assert "3 files and 1 folder were not removed: folder/inner/, folder/one.txt" in said


def test_C4_scratch_whose_name_nobody_chose_is_not_named(at: Path, genie: Forked) -> None:
    """Of wandb's folders only the endings are its own words; they are removed at exit."""
    (at / "program.py").write_text(
        "import tempfile, torch\n"
        "kept = tempfile.TemporaryDirectory('artifacts'), tempfile.NamedTemporaryFile(suffix='.txt')\n"
        "open(kept[0].name + '/x', 'w').close()\n"
        "open('tmpresults_1.csv', 'w').close()\ntorch.ones(2) + 1\n"
    )
    ran = genie(at, "check", "--target", "h100", "--json", "program.py")
    names = [os.path.relpath(path, at) for path in json.loads(ran.stdout)["not_written"]]
    assert names == ["tmpresults_1.csv"], ran.stderr


@pytest.mark.parametrize("mounts", [True, False], ids=["overlays", "functions"])
def test_C4_a_program_that_removes_its_current_folder_has_its_report(at: Path, mounts: bool, genie: Forked) -> None:
    """It ended with "genie: cannot write to standard output: No such file or directory" and exit code 1."""
    before = snapshot(at)
    (at / "leaves.py").write_text(
        "import os, torch\ntorch.ones(2) + 1\nos.mkdir('a')\nos.chdir('a')\nos.rmdir('../a')\n"
    )
    ran = genie(at, "check", "--target", "h100", "leaves.py", mounts=mounts)
    assert ran.returncode == 0 and "leaves.py: runs and fits" in ran.stdout, ran.stderr
    ran = genie(at, "profile", "--target", "h100", "--json", "-", "leaves.py", mounts=mounts)
    assert ran.returncode == 0 and json.loads(ran.stdout)["totals"]["ops"], ran.stderr
    (at / "leaves.py").unlink()
    assert snapshot(at).keys() == before.keys()


AT_EXIT = """
import atexit, os, shutil, sys
import torch

os.mkdir("own")
os.chdir("own")
log = open("log", "w")
log.write("begun,")
with open("../a.txt", "w") as file:
    file.write("mine")
os.remove("../b.txt")
shutil.rmtree("../folder")

def last():
    log.write("ended")
    log.close()
    with open("log") as file:
        print(file.read(), os.path.basename(os.getcwd()), open("../a.txt").read(), file=sys.stderr)
    print(os.path.exists("../b.txt"), os.path.exists("../folder"), file=sys.stderr)
    os.remove("log")
    os.chdir("..")
    os.rmdir("own")
    os.remove("keep.txt")
    print("removed", os.path.exists("own"), os.path.exists("keep.txt"), file=sys.stderr, flush=True)

atexit.register(last)
torch.ones(2) + 1
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize("mounts", [True, False], ids=["overlays", "functions"])
@pytest.mark.parametrize("command", ["check", "profile", "graph"])
def test_C4_exit_handlers_find_what_the_program_wrote(at: Path, command: str, mounts: bool, genie: Forked) -> None:
    """One that removes the program's own lock file raised FileNotFoundError."""
    (at / "program.py").write_text(AT_EXIT)
    os.utime(at, (LONG_AGO, LONG_AGO))
    before = snapshot(at)
    target = ["--device", "meta"] if command == "graph" else ["--target", "h100"]
    report = at.parent / "report.json"
    ran = genie(at, command, *target, "--json", str(report) if command != "check" else "program.py",
                *(["program.py"] if command != "check" else []), mounts=mounts)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.endswith("begun,ended own mine\nFalse False\nremoved False False\n"), ran.stderr
    found = json.loads(ran.stdout if command == "check" else report.read_text())
    if command != "graph":
        names = [os.path.relpath(path, at) for path in found["not_written"]]
        assert names == ["a.txt", "own/log"]
    assert but_for_scratch(snapshot(at)) == but_for_scratch(before)


def test_C4_what_leads_past_the_functions_is_refused(at: Path) -> None:
    import io

    before = snapshot(at)
    with estimating(GPU):
        with pytest.raises(OSError, match="an estimate writes nothing"):
            io.FileIO("keep.txt", "w")
        with pytest.raises(OSError, match="an estimate writes nothing"):
            sqlite3.Connection("old.db")
        subprocess.run(["true"], check=True)
        assert private_files.left_alone()["not_held_back"] == ["files that child processes may have written (true)"]
    assert snapshot(at) == before
    io.FileIO("keep.txt", "w").close()
    assert (at / "keep.txt").read_bytes() == b""


def test_C4_a_program_that_fails_leaves_nothing(at: Path) -> None:
    before = snapshot(at)
    with pytest.raises(ZeroDivisionError), estimating(GPU):
        (at / "keep.txt").unlink()
        torch.save(torch.zeros(3), at / "model.pt")
        1 / 0
    assert snapshot(at) == before


def test_C8_numbers_are_marked_once_and_only_where_there_are_any(at: Path, genie: Forked) -> None:
    """On stderr: standard output is the program's own."""
    begins = "import torch\nprint('start', 1)\nloss = torch.nn.Linear(9, 9)(torch.ones(9, 9)).sum()\n"
    (at / "prints.py").write_text(begins + "for _ in range(2):\n    print('loss', loss.item())\n")
    (at / "silent.py").write_text(begins + "loss.item()\n")
    # As a library that keeps what is printed.
    wraps = "import sys\nbefore = sys.stdout.write\nsys.stdout.write = lambda text: before(text)\n"
    (at / "wraps.py").write_text(wraps + (at / "prints.py").read_text() + "del sys.stdout.write\n")
    mark = "genie: numbers below are assumed, not computed\n"
    write = vars(sys.stdout).get("write")
    done = CliRunner().invoke(cli, ["check", "--target", "h100", "prints.py"], prog_name="genie")
    assert re.match(rf"start 1\n{mark}loss (\S+)\nloss \1\nprints.py: ", done.output), done.output
    done = CliRunner().invoke(cli, ["check", "--target", "h100", "wraps.py"], prog_name="genie")
    assert re.match(rf"start 1\n{mark}loss (\S+)\nloss \1\nwraps.py: ", done.output), done.output
    done = CliRunner().invoke(cli, ["check", "--target", "h100", "silent.py"], prog_name="genie")
    assert mark not in done.output and done.output.startswith("start 1\nsilent.py: ")
    assert vars(sys.stdout).get("write") is write
    # As progress bars and loggers print; what has no number is not below one.
    bar = begins + "import sys\nloss.item()\nsys.stderr.write('none\\n')\nsys.stderr.write(f'bar {loss.item()}\\n')\n"
    (at / "bar.py").write_text(bar + "print('loss', loss.item())\n")
    ran = genie(at, "check", "--target", "h100", "bar.py")
    assert re.match(rf"none\n{mark}bar \S+\n", ran.stderr) and ran.stderr.count(mark) == 1, ran.stderr
    ran = genie(at, "profile", "--target", "h100", "--json", "-", "prints.py")
    assert re.fullmatch(rf"start 1\n{mark}loss (\S+)\nloss \1\n", ran.stderr), ran.stderr
    assert json.loads(ran.stdout)["mode"] == "estimate"


def test_C8_exit_codes_and_tracebacks_are_the_programs(at: Path, genie: Forked) -> None:
    (at / "fails.py").write_text("open('keep.txt', 'w').close()\nopen('no/such/folder', 'w')\n")
    plain = subprocess.run([sys.executable, "fails.py"], cwd=at, capture_output=True, text=True, check=False)
    (at / "keep.txt").write_text("keep")
    ran = genie(at, "check", "--target", "h100", "fails.py")
    assert (
        ran.returncode == 1 and "FileNotFoundError: [Errno 2] No such file or directory: 'no/such/folder'" in ran.stdout
    )
    done = CliRunner().invoke(cli, ["profile", "--target", "h100", "fails.py"], prog_name="genie")
    assert done.exit_code == 1 and done.output.startswith(plain.stderr)
    (at / "ends.py").write_text("import sys\nopen('keep.txt', 'w').close()\nsys.exit(7)\n")
    done = CliRunner().invoke(cli, ["profile", "--target", "h100", "ends.py"], prog_name="genie")
    assert done.exit_code == 7 and (at / "keep.txt").read_text() == "keep"


def test_C4_a_rank_that_another_waits_for_writes_nothing(at: Path, genie: Forked) -> None:
    """It runs in a process of its own, and ends there when it has sent what was asked for."""
    (at / "ranks.py").write_text(
        "import torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('nccl')\nopen('keep.txt', 'w').write(str(dist.get_rank()))\n"
        "got = [None]\n"
        "if dist.get_rank() == 0:\n    dist.send_object_list([(4, 5)], dst=1)\n"
        "else:\n    dist.recv_object_list(got, src=0)\n"
        "print('got', got, open('keep.txt').read())\ntorch.ones(2, device='cuda') + 1\n"
    )
    before = snapshot(at)
    ran = genie(at, "check", "--target", "2xh100", "--rank", "1", "ranks.py")
    assert ran.returncode == 0 and ran.stdout.startswith("got [(4, 5)] 1\n"), ran.stderr
    assert but_for_scratch(snapshot(at)) == but_for_scratch(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_C4_a_user_without_rights_has_overlays_too(tmp_path: Path) -> None:
    """In a user namespace: rights stay what they were, and files of one disk can be renamed."""
    work = Path(tempfile.gettempdir(), f"genie-test-{os.getpid()}")  # nobody may go into pytest's folder
    work.mkdir()
    try:
        lay_out(work)
        (work / "readonly.txt").write_text("r")
        (work / "readonly.txt").chmod(0o400)
        for path in (work, *work.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        before = snapshot(work)
        program = f"""
import os, sys
from mindtorch.base import mounts
from mindtorch.profile.estimate import private_files
import ctypes
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # who has changed the user may not write to its own /proc otherwise
os.environ["HOME"] = {str(work / "home")!r}
os.chdir({str(work)!r})
if len(os.listdir("/proc/self/task")) > 1 or not mounts.own():
    sys.exit(77)
with private_files.private():
    assert mounts.owned() and not isinstance(private_files._now, private_files.Redirected)
    os.rename("folder", "folder2"); os.rename("tree", "home/tree"); os.remove("keep.txt")
    assert os.listdir("home/tree/branch") == ["leaf.txt"] and not os.path.exists("tree")
    os.system("echo x > by_child.txt")
    assert open("by_child.txt").read() == "x\\n"
    try:
        open("readonly.txt", "w")
    except PermissionError:
        pass
    else:
        sys.exit("it had rights that it should not have")
    names = {{os.path.relpath(path) for path in private_files.left_alone()["not_written"]}}
    assert names >= {{"folder2/one.txt", "home/tree/leaf.txt", "by_child.txt"}}, names
    os.mkdir("folder")
    gone = {{os.path.relpath(path) for path in private_files.left_alone()["not_removed"]}}
    assert gone == {{"folder/inner", "folder/one.txt", "tree", "keep.txt"}}, gone
"""
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        if ran.returncode == 77:
            pytest.skip("the kernel lends users no namespaces")
        assert ran.returncode == 0, ran.stderr
        assert snapshot(work) == before
    finally:
        shutil.rmtree(work)


def test_C4_a_folder_for_temporary_files_that_the_environment_names_is_chosen_anew_after_an_estimate(
    forked: Forked,
) -> None:
    """torch writes the folder of inductor's cache, which it chooses once, into the environment."""
    code = """
import os, tempfile
from mindtorch.profile.estimate.estimator import Estimator
before = dict(os.environ)
with Estimator():
    from torch._inductor.runtime import cache_dir_utils
    within = cache_dir_utils.cache_dir()
    os.environ["OF_THE_PROGRAM"] = "kept"
assert os.environ == {**before, "OF_THE_PROGRAM": "kept"}, {k: v for k, v in os.environ.items() if before.get(k) != v}
print(within.startswith(tempfile.gettempdir() + "/genie-"), os.path.exists(within))
after = cache_dir_utils.cache_dir()
print(after.startswith(tempfile.gettempdir() + "/torchinductor"), os.path.exists(within))
"""
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    done = forked("-c", code, environment=environment)
    assert done.stdout.split() == ["True", "False", "True", "False"], done.stdout + done.stderr
