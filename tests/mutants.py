"""Changes small things in the engine, one at a time, and says which of them the nearest tests do not notice.

``python -m tests.mutants --sample 300 --jobs 2`` at the root of a checkout in which mindtorch is installed for
development. Each mutant is one token: ``<`` for ``<=``, ``and`` for ``or``, a number one greater … in a copy of the
tree; what fails to compile is none, and another is drawn. Prints each survivor and a table. Exit code 1 where fewer
than ``--least`` in a hundred were noticed.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: What is changed, and the tests that are near it: the first pattern that fits counts.
NEAREST = {
    "_ext/ac*.pyx": "npu/test_aclnn.py npu/test_binding.py",
    "_ext/al*.pyx": "npu/test_memory.py",
    "_ext/attributes.pyx": "test_lazy_tensor.py test_lazy_plain_programs.py",
    "_ext/balance.pyx": "profile/test_memory.py profile/test_peak.py",
    "_ext/blocks.pyx": "npu/test_memory.py npu/test_copies.py",
    "_ext/collect.pyx": "profile/test_report.py profile/test_times.py profile/test_lazy.py",
    "_ext/context.pyx": "ext/test_context.py semantics",
    "_ext/co*.pyx": "ext/test_shapes.py",
    "_ext/dispatch.pyx": "ext/test_dispatch.py test_lazy_tensor.py",
    "_ext/encoder.pyx": "remote/test_wire.py remote/test_messages.py",
    "_ext/frames.pyx": "remote/test_wire.py remote/test_checks.py",
    "_ext/guards.pyx": "test_lazy_modes.py test_lazy_transforms.py",
    "_ext/hooks.pyx": "test_lazy_surroundings.py test_lazy_creation.py test_lazy_wrappers.py",
    "_ext/intercept.pyx": "test_lazy_tensor.py test_lazy_autograd_writes.py test_lazy_mistakes.py",
    "_ext/inter*.pyx": "ext/test_tables.py ext/test_interpreter.py ext/test_tape.py",
    "_ext/keys.pyx": "test_lazy_products.py test_lazy_mistakes.py ext/test_tables.py",
    "_ext/labels.pyx": "profile/test_times.py profile/test_report.py",
    "_ext/la*.pyx": "ext/test_shapes.py test_lazy_layouts.py test_lazy_tensor.py",
    "_ext/ledger.pyx": "profile/test_memory_estimate.py estimate/test_caching_allocator.py",
    "_ext/location.pyx": "profile/test_lines.py ext/test_context.py",
    "_ext/looking.pyx": "profile/test_waiting.py profile/test_lines.py",
    "_ext/overlap.pyx": "remote/test_overlap.py",
    "_ext/paths.pyx": "semantics profile/test_owners.py",
    "_ext/pool.pyx": "npu/test_streams.py npu/test_events.py npu/test_memory.py",
    "_ext/registry.pyx": "test_lazy_operators.py test_lazy_surroundings.py",
    "_ext/replay.pyx": "test_execute.py test_lazy_autograd_writes.py test_failures.py",
    "_ext/signals.pyx": "test_signals.py",
    "_ext/sampler.pyx": "profile/test_waiting.py profile/test_lines.py",
    "_ext/standin.pyx": "test_lazy_surroundings.py",
    "_ext/streams.pyx": "npu/test_streams.py npu/test_events.py",
    "_ext/tape.pyx": "ext/test_tape.py ext/test_tables.py test_execute.py",
    "_ext/timeline.pyx": "profile/test_times.py profile/test_report.py",
    "_ext/view_chains.pyx": "test_lazy_view_chains.py",
    "_ext/*.pyx": "ext/test_shapes.py ops",
    "mindtorch/engine/execute/*.py": "test_execute.py test_incremental.py test_pace.py test_failures.py"
    " test_limits.py test_lazy_tensor.py",
    "mindtorch/engine/record/meta.py": "test_meta.py",
    "mindtorch/engine/record/*.py": "test_lazy_operators.py test_lazy_mistakes.py test_lazy_autograd.py test_meta.py",
    "mindtorch/engine/remote/*.py": "remote/test_wire.py remote/test_checks.py remote/test_messages.py"
    " remote/test_changing.py remote/test_spread.py remote/test_files.py",
    "mindtorch/engine/semantics/*.py": "semantics profile/test_owners.py profile/test_iterations.py",
    "mindtorch/engine/tensor/*.py": "test_lazy_classes.py test_lazy_tensor.py test_lazy_protocol.py",
}
#: A token, and what stands in its place.
OTHERS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "//": "*", "&": "|",
    "|": "&", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "and": "or", "or": "and", "True": "False",
    "False": "True", "not": "", "break": "continue", "continue": "break",
}  # fmt: skip


class Mutant(NamedTuple):
    """A token of a file, and what it becomes."""

    path: str
    line: int
    column: int
    old: str
    new: str

    def apply(self, tree: Path) -> str:
        """Write the changed file; what it held before."""
        file = tree / self.path
        before = file.read_text()
        lines = before.splitlines(keepends=True)
        text = lines[self.line - 1]
        assert text[self.column :].startswith(self.old)
        lines[self.line - 1] = text[: self.column] + self.new + text[self.column + len(self.old) :]
        file.write_text("".join(lines))
        return before


def mutants(path: str) -> Iterator[Mutant]:
    """All of a file, in Python or Cython: what tokens may become. Declarations of C have none worth a try."""
    text = (ROOT / path).read_text()
    lines = text.splitlines()
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = lines[min(token.start[0], len(lines)) - 1].strip()
        declares = line.startswith(("cdef extern", "ctypedef", "from ", "import ", "@", "cimport", "__all__"))
        new = None
        if token.type == tokenize.NUMBER and token.string.isdigit():
            new = str(int(token.string) + 1)
        elif token.type in (tokenize.OP, tokenize.NAME):
            new = OTHERS.get(token.string)
        # A sign, a cast or a pointer is none of the operators; `is not` and `not in` are told as one by others.
        binary = before.isidentifier() or before[-1:] in ")]}\"'" or before.isdigit()
        if new is not None and not declares and (token.type != tokenize.OP or binary) and before != "is":
            following = line[line.find(token.string) + len(token.string) :].lstrip()
            if token.string != "not" or not following.startswith("in "):
                yield Mutant(path, token.start[0], token.start[1], token.string, new)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.string


def nearest(path: str) -> list[str]:
    """The tests near a file."""
    for pattern, tests in NEAREST.items():
        if fnmatch.fnmatch(path, pattern):
            return [f"tests/{name}" for name in tests.split()]
    raise SystemExit(f"{path}: no tests are said to be near it")


def copied(to: Path) -> Path:
    """A copy of the tree with extension modules that are compiled fast, and are imported from it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    compiled(to)
    (to / "site").mkdir()
    (to / "site" / "mindtorch").symlink_to("../mindtorch")
    for name in ("_ext", "cli"):
        (to / "mindtorch" / name).symlink_to(f"../{name}")
    return to


def compiled(tree: Path) -> bool:
    """Compile what changed."""
    env = {**os.environ, "GENIE_BUILD": "quick"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, check=False).returncode == 0


def passes(tree: Path, tests: list[str], limit: float) -> bool | None:
    """Whether the tests pass in the tree; None where they take longer than `limit` seconds."""
    env = {**os.environ, "PYTHONPATH": str(tree / "site"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    process = subprocess.Popen(
        command, cwd=tree, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(limit) == 0
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()


class Trial:
    """Trees in which mutants are tried, as many at a time as there are trees."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(jobs):
            self.trees.put(copied(folder / str(job)))
        self.seconds: dict[tuple[str, ...], float] = {}

    def limit(self, tree: Path, tests: list[str]) -> float:
        """Five times what the tests take on what is right, which they must pass."""
        key = tuple(tests)
        if key not in self.seconds:
            begun = time.monotonic()
            if not passes(tree, tests, 1800):
                raise SystemExit(f"expected tests that pass as they are, got failures in {' '.join(tests)}")
            self.seconds[key] = time.monotonic() - begun
        return 5 * self.seconds[key] + 30

    def end_of(self, mutant: Mutant) -> str:
        """What becomes of it: "killed", "survived" or "invalid"."""
        tree, tests = self.trees.get(), nearest(mutant.path)
        modules = {path: path.read_bytes() for path in (tree / "_ext").glob(f"{Path(mutant.path).stem}.*.so")}
        try:
            limit = self.limit(tree, tests)
            before = mutant.apply(tree)
            try:
                if mutant.path.endswith(".pyx") and not compiled(tree):
                    return "invalid"
                return "survived" if passes(tree, tests, limit) else "killed"
            finally:
                (tree / mutant.path).write_text(before)
                for path, held in modules.items():
                    path.unlink(missing_ok=True)  # a process may still have it mapped
                    path.write_bytes(held)
        finally:
            self.trees.put(tree)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="so many valid mutants")
    parser.add_argument("--seed", type=int, default=0, help="decides which")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many at a time")
    parser.add_argument("--only", default="*", help="files to change, a pattern: '_ext/keys.pyx'")
    parser.add_argument("--least", type=float, default=90.0, help="per cent that must be noticed")
    asked = parser.parse_args()
    paths = [*(ROOT / "_ext").glob("*.pyx"), *(ROOT / "mindtorch" / "engine").rglob("*.py")]
    names = sorted(str(path.relative_to(ROOT)) for path in paths)
    drawn = [each for name in names if fnmatch.fnmatch(name, asked.only) for each in mutants(name)]
    random.Random(asked.seed).shuffle(drawn)
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as threads:
        trial = Trial(Path(folder), asked.jobs)
        rest = iter(drawn)
        while asked.sample > (done := ends["killed"] + ends["survived"]):
            batch = [mutant for mutant, _ in zip(rest, range(min(asked.sample - done, 4 * asked.jobs)))]
            if not batch:
                break
            for mutant, end in zip(batch, threads.map(trial.end_of, batch)):
                ends[end] += 1
                line = (ROOT / mutant.path).read_text().splitlines()[mutant.line - 1].strip()
                print(f"{end:8} {mutant.path}:{mutant.line}: {mutant.old!r} -> {mutant.new!r}: {line}", flush=True)
    tried = ends["killed"] + ends["survived"]
    share = 100 * ends["killed"] / max(tried, 1)
    print(f"{ends['killed']} of {tried} mutants were noticed, {share:.1f} %; {ends['invalid']} did not compile")
    return int(share < asked.least)


if __name__ == "__main__":
    sys.exit(main())
