"""C4: which data the figures of docs/ACCURACY.md, and the intervals that follow from them, have seen."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindtorch.profile.cost import factors, op_time, targets

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The folder of the scripts, which import each other by name."""
    before = set(sys.modules)
    sys.path.insert(0, str(ROOT / "asv_bench"))
    yield
    sys.path.remove(str(ROOT / "asv_bench"))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "asv_bench")):
            del sys.modules[name]


def error(source: str, log: float) -> Any:
    import published_sources

    return published_sources.Error(source, "half", "a100", True, log)


def test_C4_each_source_counts_as_much_in_an_interval_however_many_rows_it_has(bench: None) -> None:
    import published_sources

    few, many = [error("few", 0.4), error("few", 0.4)], [error("many", 0.01 * (n % 3)) for n in range(200)]
    assert published_sources._tenths([*few, *many])[1] == pytest.approx(0.4)
    assert published_sources.interval(many)["high"] == pytest.approx(0.02)  # nothing says what another source adds
    spread = [error(str(n), n / 100) for n in range(-50, 51)]
    assert published_sources._tenths(spread) == pytest.approx((-0.4, 0.4), abs=0.01)


def test_C4_an_interval_is_so_wide_that_each_source_would_be_within_that_of_the_others(bench: None) -> None:
    import published_sources

    sources = {"a": 0.3, "b": 0.0, "c": -0.1, "d": 0.1, "e": 0.05}  # each far from the next one, and with itself at one
    rows = [error(source, at + n / 1000) for source, at in sources.items() for n in range(-5, 6)]
    found = published_sources.interval(rows)
    tenths = published_sources._tenths(rows)
    more = found["high"] - tenths[1]
    assert more > 0.05 and tenths[0] - found["low"] == pytest.approx(more, abs=1e-3)

    def covered(more: float) -> float:
        return sum(published_sources.inside(rows, source, more) for source in sources) / len(sources)  # type: ignore[misc]

    assert covered(more + 1e-6) >= 0.8 > covered(more - 0.0101)


def test_C4_inside_is_told_of_an_interval_from_the_other_sources(bench: None) -> None:
    import published_sources

    rows = [error("a", 0.5), error("a", 0.5), *(error(source, 0.01 * n) for source in "bcde" for n in range(-2, 3))]
    lines = published_sources.section(rows).splitlines()
    assert next(line for line in lines if "| a |" in line).endswith("| 0% |")
    assert next(line for line in lines if "| b |" in line).endswith("| 100% |")


def test_C4_without_a_chip_there_is_nothing_of_its_silicon(bench: None) -> None:
    import published_sources

    for chip in ("a100", "a100-40gb", "a100-pcie", "a100-pcie-40gb"):
        table = published_sources.without_silicon(factors.fitted(), chip)
        assert [(key, *kinds, *kinds["half"]) for key, kinds in table.items() if key.startswith("a100")] == [
            ("a100", "half", "program")  # of all chips
        ]
        assert {"h100", "t4", "carried", "another source"} <= table.keys()
        with factors.using(table):
            for model, kind in (
                ("product", "half"),
                ("attention", "half"),
                ("product", "single"),
                ("program", "single"),
            ):
                known = factors.of(targets.find(chip), model, kind)
                assert not known.own and "a100" not in known.source


def test_C4_held_out_rows_are_of_sizes_that_the_fit_has_not_seen(bench: None) -> None:
    import measured

    work = np.random.default_rng(1).permutation(4001).astype(float)
    same = {"chip": targets.find("t4"), "kind": "single", "seconds": work, "predict": lambda *_: work, "start": {}}
    for model, size in (("product", "flops"), ("stream", "nbytes")):
        other = "nbytes" if size == "flops" else "flops"
        part = measured.by_size(measured.Rows(model=model, **same, **{size: work, other: -work}))  # type: ignore[arg-type]
        sizes = [work[part == one] for one in range(measured.PARTS)]
        assert all(small.max() < large.min() for small, large in itertools.pairwise(sizes))
        assert max(map(len, sizes)) - min(map(len, sizes)) <= 1


def test_C4_intervals_of_whole_programs_are_the_errors_of_sources_that_were_not_fitted() -> None:
    table = factors.fitted()
    seen, not_seen, other = "another source", "carried", "geforce"
    for kind, which, chips in (
        ("half", seen, ("a100", "h100", "a100-40gb", "l40s")), ("half", not_seen, ("l4", "a10", "v100", "mi300x")),
        ("half", other, ("rtx4090", "rtx3090", "rtx3060")), ("single", seen, ("t4", "v100", "a100")),
        ("single", not_seen, ("h100", "rtx4090", "l4")),
    ):  # fmt: skip
        doubt = table[which][kind]["program"]
        for among in ("", "inference", "training"):
            low, high = doubt.get(among, (doubt["low"], doubt["high"]))
            assert low < 0 < high
            for chip in chips:
                known = factors.of(targets.find(chip), "program", kind, among)
                further = 0.05 if which == other else 0.0  # another board's clock
                expected = [-math.hypot(low, further), math.hypot(high, further)]
                assert [known.low, known.high] == pytest.approx(expected, rel=1e-12), chip
    assert {"inference", "training"} <= table["geforce"]["half"]["program"].keys()


def test_C4_the_interval_of_a_class_of_chips_is_made_from_that_class(bench: None) -> None:
    """No chip of GeForce was fitted: its interval is that of GeForce's programs, and others' has nothing of them."""
    import published_sources

    rows = [error(source, 0.01 * n) for source in "abcde" for n in range(-5, 6)]
    away = [row._replace(seen=False) for row in rows]
    theirs = [row._replace(chip="rtx3090", source="f", log=row.log + 0.3) for row in away]
    table: dict[str, Any] = {}
    published_sources.note(table, [*rows, *away, *theirs])
    assert table["another source"] == table["carried"]
    assert table["geforce"]["half"]["program"]["high"] == pytest.approx(0.34, abs=0.02)
    assert table["carried"]["half"]["program"]["high"] < 0.1
    alone: dict[str, Any] = {}
    published_sources.note(alone, [row._replace(among="training" if row.log > 0.3 else "inference") for row in theirs])
    assert alone.keys() == {"geforce"}
    place = alone["geforce"]["half"]["program"]
    assert place["training"][1] == pytest.approx(place["high"], abs=0.02) and place["inference"][1] < 0.31


def test_C4_the_doubt_of_hosts_is_what_the_published_ones_differ_by(bench: None) -> None:
    """Each counts once, and those that were looked up after the interval's commit not at all."""
    import published_hosts

    logs = [math.log(n) for n in (0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0)]
    assert published_hosts.interval(logs) == pytest.approx((math.log(0.5), math.log(2.0)))
    assert published_hosts.interval(logs[1:-1]) == (0.0, 0.0)
    page = (
        (ROOT / "docs" / "ACCURACY.md")
        .read_text()
        .partition("## Hosts that nobody measured\n")[2]
        .partition("\n## ")[0]
    )
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if "ms |" in line]
    takes = {row[1]: int(row[5].removesuffix("%")) / 100 for row in rows}
    assert takes.keys() == {row.host for row in published_hosts.ROWS} and takes.keys() > set(published_hosts.CHECKS)
    low, high = published_hosts.interval(
        [math.log(n) for host, n in takes.items() if host not in published_hosts.CHECKS]
    )
    assert (-low, high) == pytest.approx((op_time.HOST_DOUBT,) * 2, abs=0.02)


PROGRAM = """
import torch
layers = torch.nn.Sequential(*(torch.nn.Linear(512 * n, 512 * n + 512) for n in range(4, 12))).cuda().bfloat16()
x = torch.empty(4096, 2048, device="cuda", dtype=torch.bfloat16)
with torch.no_grad():
    for _ in range(3):
        layers(x)
"""


def test_C4_a_program_is_estimated_once_for_several_tables_of_factors(bench: None, tmp_path: Path) -> None:
    """As the page's command does: with the package's table, it is what ``genie profile`` says."""
    import published_sources
    from estimates import by_tables

    table = factors.fitted()
    tables = {"own": table, "away": published_sources.without_silicon(table, "a100"), "again": table}
    found = by_tables("a100", PROGRAM, tables)
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["--target", "a100", "--warmup", "1", "--steps", "1", "--json", "report.json", "program.py"]
    subprocess.run([sys.executable, "-m", "mindtorch", "profile", *words], cwd=tmp_path, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    totals = json.loads((tmp_path / "report.json").read_text())["totals"]
    assert found["own"] == found["again"] and found["own"].keys() <= totals.keys()
    assert found["own"] == pytest.approx({name: totals[name] for name in found["own"]})
    assert abs(math.log(found["away"]["about_s"] / found["own"]["about_s"])) > 0.01
    assert found["away"]["bound_s"] == found["own"]["bound_s"]


def test_C4_a_program_that_fails_has_no_estimate(bench: None) -> None:
    from estimates import by_tables

    with pytest.raises(RuntimeError, match="a program has no estimate for a100"):
        by_tables("a100", "raise SystemExit(1)", {"own": factors.fitted()})


@pytest.mark.parametrize(
    "what", ["Qwen2.5-0.5B, 6,144 tokens and 2,048 more", "DistilGPT-2, AdamW, 10 texts", "Llama 3.1 8B, FSDP, 8 cards"]
)
def test_C4_peaks_of_memory_are_those_that_were_published(bench: None, what: str) -> None:
    """Generation, training, and training on eight cards, whose gathers and reductions have streams of their own."""
    import published_memory

    row = next(row for row in published_memory.ROWS if row.what == what)
    if row.needs:
        pytest.importorskip(row.needs)
    assert published_memory.found(row) == pytest.approx(row.nbytes, rel=0.03)


def test_C4_parts_of_the_page_are_made_anew_where_they_are(bench: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import accuracy_page

    monkeypatch.setitem(accuracy_page.SECTIONS, "memory", lambda: "## Peaks\n\nnew\n")
    monkeypatch.setitem(accuracy_page.SECTIONS, "energy", lambda: "## Energy\n\nalso\n\n| x |\n")
    page = "# Page\n\n## Peaks\nold\n\n## Between\n\n## Peaks of others\n\n## Energy\nold"
    made = accuracy_page.anew(page, ["energy", "memory"])
    assert made == ("# Page\n\n## Peaks\n\nnew\n\n## Between\n\n## Peaks of others\n\n## Energy\n\nalso\n\n| x |\n")
    assert accuracy_page.anew(made, ["memory", "energy"]) == made
    with pytest.raises(SystemExit, match="no part '## Peaks'"):
        accuracy_page.anew("# Page\n\n## Peaks of others\n", ["memory"])
