"""Runs PyTorch's own tests on a recording device, and compares each with the same test on the CPU.

    python tests/torch_suite/run.py FOLDER [test_view_ops test_torch …] [--kind plain] [--only PATTERN]

FOLDER has PyTorch's ``test/test_*.py`` (of the version in use, or copies adapted for another accelerator) with the
helpers that they import; none of those files is in this repository. Device-generic tests run with the recording
device instead of the CPU and with the CPU's expectations (``--kind device``); all others run with it as the default
device (``--kind plain``). A test that crashes or hangs ends only its own process. ``not_applicable.toml`` lists the
tests that cannot apply, and why.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

HERE = Path(__file__).resolve().parent
REASONS = HERE / "not_applicable.toml"
DEVICE = "remote_accelerator:0"
_START = 120  # seconds that importing a test file may take
COLUMNS = ("passed", "differs", "crashed", "hung", "not applicable", "skipped", "fails on CPU")


@dataclass
class Outcome:
    """How a test went: passed, failed, skipped, crashed or hung; and the end of its error."""

    status: str
    error: str = ""
    seconds: float = 0.0


def reasons(path: Path = REASONS) -> list[tuple[str, str]]:
    """(pattern of ``file::Class.test``, reason) for tests that cannot apply."""
    rows = tomllib.loads(path.read_text())["reason"]
    return [(pattern, row["why"]) for row in rows for pattern in row["tests"]]


def why_not(test: str, rows: Iterable[tuple[str, str]]) -> str | None:
    """The reason why ``file::Class.test`` cannot apply, if there is one."""
    return next((why for pattern, why in rows if fnmatch.fnmatchcase(test, pattern)), None)


class Runner:
    """Runs one file's tests of one kind on one device, a process for as many as end well."""

    def __init__(self, file: Path, device: str, kind: str, timeout: float) -> None:
        self.file, self.device, self.kind, self.timeout = file, device, kind, timeout
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}

    def tests(self) -> list[str]:
        """``Class.test`` of every test in the file."""
        with tempfile.TemporaryDirectory() as folder:
            lines, errors, _ = self._process(Path(folder), None)
        if not lines:
            raise RuntimeError(f"{self.file.name} cannot be imported on {self.device}:\n{errors}")
        return list(lines[0]["tests"])

    def run(self, tests: list[str], show: bool = False) -> dict[str, Outcome]:
        """Every test's outcome; after one that crashes or hangs, a fresh process goes on with the rest."""
        outcomes: dict[str, Outcome] = {}
        left = list(tests)
        while left:
            with tempfile.TemporaryDirectory() as folder:
                lines, errors, hung = self._process(Path(folder), left)
            started = None
            for line in lines:
                if "start" in line:
                    started = line["start"]
                elif "test" in line:
                    outcomes[line["test"]] = Outcome(line["status"], line["error"], line["seconds"])
                    started = None
            if started is not None:
                outcomes[started] = Outcome("hung" if hung else "crashed", errors)
            elif not any("test" in line for line in lines):
                raise RuntimeError(f"{self.file.name} cannot be run on {self.device}:\n{errors}")
            left = [test for test in left if test not in outcomes]
            if show:
                print(f"  {self.file.stem} {self.device}: {len(outcomes)} of {len(tests)}", file=sys.stderr, flush=True)
        return {test: outcomes[test] for test in tests}

    def _process(self, folder: Path, tests: list[str] | None) -> tuple[list[dict[str, Any]], str, bool]:
        """One worker process: its lines, the end of its errors, and whether it was stopped for taking too long."""
        out, log = folder / "out", folder / "log"
        command = [
            sys.executable,
            str(HERE / "worker.py"),
            str(self.file),
            "--device",
            self.device,
            "--kind",
            self.kind,
            "--out",
            str(out),
        ]
        if tests is not None:
            names = folder / "tests"
            names.write_text("\n".join(tests))
            command += ["--tests", str(names)]
        out.touch()
        with log.open("wb") as errors:
            # Not where the sources are: the installed package is what is tested. A session of its own: it can be
            # stopped with everything that it started.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=folder,
                env=self.environment,
                start_new_session=True,
            )
            hung = self._wait(process, out)
        lines = [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]
        return lines, log.read_bytes()[-6000:].decode(errors="replace"), hung

    def _wait(self, process: subprocess.Popen[bytes], out: Path) -> bool:
        size, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.05)
            now = out.stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > (self.timeout if size else max(_START, self.timeout)):
                os.killpg(process.pid, 9)
                process.wait()
                return True
        return False


def compare(cpu: Outcome, ours: Outcome) -> str:
    """The column of the table that a test which applies belongs to."""
    if ours.status in ("crashed", "hung") and cpu.status != ours.status:
        return ours.status
    if cpu.status in ("failed", "crashed", "hung"):
        return "fails on CPU"  # a file of another version, or something is missing here: says nothing of the device
    if ours.status == "failed" or (ours.status == "skipped" and cpu.status == "passed"):
        return "differs"
    return ours.status


def outcomes_of(runner: Runner, tests: list[str], kept: Path | None) -> dict[str, Outcome]:
    """Outcomes of the tests, those kept from an earlier run included."""
    known: dict[str, Outcome] = {}
    if kept is not None and kept.exists():
        known = {test: Outcome(**row) for test, row in json.loads(kept.read_text()).items()}
    missing = [test for test in tests if test not in known]
    if missing:
        known |= runner.run(missing, show=True)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({test: asdict(outcome) for test, outcome in known.items()}, indent=0))
    return {test: known[test] for test in tests}


def run_file(file: Path, options: argparse.Namespace) -> tuple[Counter[str], list[str]]:
    """Counts by column, and a paragraph for each test that went another way than on the CPU."""
    rows = reasons(options.reasons)
    runners = [Runner(file, device, options.kind, options.timeout) for device in ("cpu", DEVICE)]
    tests = [test for test in runners[0].tests() if fnmatch.fnmatchcase(test, options.only)]
    why = {test: why_not(f"{file.stem}::{test}", rows) for test in tests}
    wanted = [test for test in tests if why[test] is None][options.part - 1 :: options.parts]
    results: list[dict[str, Outcome]] = []
    for runner in runners:
        kept = None
        if options.results is not None:
            part = f".{options.part}of{options.parts}" if options.parts > 1 else ""
            kept = options.results / f"{file.stem}.{options.kind}.{runner.device.partition(':')[0]}{part}.json"
            if options.again and runner.device != "cpu":
                kept.unlink(missing_ok=True)
        results.append(outcomes_of(runner, wanted, kept))
    counts: Counter[str] = Counter({"not applicable": sum(reason is not None for reason in why.values())})
    report = []
    for test in wanted:
        cpu, ours = results[0][test], results[1][test]
        column = compare(cpu, ours)
        counts[column] += 1
        if column in ("differs", "crashed", "hung"):
            report.append(f"{column}: {file.stem}::{test} (CPU: {cpu.status}; here: {ours.status})\n{ours.error}")
    return counts, report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", help="names of test files, without .py (default: all)")
    parser.add_argument("--kind", choices=("device", "plain"), default="device")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="tests to run, as Class.test, with wildcards")
    parser.add_argument(
        "--timeout", type=float, default=100, help="longest time of a test, in seconds (default: %(default)s)"
    )
    parser.add_argument("--results", type=Path, help="keep outcomes in this folder, and reuse those already there")
    parser.add_argument(
        "--again", action="store_true", help="run on the device again; reuse only the outcomes of the CPU"
    )
    parser.add_argument("--reasons", type=Path, default=REASONS, help="file of tests that cannot apply, and why")
    parser.add_argument("--part", type=int, default=1, help="which of the --parts equal parts of each file to run")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--quiet", action="store_true", help="print only the table, not the differences")
    options = parser.parse_intermixed_args(arguments)
    options.folder = options.folder.resolve()
    files = [options.folder / f"{name}.py" for name in options.files] or sorted(options.folder.glob("test_*.py"))
    table = [("file", *COLUMNS)]
    bad = 0
    for file in files:
        counts, report = run_file(file, options)
        bad += sum(counts[column] for column in ("differs", "crashed", "hung"))
        if report and not options.quiet:
            print("\n".join(report), flush=True)
        table.append((file.stem, *(str(counts[column]) for column in COLUMNS)))
        print("  ".join(f"{column} {counts[column]}" for column in COLUMNS), file.stem, file=sys.stderr, flush=True)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        print("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
