"""C2: flame graphs in speedscope's format: what the file holds, and that its weights are the report's time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch

from mindtorch.profile import write_flame
from mindtorch.profile.report import stacks


def load(path):
    """The file, whose form is what speedscope's schema asks for, and the stacks of each profile with their weights."""
    flame = json.loads(path.read_text())
    assert flame["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert set(flame) <= {"$schema", "exporter", "name", "activeProfileIndex", "shared", "profiles"}
    frames = flame["shared"]["frames"]
    for frame in frames:
        assert isinstance(frame["name"], str) and set(frame) <= {"name", "file", "line", "col"}
        assert isinstance(frame.get("file", ""), str) and isinstance(frame.get("line", 1), int)
    found = {}
    for profile in flame["profiles"]:
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "nanoseconds", 0)
        samples, weights = profile["samples"], profile["weights"]
        assert len(samples) == len(weights) and all(type(ns) is int and ns > 0 for ns in weights)
        assert all(type(index) is int and 0 <= index < len(frames) for sample in samples for index in sample)
        assert sum(weights) == profile["endValue"]
        named = [tuple(frames[index]["name"] for index in sample) for sample in samples]
        assert len(set(map(tuple, samples))) == len(samples)
        found[profile["name"]] = dict(zip(named, weights))
    return flame, found


@pytest.fixture
def trained(record, training):
    return record(training, lines=True)


def test_C2_flame_holds_the_reports_time_once_by_module_and_once_by_line(trained, tmp_path):
    report, profiler = trained
    assert write_flame(report, profiler.recording(), tmp_path / "f.json") is True
    _, found = load(tmp_path / "f.json")
    assert list(found) == ["by module", "by line"]
    total = round(report["totals"]["time_s"] * 1e9)
    for weights in found.values():
        assert sum(weights.values()) == total
        by_op = Counter()
        for stack, ns in weights.items():
            by_op[stack[-1]] += ns
        assert by_op == {row["name"]: round(row["self_s"] * 1e9) for row in report["ops"] if row["self_s"]}
    own = Counter()
    for stack, ns in found["by module"].items():
        own["" if stack[0] == stacks.OUTSIDE else stack[-2]] += ns
    assert own == {row["path"]: round(row["self_s"] * 1e9) for row in report["modules"] if row["self_s"]}
    assert any(stack[:4] == ("Net", "Net.blocks", "Net.blocks.1", "Net.blocks.1.attn") for stack in found["by module"])


def test_C2_flame_by_line_leads_from_the_outermost_line_to_the_op(trained, tmp_path):
    report, profiler = trained
    write_flame(report, profiler.recording(), tmp_path / "f.json")
    flame, found = load(tmp_path / "f.json")
    (stack,) = {stack for stack in found["by line"] if stack[-1] == "aten::gelu"}
    functions = [frame.partition(" ")[0] for frame in stack]
    own = [name for name in functions if name in ("program", "forward")]
    assert own == ["program", "forward", "forward"]  # the function, Net's, Block's
    assert "conftest.py" in stack[-2]  # the line that calls nn.GELU
    places = {(frame["file"], frame["line"]) for frame in flame["shared"]["frames"] if "file" in frame}
    assert all(file and line > 0 for file, line in places)
    here = {row["line"] for row in report["lines"] if row["file"] == __file__}
    assert here and here <= {line for file, line in places if file == __file__}


def test_C2_flame_of_modules_is_in_the_order_of_their_calls(trained):
    _, profiler = trained
    found = stacks.by_module(profiler.recording())
    paths = [found.frames[index].name for stack in found.weights for index in stack if len(stack) > 1]
    seen = [path for path in dict.fromkeys(paths) if path.startswith("Net")]
    assert seen.index("Net.embed") < seen.index("Net.blocks") < seen.index("Net.blocks.0.norm")
    assert seen.index("Net.blocks.0.down") < seen.index("Net.blocks.1") < seen.index("Net.head")
    assert paths.index(stacks.OUTSIDE) > paths.index("Net.head")


def test_C2_flame_names_what_was_waited_for_as_the_table_of_ops_does(record, tmp_path):
    def program():
        for _ in range(2):
            torch.ones(2)
            subprocess.run([sys.executable, "-c", "import time; time.sleep(0.2)"], check=True)

    report, profiler = record(program, lines=True)
    write_flame(report, profiler.recording(), tmp_path / "f.json")
    _, found = load(tmp_path / "f.json")
    waited = next(row["self_s"] for row in report["ops"] if row["name"] == "(waiting for child processes)")
    assert waited > 0
    for weights in found.values():
        ns = sum(ns for stack, ns in weights.items() if stack[-1] == "(waiting for child processes)")
        assert ns == round(waited * 1e9)
    assert sum(found["by line"].values()) == round(report["totals"]["time_s"] * 1e9)


def test_C2_flame_says_what_a_loader_took_as_the_table_of_ops_does(record, tmp_path):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            time.sleep(0.05)
            return torch.ones(8)

    def program():
        model = torch.nn.Linear(8, 8)
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=2):
            model(batch)

    report, profiler = record(program, lines=True)
    write_flame(report, profiler.recording(), tmp_path / "f.json")
    _, found = load(tmp_path / "f.json")
    rows = {row["name"]: round(row["self_s"] * 1e9) for row in report["ops"] if row["name"][0] == "("}
    assert rows["(waiting for a DataLoader)"] > 0.15e9
    for weights in found.values():
        between = Counter()
        for stack, ns in weights.items():
            between.update({stack[-1]: ns} if stack[-1] in rows else {})
        assert between == rows


def test_C2_flame_of_a_run_in_which_nothing_took_time_is_empty_and_says_so(trained, tmp_path, monkeypatch):
    report, profiler = trained
    seen = profiler.recording()
    for stage in seen.stages.values():
        stage.rows = [(*row[:5], 0, row[6]) for row in stage.rows]
        stage.waits.clear()
    assert write_flame(report, seen, tmp_path / "f.json") is False
    _, found = load(tmp_path / "f.json")
    assert found == {"by module": {}, "by line": {}}


def test_C2_flame_takes_any_name(trained, tmp_path):
    report, profiler = trained
    write_flame({**report, "command": ['</script>"', "\udc80\n"]}, profiler.recording(), tmp_path / "f.json")
    assert load(tmp_path / "f.json")[0]["name"] == 'genie profile </script>" \udc80\n'
