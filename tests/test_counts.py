"""What recording and estimates take does not grow unless a commit says so (SPEC S5, S9, S13, S14): counts, no times."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

PLANTED = """
import sys
sys.path.insert(0, {folder!r})
import counts
{planted}
now = counts.counts({only!r} or counts.EVERY)
print(counts.json.dumps([counts.environment(), counts.differences(counts.kept() or {{}}, now)]))
"""


def found(forked: Callable[..., Any], planted: str = "", only: tuple[str, ...] = ()) -> list[str]:
    """A sentence for each count that is another than the one that is kept."""
    done = forked("-c", PLANTED.format(folder=str(ROOT / "asv_bench"), planted=planted, only=only))
    assert done.returncode == 0, done.stderr
    where, sentences = json.loads(done.stdout.splitlines()[-1])
    if where not in json.loads((ROOT / "asv_bench" / "counts.json").read_text()):
        pytest.skip(f"no counts are kept for {where}")
    return [str(each) for each in sentences]


def test_S14_counts_are_those_that_the_commit_states(forked: Callable[..., Any]) -> None:
    assert found(forked) == [], "if this is meant: python asv_bench/counts.py --write"


PERCEPTRON, ESTIMATE = "training of a perceptron", "estimate of 24 layers"
MORE_OPERATIONS = """
before = counts.torch.nn.functional.relu
counts.torch.nn.functional.relu = lambda x, inplace=False: before(x * 1)
"""
MORE_CALLS = """
exec(compile("def more(module, args): pass", counts.OURS + "/more.py", "exec"))
counts.torch.nn.modules.module.register_module_forward_pre_hook(more)
"""
EACH_LAYER = """
from mindtorch.graph.patterns import find
find.Blocks.of = lambda flow: None
"""


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        (MORE_OPERATIONS, f"{PERCEPTRON}: operations"),
        (MORE_CALLS, f"{PERCEPTRON}: calls of Python"),
        ("counts._read = lambda result: (result.sum().item(), result.mean().item())", f"{PERCEPTRON}: waits"),
        (EACH_LAYER, f"{ESTIMATE}: calls of Python for the report"),
    ],
)
def test_S14_what_was_made_slower_is_told(planted: str, told: str, forked: Callable[..., Any]) -> None:
    (sentence,) = (each for each in found(forked, planted, (told.partition(":")[0],)) if each.startswith(told + ": "))
    before, now = re.fullmatch(r"(\d+) before, (\d+) now", sentence.removeprefix(told + ": ")).groups()  # type: ignore[union-attr]
    assert int(now) > int(before) > 0
