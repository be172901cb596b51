"""Changes one token of the engine at a time, and lists the changes that the closest tests do not notice.

``python -m tests.mutants --sample 300 --jobs 2`` at the root of a checkout in which mindtorch is installed for
development. Each mutant is one token: ``<`` for ``<=``, ``and`` for ``or``, a number one greater … in a copy of the
tree. A mutant that fails to compile is replaced by another one. Prints each survivor and a table. Exit code 1 if less
than ``--least`` per cent were noticed.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import fnmatch
import io
import itertools
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, which every test would do again
import Cython.Build  # noqa: F401
import hypothesis  # noqa: F401
import setuptools.command.build_ext  # noqa: F401
import torch  # noqa: F401

from .compiling import build
from .nearest import nearest
from .reached import RUNNING, Case, Reached, fails

ROOT = Path(__file__).resolve().parent.parent
#: Seconds until a process must have ended that has not said until when its test must.
PATIENCE = 600
#: A token, and what stands in its place.
OTHERS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "//": "*", "&": "|",
    "|": "&", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "and": "or", "or": "and", "True": "False",
    "False": "True", "not": "", "break": "continue", "continue": "break",
}  # fmt: skip


CAST = re.compile(r"<\s*[A-Za-z_][\w. ]*[* ]*\??>")
#: Where one more is more memory than is needed, and nothing else: `calloc(n, 1)`, `2 * sizeof(int)`, what functions of
#: ours make room for, the length of an array that is declared, and the length that memory is about to grow to.
ROOMY = re.compile(
    r"\b(malloc|calloc|realloc|_?room|reserve)\(([^()/-]|\(([^()/-]|\([^()/-]*\))*\))*(\)|$)"
    r"|^\s*cdef \w+ \*?\w+\[[\w +*]+\]|^\s*(cdef (size_t|uint32_t) )?cap = [^/]+$|^\s*wanted = max\([^/]+$"
)
#: What a function in C gives where it raises.
RAISES = re.compile(r"\bexcept\s?\??\s?-?\s?\d+( nogil)?:$")
#: A function in C that gives a number only since it may raise.
MAY_RAISE = re.compile(
    r"^( *)cdef (inline )?int [^\n]*(?:\n[^\n]*[^:\n])*?\) except -1( nogil)?:\n((?:\1 .*\n|\n)*)", re.M
)
#: `a - b if a > b else 0`, `a if a < b else b`: the same where both are equal, whatever is asked.
EITHER = re.compile(
    r"([\w.]+) - ([\w.]+) if (\1 >=? \2|\2 <=? \1) else 0\b|([\w.]+) if \4 [<>]=? ([\w.]+) else \5(?![\w.(\[])"
    r"|([\w.]+) if ([\w.]+) [<>]=? \6 else \7(?![\w.(\[])"
)
#: `a == ONE or a == OTHER` of a number in C: a switch, which Cython makes of `a == ONE and a == OTHER`, too.
SWITCHES = re.compile(r"\b(\w+) == ([A-Z]+_[A-Z]+|\d+)( or \1 == ([A-Z]+_[A-Z]+|\d+))+")
#: What a function in C hashes: of equal keys it must be equal, and whatever else it is, the tables find them.
MIXES = re.compile(r"\*=? *(<\w+> ?)?0x[0-9A-F]{16}")
HASHES = re.compile(r"^( *)cdef (?:inline )?uint\d+_t \w*hash\w*\(([^)]*\)[^\n]*:\n(?:\1 .*\n|\n)*)", re.M)
#: A round limit that somebody chose and gave a name: `MOST = 4096`, `MOST = 64 << 20`. One more is as good: what is
#: compared with it has mutants of its own, and so has the shift.
CHOSEN = re.compile(r"^\s*_?[A-Z][A-Z_]* = (64|128|256|512|1024|2048|4096|\d+ << [123]0)\s*(#.*)?$")


#: What C declares, which Cython only repeats.
EXTERN = re.compile(r"^cdef extern [^\n]*:\n((?: .*\n|\n)*)", re.M)


class Mutant(NamedTuple):
    """A token of a file, and what it becomes."""

    path: str
    line: int
    column: int
    old: str
    new: str

    def apply(self, tree: Path) -> None:
        """Write the changed file."""
        file = tree / self.path
        lines = file.read_text().splitlines(keepends=True)
        text = lines[self.line - 1]
        assert text[self.column :].startswith(self.old)
        lines[self.line - 1] = text[: self.column] + self.new + text[self.column + len(self.old) :]
        file.write_text("".join(lines))


def all_is_well(text: str) -> set[int]:
    """Lines that give 0 where a function may raise and gives nothing else: nobody looks at what it gives."""
    found: set[int] = set()
    for function in MAY_RAISE.finditer(text):
        first = text.count("\n", 0, function.start(4)) + 1
        given = {
            first + k: line.split("#")[0].strip()
            for k, line in enumerate(function[4].splitlines()) if line.lstrip().startswith("return")
        }  # fmt: skip
        if set(given.values()) <= {"return 0"}:
            found.update(given)
    return found


def within(blocks: re.Pattern[str], text: str) -> set[int]:
    """Lines of such blocks, whose last group is what is in them."""
    found: set[int] = set()
    for block in blocks.finditer(text):
        first = text.count("\n", 0, block.start(blocks.groups)) + 1
        found.update(range(first, first + block[blocks.groups].count("\n")))
    return found


def mutants(path: str) -> Iterator[Mutant]:
    """All of a file, in Python or Cython: what tokens may become. Declarations have none worth a try, and nothing
    depends on whether `zip` looks at what is as long as it must be."""
    text = (ROOT / path).read_text()
    lines = text.splitlines()
    before = two_before = ""
    unread, others = all_is_well(text), within(HASHES, text) | within(EXTERN, text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        whole = lines[min(token.start[0], len(lines)) - 1]
        line = whole.strip()
        declares = line.startswith(("cdef extern", "ctypedef", "from ", "import ", "@", "cimport", "__all__"))
        declares |= token.string == "|" and re.search(r"\| None\b|^(async )?def |->", line) is not None
        declares |= (two_before, before) == ("strict", "=")
        known = (CAST, RAISES, EITHER) if token.string[:1] in ("<", ">") else (CAST, RAISES)
        declares |= any(at.start() <= token.start[1] < at.end() for p in known for at in p.finditer(whole))
        declares |= (
            token.string == "or"
            and path.endswith(".pyx")
            and any(at.start() < token.start[1] < at.end() for at in SWITCHES.finditer(whole))
        )
        declares |= token.start[0] in others or (MIXES.search(whole) is not None and token.string != "&")
        new = None
        if token.type == tokenize.NUMBER and token.string.isdigit():
            declares |= token.start[0] in unread or CHOSEN.match(whole) is not None
            declares |= any(call.start() < token.start[1] < call.end() for call in ROOMY.finditer(whole))
            new = str(int(token.string) + 1)
        elif token.type in (tokenize.OP, tokenize.NAME):
            new = OTHERS.get(token.string)
        # A cast or a pointer is none of the operators; `is not` and `not in` are told as one by others.
        binary = before.isidentifier() or before[-1:] in ")]}\"'" or before.isdigit()
        binary &= before not in ("noexcept", "nogil")
        declares |= before == "is" or (token.string == "not" and whole[token.end[1] :].lstrip().startswith("in "))
        if new is not None and not declares and (token.type != tokenize.OP or binary):
            yield Mutant(path, token.start[0], token.start[1], token.string, new)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before, two_before = token.string, before


def copied(to: Path) -> Path:
    """A copy of the tree, and of what was compiled in it, that is imported from there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modules = [str(path.relative_to(ROOT)) for path in (ROOT / "_ext").glob("*.so")]
    for name in [*filter(None, listed.split("\0")), *modules]:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    for source in (to / "_ext").glob("*.pyx"):
        if not any(to.glob(f"_ext/{source.stem}.*.so")):
            raise SystemExit(f"{source.name} is not compiled here: pip install -c constraints.txt -e '.[dev]'")
    compileall.compile_dir(to / "mindtorch", quiet=2)
    (to / "site").mkdir()
    (to / "site" / "mindtorch").symlink_to("../mindtorch")
    for name in ("_ext", "cli"):
        (to / "mindtorch" / name).symlink_to(f"../{name}")
    return to


def compiles(paths: list[str]) -> int:
    """In the tree: compile these modules alone. 0 where that works."""
    os.environ["GENIE_BUILD"] = "quick"
    build("build_ext --inplace", [Path(path).stem for path in paths])
    return 0


class Tree:
    """A copy of the tree, in which work is done in forks of a process that has imported torch already."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = copied(Path(self.folder.name))

    def ends_well(self, work: Callable[[Any], int], given: object) -> bool:
        """Whether this gives 0 in the tree, in a process of its own, in the time that it, or its tests, are given."""
        running = self.path / RUNNING
        running.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(BaseException):  # how it ended is all that is asked
                os.setsid()
                os.chdir(self.path)
                for stream in range(3):
                    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
                code = work(given)
            os._exit(code)
        until = time.monotonic() + PATIENCE
        ended, status = os.waitpid(child, os.WNOHANG)
        while not ended and time.monotonic() < until:
            time.sleep(0.02)
            ended, status = os.waitpid(child, os.WNOHANG)
            if running.exists() and (told := running.read_text()):
                until = float(told.split()[0])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it has begun
        if not ended:
            os.waitpid(child, 0)
        return bool(ended) and status == 0

    def compiles(self, paths: list[str]) -> bool:
        """Whether these modules compile."""
        return self.ends_well(compiles, paths)


class Trial(Tree):
    """A tree in which mutants are tried, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: set[str] = set()  # behind others that came to the line, in the tree as it is

    def end_of(self, mutant: Mutant, cases: list[Case]) -> str:
        """What becomes of it where it meets these cases: "killed", "survived", "unseen" (there are none), "invalid",
        or "untold" where tests fail without it, too."""
        modules = {path: path.read_bytes() for path in self.path.glob(f"_ext/{Path(mutant.path).stem}.*.so")}
        mutant.apply(self.path)
        try:
            if mutant.path.endswith(".pyx") and not self.compiles([mutant.path]):
                return "invalid"
            if not cases:
                return "unseen"
            if self.ends_well(fails, cases):
                return "survived"
        finally:
            shutil.copy2(ROOT / mutant.path, self.path / mutant.path)  # as old as it was, for what Python has compiled
            if mutant.path.endswith(".pyx"):
                for path, held in modules.items():
                    path.unlink(missing_ok=True)  # a process may still have it mapped
                    path.write_bytes(held)
        running = self.path / RUNNING
        if not running.exists():
            return "killed"  # what the cases import fails, which did not when they were looked at
        last = [case.name for case in cases].index(running.read_text().split(" ", 1)[1])
        if cases[last].name not in self.passed:
            if not any(self.ends_well(fails, cases[: last + 1]) for _ in range(2)):
                return "untold"
            self.passed.add(cases[last].name)
        return "killed"


_trial: Trial
_reached = Reached(ROOT)
_most = math.inf  # seconds


def begin() -> None:
    """In each process that tries mutants."""
    global _trial
    _trial = Trial()


def end_of(mutant: Mutant) -> tuple[str, float]:
    """What becomes of it, and in how many seconds."""
    begun = time.monotonic()
    cases = _reached.cases(mutant.path, mutant.line, nearest(mutant.path))
    took = itertools.accumulate(case.took for case in cases)
    cases = [case for case, seconds in zip(cases, took) if seconds <= _most or case is cases[0]]
    return _trial.end_of(mutant, cases), time.monotonic() - begun


def main() -> int:
    global _most
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="number of valid mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed that selects the mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of mutants to run at a time")
    parser.add_argument("--only", default="*", help="pattern of files to change, such as '_ext/keys.pyx'")
    parser.add_argument("--least", type=float, default=90.0, help="least per cent of mutants that tests must notice")
    parser.add_argument("--most", type=float, default=_most, help="seconds of tests that each mutant meets at most")
    asked = parser.parse_args()
    _most = asked.most
    paths = [*(ROOT / "_ext").glob("*.pyx"), *(ROOT / "mindtorch" / "engine").rglob("*.py")]
    names = sorted(str(path.relative_to(ROOT)) for path in paths)
    drawn = [each for name in names if fnmatch.fnmatch(name, asked.only) for each in mutants(name)]
    lines: dict[str, set[int]] = {}
    for mutant in drawn:
        lines.setdefault(mutant.path, set()).add(mutant.line)
    random.Random(asked.seed).shuffle(drawn)
    drawn = drawn[: asked.sample + asked.sample // 4 + 1]  # one in five may not compile, or be untold
    lines = {path: rows for path, rows in lines.items() if any(mutant.path == path for mutant in drawn)}
    _reached.look({path: (rows, nearest(path)) for path, rows in lines.items()}, Tree)
    ends: Counter[str] = Counter()
    with ProcessPoolExecutor(asked.jobs, get_context("fork"), begin) as processes:
        rest = iter(drawn)
        while asked.sample > (done := ends["killed"] + ends["survived"] + ends["unseen"]):
            batch = [mutant for mutant, _ in zip(rest, range(min(asked.sample - done, 4 * asked.jobs)))]
            if not batch:
                break
            for mutant, (end, took) in zip(batch, processes.map(end_of, batch)):
                ends[end] += 1
                line = (ROOT / mutant.path).read_text().splitlines()[mutant.line - 1].strip()
                at = f"{mutant.path}:{mutant.line}:{mutant.column + 1}"
                print(f"{end:8} {took:4.0f} s {at}: {mutant.old!r} -> {mutant.new!r}: {line}", flush=True)
    tried = ends["killed"] + ends["survived"] + ends["unseen"]
    share = 100 * ends["killed"] / max(tried, 1)
    print(f"{ends['killed']} of {tried} mutants were noticed, {share:.1f} %; {ends['invalid']} did not compile")
    print(f"{ends['untold']} were killed by tests that failed without them, too, and count for nothing")
    return int(share < asked.least)


if __name__ == "__main__":
    sys.exit(main())
