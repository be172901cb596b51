"""SPEC C2, C8: reports say "1 read", not "1 reads"."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import torch

import mindtorch
from mindtorch.base.words import counted
from mindtorch.graph.text import to_text

ROOT = Path(__file__).parent.parent


def test_C8_numbers_of_things() -> None:
    assert [counted(n, "child process") for n in (None, 0, 1, 2000)] == [
        "some child processes", "0 child processes", "1 child process", "2,000 child processes",
    ]  # fmt: skip
    assert counted(80_100, "op", "80.1 k") == "80.1 k ops" and counted(1, "op", "1") == "1 op"


def test_C8_plurals_have_one_helper() -> None:
    """Nowhere else does a text choose between singular and plural by itself."""
    own = re.compile(r"""== 1 else ["']e?s["']|["']e?s["'] if |["']s["'] \* \(""")
    files = [path for folder in ("cli", "mindtorch") for path in (ROOT / folder).rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in files if own.search(path.read_text())]
    assert found == ["mindtorch/base/words.py"]


def test_C6_text_of_a_graph_leaves_nothing_to_the_collector() -> None:
    x = torch.ones(2, device="remote_accelerator:0")
    with mindtorch.capture() as graph:
        torch.cat([x, (x + 1).view(2)])
    to_text(graph)  # what is made once
    gc.collect()
    gc.disable()
    try:
        text = to_text(graph)
        assert "cat" in text and gc.collect() == 0
    finally:
        gc.enable()
