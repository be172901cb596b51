"""The contract and the map are in the repository, and what they name is there ("Packages and layout")."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mindtorch

ROOT = Path(__file__).resolve().parent.parent
SPEC = (ROOT / "docs" / "SPEC.md").read_text()
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
SOURCES = sorted(
    path
    for folder in ("mindtorch", "cli", "_ext", "tests", "asv_bench", "docs", "examples")
    for suffix in ("py", "pyx", "pxd", "pyi", "toml", "md", "c", "h")
    for path in (ROOT / folder).rglob(f"*.{suffix}")
)  # fmt: skip
ROW = r"[A-Z]\d{1,2}"


def rows() -> list[str]:
    return re.findall(rf"^\| ({ROW}) \|", SPEC, re.MULTILINE)


def named(text: str) -> set[str]:
    """Row ids in a text: "SPEC L7", "(SPEC C1, C2)", "SPEC D1-D3", and those of tests' names."""
    found = set(re.findall(rf"\bdef test_({ROW})_", text))
    for group in re.findall(rf"\bSPEC ((?:{ROW}\b(?:\s*(?:,|and|-|–)\s*)?)+)", text):
        found |= set(re.findall(ROW, group))
    return found


def test_layout_rows_are_written_down_once() -> None:
    found = rows()
    assert len(found) >= 60 and len(found) == len(set(found))


def test_layout_every_row_that_is_named_exists() -> None:
    known = set(rows())
    unknown = {str(path.relative_to(ROOT)): missing for path in SOURCES if (missing := named(path.read_text()) - known)}
    assert unknown == {}
    assert {"L7", "C4", "N5"} <= set().union(*(named(path.read_text()) for path in SOURCES))  # the pattern finds them


def test_layout_rows_that_are_kept_have_tests() -> None:
    tests = "".join(path.read_text() for path in SOURCES if ROOT / "tests" in path.parents)
    proved = set(re.findall(rf"\bdef test_({ROW})_", tests))
    kept = [
        row
        for row, state in re.findall(rf"^\| ({ROW}) \|.*\| ([^|]+) \|$", SPEC, re.MULTILINE)
        if state.startswith("yes")
    ]
    assert kept and [row for row in kept if row not in proved] == []


@pytest.mark.parametrize("page", PAGES)
def test_layout_what_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    paths = re.findall(r"(?:^|[ `(\[])((?:mindtorch|_ext|cli|tests|asv_bench|docs|examples|\.ci)/[\w./*-]*[\w*])", text)
    links = re.findall(r"\]\(([^)#:]+)\)|src=\"([^\":]+)\"", text)
    missing = [path for path in paths if not any(ROOT.glob(path))]
    missing += [link for pair in links for link in pair if not (ROOT / page).parent.joinpath(link).resolve().exists()]
    assert missing == []


def test_layout_the_reference_has_every_public_name() -> None:
    named = re.findall(r"^::: mindtorch\.([\w.]+)$", (ROOT / "docs" / "API.md").read_text(), re.MULTILINE)
    assert sorted([*named, "profile"]) == sorted([*mindtorch.__all__, "profiling.Profile"])
    assert all((getattr(mindtorch, name).__doc__ or "").strip() for name in mindtorch.__all__)


def test_layout_the_site_has_every_page_and_no_other() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    shown = re.findall(r"^ +- .*: (\S+\.md)$", site, re.MULTILINE)
    assert sorted(shown) == sorted(pages)


def test_layout_the_glossarys_words_are_used() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    words = [word for cell in re.findall(r"^\| ([\w ,]+) \|", text.partition("## Words")[2], re.MULTILINE)
             for word in cell.split(", ") if cell != "word"]  # fmt: skip
    code = "\n".join(path.read_text() for path in SOURCES if ROOT / "docs" not in path.parents)
    assert len(words) > 20 and [word for word in words if word not in code] == []
