"""Says which tests come to which lines of the engine, so that a mutant is tried on those alone (tests/mutants.py).

The engine is compiled once with a probe before each statement that has mutants: `mt_reached[17] = 1`, in a file that
all processes of a test have mapped. Each test is then run once, with a look at that file after it.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import re
import sys
import time
import tokenize
from collections.abc import Callable, Collection, Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

#: In a tree: the case that runs, and until when it may.
RUNNING = Path("running")
#: A function begins, whose body may have probes.
FUNCTION = re.compile(r"(async )?def |cp?def (?!class |extern |struct |enum|union |packed |public )[^=]*\(")
#: Clauses of the statement before them.
CLAUSES = ("elif", "else", "except", "finally")
IN_C = """

cdef extern from *:
    \"\"\"
    #include <fcntl.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    static char mt_nowhere[{size}];
    static char *mt_reached = mt_nowhere;
    __attribute__((constructor)) static void mt_begin(void) {{
        const char *name = getenv("MT_REACHED");
        int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
        void *at = file < 0 ? MAP_FAILED : mmap(NULL, {size}, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (at != MAP_FAILED) mt_reached = (char *)at;
    }}
    \"\"\"
    char *mt_reached
"""
IN_PYTHON = """
import mmap, os
name = os.environ.get("MT_REACHED")
at = mmap.mmap(os.open(name, os.O_RDWR | os.O_CLOEXEC), {size}) if name else bytearray({size})
"""


class Line(NamedTuple):
    """A logical line: where it begins and ends, how far it is indented, what is in it."""

    begins: int
    ends: int
    indent: int
    text: str


def logical(text: str) -> list[Line]:
    """The logical lines of a file."""
    found, first = [], None
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            continue
        if token.type == tokenize.NEWLINE and first is not None:
            rows = range(first[0], token.end[0] + 1)
            found.append(Line(rows[0], rows[-1], first[1], "\n".join(lines[row - 1] for row in rows).strip()))
            first = None
        else:
            first = first or token.start
    return found


def places(text: str) -> dict[int, Line | None]:
    """Before which line a probe says that this one is reached; None where importing the file is enough."""
    lines, found = logical(text), dict[int, "Line | None"]()
    for k, line in enumerate(lines):
        at, inside = k, line.indent
        while lines[at].text.startswith(CLAUSES) or (at and lines[at - 1].text.startswith("@")):
            at -= 1
            while lines[at].indent > line.indent:
                at -= 1
        place: Line | None = None
        for before in reversed(lines[:at]):
            if before.indent < inside:
                inside = before.indent
                if FUNCTION.match(before.text):
                    place = lines[at]
                    break
        for row in range(line.begins, line.ends + 1):
            found[row] = place
    return found


def probed(path: Path, wanted: Collection[int], first: int, size: int) -> dict[int, int]:
    """Give a file probes, numbered from the first, for these lines of it. By line: the number; -1: wherever it is
    imported."""
    text = path.read_text()
    lines, at = text.splitlines(keepends=True), places(text)
    numbers: dict[Line, int] = {}
    found = {}
    for row in sorted(wanted):
        place = at[row]
        found[row] = -1 if place is None else numbers.setdefault(place, first + len(numbers))
    cython = path.suffix == ".pyx"
    probe = "mt_reached[{}] = 1\n" if cython else '__import__("mt_reached").at[{}] = 1\n'
    for place, number in numbers.items():
        lines[place.begins - 1] = " " * place.indent + probe.format(number) + lines[place.begins - 1]
    path.write_text("".join(lines) + (IN_C.format(size=size) if cython else ""))
    return found


class Case(NamedTuple):
    """A test: how long it took, to which lines it came."""

    name: str
    took: float
    lines: int  # a bit each

    def came_to(self, row: int) -> bool:
        return bool(self.lines >> row & 1)


class Looking:
    """A plugin of pytest's that writes down to which probes each test came."""

    def __init__(self, file: str) -> None:
        with open(file, "r+b") as opened:
            self.at = mmap.mmap(opened.fileno(), 0)
        self.cases: list[tuple[str, float, set[int]]] = []
        self.failed: set[str] = set()
        self.imported: set[int] | None = None

    def _seen(self) -> set[int]:
        seen = {number for number, one in enumerate(self.at[:]) if one}
        self.at[:] = bytes(len(self.at))
        return seen

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._seen()
        if self.imported is None:
            self.imported = before
        begun = time.perf_counter()
        yield
        self.cases.append((item.nodeid, time.perf_counter() - begun, self._seen()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


class Trying:
    """A plugin of pytest's that keeps these cases alone, in their order, and writes down which one runs, until when it
    must have ended."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = {case.name: (k, case.took) for k, case in enumerate(cases)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.cases), key=lambda item: self.cases[item.nodeid]
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        until = time.monotonic() + 10 + 10 * self.cases[nodeid][1]
        RUNNING.write_text(f"{until} {nodeid}")


def run(tests: Collection[str], plugin: object, *options: str) -> int:
    """In the tree: run these tests, as pytest does; what it gives."""
    os.environ.update(PYTHONPATH=f"{Path.cwd()}/site", PYTHONDONTWRITEBYTECODE="1", ACL_TEST_FOLDER=str(Path.cwd()))
    here = Path(__file__).resolve().parent.parent
    sys.modules.pop("tests", None)
    sys.modules["__main__"] = ModuleType("__main__")  # what a test spawns would begin by importing this file again
    sys.dont_write_bytecode = True
    sys.path[:] = [f"{Path.cwd()}/site", *(entry for entry in sys.path if Path(entry or ".").resolve() != here)]
    quick = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--messages", "400"]
    return int(pytest.main([*quick, *options, *tests], plugins=[plugin]))


def fails(cases: list[Case]) -> int:
    """In the tree: run these cases until one fails. 0 where none does."""
    code = run(dict.fromkeys(case.name.split("::")[0] for case in cases), Trying(cases), "-x")
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


def look(given: tuple[str, str]) -> int:
    """In the tree with probes: run a file of tests, and write down beside the probes what they came to."""
    test, at = given
    plugin = Looking(at)
    os.environ["MT_REACHED"] = at
    run([test], plugin)
    kept = [(name, took, seen) for name, took, seen in plugin.cases if name not in plugin.failed]
    Path(f"{at}.seen").write_bytes(pickle.dumps((kept, plugin.imported or set(), plugin.failed)))
    return 0


class Reached:
    """What tests came to, by file of the engine and file of tests; kept until one of them is another."""

    def __init__(self, root: Path) -> None:
        self.root, self.kept = root, root / "build" / "reached.pickle"
        self.known: dict[tuple[str, str], tuple[str, list[Case], int]] = {}
        with contextlib.suppress(FileNotFoundError):
            self.known = pickle.loads(self.kept.read_bytes())

    def _stamp(self, path: str, test: str) -> str:
        return sha256((self.root / path).read_bytes() + (self.root / test).read_bytes()).hexdigest()

    def look(self, wanted: dict[str, tuple[set[int], list[str]]], made: Callable[[], Any]) -> None:
        """Run the tests that are near these files (lines, tests by path) where they were not, or others, before."""
        lacking = {
            (path, test)
            for path, (_, tests) in wanted.items() for test in tests
            if self.known.get((path, test), ("",))[0] != self._stamp(path, test)
        }  # fmt: skip
        if not lacking:
            return
        size = 1 + sum(len(wanted[path][0]) for path in {path for path, _ in lacking})
        tree = made()
        at, first = {}, 1
        for path in sorted({path for path, _ in lacking}):
            at[path] = probed(tree.path / path, wanted[path][0], first, size)
            first = max(first, *(1 + number for number in at[path].values()))
        (tree.path / "site" / "mt_reached.py").write_text(IN_PYTHON.format(size=size))
        print(f"compiling {sum(path.endswith('.pyx') for path in at)} modules with {first} probes", flush=True)
        if not tree.compiles([path for path in at if path.endswith(".pyx")]):
            raise SystemExit("what has probes does not compile")
        hits = tree.path / "hits"
        for test in sorted({test for _, test in lacking}):
            hits.write_bytes(bytes(size))
            Path(f"{hits}.seen").unlink(missing_ok=True)
            begun = time.monotonic()
            if not tree.ends_well(look, (test, str(hits))):
                raise SystemExit(f"{test} ends its process, or takes too long, where nothing is changed")
            cases, imported, failed = pickle.loads(Path(f"{hits}.seen").read_bytes())
            took = time.monotonic() - begun
            print(f"{test}: {len(cases)} cases, {took:.0f} s", *(f"fails: {name}" for name in failed), flush=True)
            for path, rows in at.items():
                if (path, test) in lacking:
                    found = [
                        Case(name, took, sum(1 << row for row, number in rows.items() if number in seen))
                        for name, took, seen in cases
                    ]
                    always = sum(1 << row for row, number in rows.items() if number < 0 or number in imported)
                    self.known[path, test] = (self._stamp(path, test), found, always)
            self.kept.parent.mkdir(exist_ok=True)
            self.kept.write_bytes(pickle.dumps(self.known))

    def cases(self, path: str, row: int, tests: list[str]) -> list[Case]:
        """The tests that come to a line, in the order in which to try them: those first that came to it beyond its
        import, those of quick files before others."""
        came, others = [], []
        for test in tests:
            _, cases, always = self.known[path, test]
            near = sorted((case for case in cases if case.came_to(row)), key=lambda case: case.took)
            came.append((sum(case.took for case in near), near))
            rest = [case for case in cases if always >> row & 1 and not case.came_to(row)]
            others.append((sum(case.took for case in rest), rest))
        return [case for part in (came, others) for _, each in sorted(part, key=lambda p: p[0]) for case in each]
