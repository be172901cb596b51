"""The comparison with eager over torch's operator database: how much of it to run, and the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("expecttest", reason="torch's operator database needs it: pip install 'mindtorch-genie[test]'")
sys.path.append(str(Path(__file__).parent))  # the harness's own modules; importlib mode leaves the path alone
sys.setrecursionlimit(max(sys.getrecursionlimit(), 3000))

import opcases  # noqa: E402
import torch  # noqa: E402

#: The slice: samples per entry, and of them those that go through every way to call the entry.
SLICE = {"most": 4, "most_ways": 1}
outcomes: list[opcases.Outcome] = []
in_layouts: dict[tuple[str, bool], list[int]] = {}  # calls and differing ones, per layout and trial


def wanted(config: pytest.Config) -> str:
    return config.getoption("--conformance")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry" not in metafunc.fixturenames:
        return
    if "dtype" not in metafunc.fixturenames:
        with_errors = [name for name, op in opcases.ENTRIES.items() if op.error_inputs_func is not None]
        metafunc.parametrize("entry", with_errors)
        return
    cases = []
    asked = metafunc.config.getoption("--dtype")
    for name, op in opcases.ENTRIES.items():
        dtypes = opcases.dtypes_of(op)
        chosen = dtypes if wanted(metafunc.config) == "full" else dtypes[:1]
        if asked:
            chosen = [d for d in dtypes if str(d).removeprefix("torch.") in asked]
        cases += [pytest.param(name, d, id=f"{name}-{str(d).removeprefix('torch.')}") for d in chosen]
    if not asked and wanted(metafunc.config) == "slice":
        cases = cases[:: getattr(metafunc.module, "EVERY", 1)]
    metafunc.parametrize(("entry", "dtype"), cases)


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> dict[str, int | None]:
    """How many samples of an entry to take."""
    return {"most": None, "most_ways": None} if wanted(request.config) == "full" else dict(SLICE)


@pytest.fixture
def report() -> Any:
    """Add an outcome to the table."""
    return outcomes.append


@pytest.fixture
def seen() -> list[opcases.Outcome]:
    """The table so far."""
    return outcomes


@pytest.fixture
def tally() -> Any:
    """Add what comparing an entry in a layout gave to the table of layouts."""

    def add(layout: str, copies: bool, count: Any) -> None:
        line = in_layouts.setdefault((layout, copies), [0, 0])
        line[0] += count.calls
        line[1] += len(count.differences)

    return add


@pytest.fixture(autouse=True)
def restored_defaults() -> Iterator[None]:
    """An operator's samples must not change torch's defaults for the next one."""
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    yield
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if in_layouts:
        terminalreporter.section("conformance: predictions in layouts")
        for (layout, copies), (calls, differing) in in_layouts.items():
            trial = "tried on copies" if copies else "as predicted"
            terminalreporter.write_line(f"{layout:14} {trial:16}{calls:9} calls{differing:7} differing")
    if not outcomes:
        return
    write = terminalreporter.write_line
    terminalreporter.section("conformance: torch's operator database, remote_accelerator against eager on the CPU")
    write(
        f"{'':12}{'entries':>9}{'calls':>9}{'recorded':>10}{'by fallback':>13}{'differing':>11}"
        f"{'recorded of those torch infers on meta':>41}"
    )
    kinds = [str(d).removeprefix("torch.") for d in opcases.DTYPES]
    for kind in (*kinds, "errors"):
        rows = [o for o in outcomes if o.dtype == kind and o.calls]
        if not rows:
            continue
        differing = sum(bool(o.differences) for o in rows)
        line = f"{kind:12}{len(rows):9}{sum(o.calls for o in rows):9}"
        if kind == "errors":
            write(f"{line}{'':23}{differing:11}")
            continue
        recorded = sum(o.recorded for o in rows)
        inferable = [o for o in rows if o.inferable]
        share = sum(o.recorded for o in inferable) / max(len(inferable), 1)
        write(f"{line}{recorded:10}{len(rows) - recorded:13}{differing:11}{f'{share:.1%} of {len(inferable)}':>41}")
    fallbacks: dict[str, set[str]] = {}
    for o in outcomes:
        for name in o.fallbacks if o.inferable and o.dtype != "errors" else ():
            fallbacks.setdefault(name, set()).add(o.entry)
    for name, entries in sorted(fallbacks.items(), key=lambda item: -len(item[1])):
        write(f"  by fallback although torch infers it: {name} in {', '.join(sorted(entries)[:6])}")
