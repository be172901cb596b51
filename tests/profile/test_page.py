"""C2: the page (`--html`): its figures are the report's, it asks nobody for anything, nothing in it becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from mindtorch.base import document
from mindtorch.profile import write_html
from mindtorch.profile.cost import targets
from mindtorch.profile.estimate.estimator import Estimator
from mindtorch.profile.measure import peak
from mindtorch.profile.report import flame_boxes, page

VIEWER = Path(page.__file__).with_name("viewer")
EVIL = [
    "</script><b>",
    "<!-- <script>",
    "{{data}}{{script}}",
    "\\u003c'\"&amp;\u2028",
    "é\ud800",
    "\x1b[31mred",
    "\u202egnp",
]
SHOWN = [
    "</script><b>",
    "<!-- <script>",
    "{{data}}{{script}}",
    "\\u003c'\"&amp;\ufffd",
    "é\ufffd",
    "\ufffd[31mred",
    "\ufffdgnp",
]


class Markup(HTMLParser):
    """The tags of a page, with their attributes, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, str]] = []
        self.comments: list[str] = []
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag):
        self._within = ""

    def handle_data(self, data):
        if self._within in ("script", "style", "title"):
            self.raw.append((self._within, data))

    def handle_comment(self, data):
        self.comments.append(data)


def data_of(path):
    markup = Markup(path.read_text(encoding="utf-8"))
    (text,) = [data for tag, data in markup.raw if tag == "script" and data.startswith("{")]
    return json.loads(text)


def rows(table):
    return [dict(zip(table["fields"], values, strict=True)) for values in table["rows"]]


def check_sums(found, report):
    """The header, the roots of the flame graphs, and the sums of what each row has itself: one figure."""
    total, flops = report["totals"]["time_s"], report["totals"]["flops"]
    assert found["report"]["totals"] == report["totals"]
    for flame in found["flames"].values():
        assert sum(flame["ns"]) == round(total * 1e9) and sum(flame["flops"]) == flops
        assert len({len(flame[key]) for key in ("depth", "frame", "ns", "flops")}) == 1
    for table, key in (("ops", "self_s"), ("modules", "self_s"), ("lines", "self_s"), ("phases", "time_s")):
        rest = found[table].get("rest", {})
        mine = sum(row.get(key) or 0 for row in rows(found[table])) + rest.get(key, 0)
        assert mine == pytest.approx(total, rel=1e-9), table
        if table != "modules":
            mine = sum(row.get("flops") or 0 for row in rows(found[table])) + rest.get("flops", 0)
            assert mine == flops, table
    modules = rows(found["modules"])
    rest = found["modules"].get("rest", {"self_flops": 0})
    assert sum(row["self_flops"] for row in modules) + rest["self_flops"] == flops
    if "rest" not in found["modules"]:
        assert sum(row["total_s"] for row in modules if row["depth"] == 0) == pytest.approx(total, rel=1e-9)


@pytest.fixture
def trained(record, training):
    return record(lambda: training(layers=4), lines=True, shapes=True)


def test_C2_page_holds_the_reports_figures(trained, tmp_path):
    report, profiler = trained
    write_html(report, profiler.recording(), tmp_path / "p.html")
    found = data_of(tmp_path / "p.html")
    check_sums(found, report)
    for key, value in report.items():
        if key not in ("modules", "ops", "lines", "shapes", "models"):
            assert found["report"][key] == json.loads(json.dumps(value)), key
    for mine, theirs in zip(rows(found["ops"]), report["ops"], strict=True):
        named = not theirs["name"].startswith("(")
        assert mine["name"] == theirs["name"] and mine["self_s"] == theirs["self_s"]
        assert mine["calls"] == (theirs["calls"] if named else None)  # stretches of time are no calls
    assert [row["line"] for row in rows(found["lines"])] == [row["line"] for row in report["lines"]]
    shapes = rows(found["shapes"])
    assert [row["calls"] for row in shapes] == [row["calls"] for row in report["shapes"]]
    assert any(row["name"] == "aten::addmm" and "float32[16, 64]" in row["inputs"] for row in shapes)


@pytest.fixture
def estimated(training):
    """Times that are the same for equal layers."""
    with Estimator(target=targets.find("h100")) as estimator:
        training(layers=4)
    return estimator.report(), estimator


def test_C2_page_folds_what_repeats(estimated, tmp_path):
    report, estimator = estimated
    write_html(report, estimator.recording(), tmp_path / "p.html")
    found = data_of(tmp_path / "p.html")
    check_sums(found, report)
    (layers,) = [row for row in rows(found["modules"]) if row["repeated"] == 4 and row["class"] == "Block"]
    assert layers["label"] == "blocks.0-3"
    own = {row["path"]: row["total_s"] for row in report["modules"]}
    assert layers["total_s"] == pytest.approx(sum(own[f"Net.blocks.{i}"] for i in range(4)))
    names = {key: {frame[1] for frame in found["flames"][key]["frames"]} for key in ("together", "module")}
    assert "Net.blocks.0-3.attn" in names["together"] and "Net.blocks.3.attn" not in names["together"]
    assert "Net.blocks.3.attn" in names["module"]


def test_C2_page_of_an_estimate_has_memory_by_kind_and_what_a_roofline_is_drawn_from(estimated, tmp_path):
    report, estimator = estimated
    write_html(report, estimator.recording(), tmp_path / "p.html")
    memory, roofline = (data_of(tmp_path / "p.html")["report"][key] for key in ("memory", "roofline"))
    line = memory["timeline"]
    assert [sum(parts) for parts in zip(*line["categories"].values())] == line["bytes"]
    assert sum(row["bytes"] for row in memory["lines"]) == memory["peak_bytes"] == sum(memory["categories"].values())
    assert memory["lines"] == sorted(memory["lines"], key=lambda row: -row["bytes"])
    assert sum(op["about_s"] for op in roofline["ops"]) <= report["totals"]["predicted_s"] * (1 + 1e-9)
    assert sum(op["flops"] for op in roofline["ops"]) == report["totals"]["flops"]
    assert sum(op["bytes"] for op in roofline["ops"]) == roofline["bytes"]
    target = targets.find("h100")
    assert roofline["roofs"]["bytes_per_s"] == target.memory_bandwidth
    assert roofline["roofs"]["flops_per_s"]["float32, matrix units"] == target.rate("float32", True)
    for op in roofline["ops"]:  # nothing is drawn above its roof
        assert op["flops"] <= op["about_s"] * max(roofline["roofs"]["flops_per_s"].values())


def test_C2_page_asks_nobody_for_anything(trained, tmp_path):
    report, profiler = trained
    write_html(report, profiler.recording(), tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "http:" not in text and "https:" not in text
    markup = Markup(text)
    for tag, attributes in markup.tags:
        assert not set(attributes) & {"src", "srcset", "data", "action", "poster", "background"}, tag
        assert (attributes.get("href") or "#").startswith("#") and tag not in ("link", "iframe", "object", "base"), tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
    for path in (*VIEWER.iterdir(), *Path(document.__file__).with_name("viewer").iterdir()):
        code = path.read_text(encoding="utf-8")
        assert not re.search(r"url\(|@import|import[ (]|fetch|XMLHttp|WebSocket|EventSource|sendBeacon|Worker", code), (
            path
        )
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", code), path
    (policy,) = [a["content"] for tag, a in markup.tags if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'; ")
    (style,) = [data for tag, data in markup.raw if tag == "style"]
    (script,) = [data for tag, data in markup.raw if tag == "script" and not data.startswith("{")]
    for kind, part in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_C2_page_makes_no_markup_of_what_the_program_calls_things(record, tmp_path):
    class Net(torch.nn.Module):
        def __init__(self, names):
            super().__init__()
            for name in names:
                self._modules[name] = torch.nn.Linear(2, 2)

        def forward(self, x):
            for name, module in self._modules.items():
                with torch.profiler.record_function(name.encode(errors="replace").decode()):
                    x = module(x)
            return x

    tags = {}
    for which, names in (("plain", ["a"]), ("evil", EVIL)):
        report, profiler = record(lambda names=names: Net(names)(torch.ones(1, 2)), lines=True, shapes=True)
        report["command"] = list(names)
        report["warnings"] += names
        for row in report["lines"]:
            row["source"] = "".join(names)
        write_html(report, profiler.recording(), tmp_path / f"{which}.html")
        markup = Markup((tmp_path / f"{which}.html").read_text(encoding="utf-8"))
        tags[which] = [tag for tag, _ in markup.tags]
        assert len(markup.comments) == 1
    assert tags["evil"] == tags["plain"]
    found = data_of(tmp_path / "evil.html")
    check_sums(found, report)
    assert [row["label"] for row in rows(found["modules"]) if row["depth"] == 1] == SHOWN
    assert found["report"]["command"] == SHOWN and [row["name"] for row in found["report"]["labels"]]
    assert {row["source"] for row in rows(found["lines"])} == {"".join(SHOWN)}


@pytest.mark.parametrize("most", [1, 3, 10])
def test_C2_page_is_bounded_and_its_sums_stay(trained, tmp_path, monkeypatch, most):
    report, profiler = trained
    monkeypatch.setattr(flame_boxes, "BOXES", most)
    monkeypatch.setattr(page, "MODULES", most)
    monkeypatch.setattr(page, "ROWS", dict.fromkeys(page.ROWS, most))
    write_html(report, profiler.recording(), tmp_path / "p.html")
    found = data_of(tmp_path / "p.html")
    check_sums(found, report)
    for table in ("ops", "lines", "shapes"):
        assert len(found[table]["rows"]) == most
        assert found[table]["rest"]["count"] == len(report[table]) - most
    assert len(found["modules"]["rows"]) <= most
    for flame in found["flames"].values():
        assert 0 < sum(frame >= 0 for frame in flame["frame"]) <= most
        assert flame["frame"].count(-1) <= most + 1  # one in each box, and one beside them
        assert flame["depth"][0] == 0
        assert all(after <= before + 1 for before, after in zip(flame["depth"], flame["depth"][1:]))


def test_C2_page_lists_end_and_say_so(trained, tmp_path):
    report, profiler = trained
    report["warnings"] = [f"warning {i}" for i in range(page.LISTED + 7)]
    report["labels"] = [{"name": f"n{i}", "calls": 1, "total_s": 0.0} for i in range(page.LISTED + 1)]
    report["lines"][0]["source"] = "x" * 10_000
    report["totals"]["bound_s"], report["steps"]["first_s"] = float("nan"), float("inf")
    write_html(report, profiler.recording(), tmp_path / "p.html")
    found = data_of(tmp_path / "p.html")
    assert len(found["report"]["warnings"]) == page.LISTED + 1 and "(7 more: " in found["report"]["warnings"][-1]
    assert "(1 more: " in found["report"]["labels"][-1]["name"]
    assert found["report"]["totals"]["bound_s"] is None and found["report"]["steps"]["first_s"] is None
    assert len(rows(found["lines"])[0]["source"]) < 300
    assert peak.POINTS < page.LISTED  # memory over time is whole


@pytest.mark.parametrize(
    ("many", "calls", "least", "most"),
    [(500, 10, 19_900, 1_000_000), pytest.param(1500, 17, 100_000, 2_000_000, marks=pytest.mark.whole)],
)
def test_C2_page_of_a_hundred_thousand_operations_is_small(record, tmp_path, many, calls, least, most):
    """Many distinct modules, lines and shapes: what makes a page large is what differs."""
    lines = [f"def f{i}(net, x):\n    return net.parts[{i}](x[:, :{i % 60 + 1}]) + {i}" for i in range(many)]
    source = tmp_path / "program_of_many_lines.py"
    source.write_text("\n".join([*lines, f"ALL = [{', '.join(f'f{i}' for i in range(many))}]"]))
    names = {}
    exec(compile(source.read_text(), str(source), "exec"), names)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList(torch.nn.Linear(i % 60 + 1, i % 7 + 1) for i in range(many))

        def forward(self, x):
            for f in names["ALL"]:
                f(self, x)

    def program():
        net = Net()
        with torch.no_grad():
            for i in range(calls):
                net(torch.ones(i + 1, 60))

    report, profiler = record(program, lines=True, shapes=True)
    assert report["totals"]["ops"] >= least
    write_html(report, profiler.recording(), tmp_path / "p.html")
    assert (tmp_path / "p.html").stat().st_size <= most
    found = data_of(tmp_path / "p.html")
    check_sums(found, report)
    assert len(report["shapes"]) > page.ROWS["shape"] and found["shapes"]["rest"]["count"]


def test_C2_page_names_equal_models_once_as_the_terminal_does(record):
    def program():
        for net in [torch.nn.Linear(3, 2) for _ in range(9)] + [torch.nn.Linear(4, 2)]:
            net(torch.ones(1, net.in_features))

    report, profiler = record(program)
    found = page.page_data(report, profiler.recording())["report"]["models"]
    assert [(row["name"], row["params"], row["times"]) for row in found] == [("Linear #10", 10, 1), ("Linear", 8, 9)]
    assert len(report["models"]) == 10, "JSON has each"
    script = (VIEWER / "page.js").read_text()
    assert script.count("report.models") == 1 and "report.model." not in script, "all that is shown is of these"
