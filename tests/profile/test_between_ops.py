"""C5: a step that is slower between its operations says so, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mindtorch.profile import Profiler
from mindtorch.profile.report.difference import compare

PROGRAM = """
import time
import torch

net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(7):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
SLOWER = PROGRAM + "    time.sleep(0.05)\n"


def _report(text: str, path: Path) -> dict[str, Any]:
    path.parent.mkdir()
    path.write_text(text)
    with Profiler(lines=True) as profiler:
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    found: dict[str, Any] = profiler.report()
    return found


def test_C5_what_a_step_takes_between_operations_is_put_on_its_line(tmp_path: Path, alone: None) -> None:
    before = _report(PROGRAM, tmp_path / "a" / "train.py")
    after = _report(SLOWER, tmp_path / "b" / "train.py")
    found = compare(before, after, ("a.json", "b.json"))
    assert found["totals"]["time"]["beyond_noise"] is True and found["totals"]["time"]["difference"] > 0.045
    (note,) = [note for note in found["notes"] if "between operations" in note]
    assert note.startswith("a step takes ") and " longer, " in note and note.endswith(" of it at train.py:11")
    assert not any("that may be the machine" in note for note in found["notes"])
    back = compare(after, before, ("b.json", "a.json"))
    (note,) = [note for note in back["notes"] if "between operations" in note]
    assert " less, " in note and note.endswith(" of it at train.py:11 (before)")
