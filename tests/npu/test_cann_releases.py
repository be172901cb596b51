"""N1, N5: the page says of every function of CANN that is looked up in which releases its declaration was read."""

from __future__ import annotations

import re
from pathlib import Path

from mindtorch.npu.operators import OPERATORS

ROOT = Path(__file__).resolve().parents[2]
LOOK_UPS = re.compile(r'(?:\.need|\.want|\bfind)\(b"(\w+)"')


def test_N1_the_releases_that_were_read_are_told_of_every_function_that_is_looked_up() -> None:
    bound = [name for source in (ROOT / "_ext").glob("*.pyx") for name in LOOK_UPS.findall(source.read_text())]
    assert {"aclInit", "aclrtCtxSetSysParamOpt", "aclCreateTensor", "aclrtMemcpyAsync"} <= set(bound)
    wanted = {*bound, *(f"aclnn{name}" for name in OPERATORS)}
    page = (ROOT / "docs" / "NPU.md").read_text()
    section = page[page.index("## CANN releases whose headers were read") :].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    assert len(named) == len(set(named)) and set(named) == wanted
    assert all(re.search(r"\d\.\d|2026-08", row.split(" | ")[1]) for row in rows)
