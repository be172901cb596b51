"""C2: what the columns of a report are is written down."""

from __future__ import annotations

import re
from pathlib import Path

from mindtorch.profile.report import columns


def test_C2_the_page_says_what_each_column_of_the_operations_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "PROFILE.md").read_text()
    (table,) = (part for part in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE) if "`a call`" in part)
    said = set(re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
    assert said == {column.title for column in columns.OPS if column.title}
