"""SPEC C6: the picture and the page of a graph: well-formed, nothing lies on anything, nobody is asked for anything."""

from __future__ import annotations

import json
import re
import unicodedata
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
import torch
from test_boxes import PROGRAMS, transformer, unequal
from torch import nn

from mindtorch.graph import ComputationGraph, capture
from mindtorch.graph.boxes import pre_order
from mindtorch.graph.picture import boxes

SVG = "{http://www.w3.org/2000/svg}"
Rect = tuple[float, float, float, float]  # left, top, right, bottom


def rect(group: ET.Element) -> Rect:
    found = group.find(f"{SVG}rect")
    assert found is not None
    x, y, width, height = (float(found.attrib[key]) for key in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def is_in(inner: Rect, outer: Rect) -> bool:
    return outer[0] <= inner[0] and outer[1] <= inner[1] and inner[2] <= outer[2] and inner[3] <= outer[3]


def meet(one: Rect, other: Rect) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def points(way: str) -> list[tuple[float, float]]:
    """Of a path, those that it passes: many of each curve and line."""
    x = y = 0.0
    found = []
    for kind, numbers in re.findall(r"([MVC])([-\d. ]+)", way):
        at = [float(number) for number in numbers.split()]
        steps = [i / 20 for i in range(21)]
        if kind == "M":
            x, y = at
        elif kind == "V":
            found += [(x, y + (at[0] - y) * t) for t in steps]
            y = at[0]
        else:
            ends = ((x, y), (at[0], at[1]), (at[2], at[3]), (at[4], at[5]))
            for t in steps:
                parts = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
                found.append(tuple(sum(p * end[k] for p, end in zip(parts, ends, strict=True)) for k in (0, 1)))
            x, y = at[4:]
    return found


def check(text: str) -> int:
    """How many boxes a picture has, after a look at where they lie."""
    root = ET.fromstring(text)
    whole = (0.0, 0.0, float(root.attrib["width"]), float(root.attrib["height"]))
    count = 0
    todo = [(root, whole)]
    while todo:
        element, around = todo.pop()
        groups = [group for group in element.findall(f"{SVG}g") if group.find(f"{SVG}rect") is not None]
        places = [rect(group) for group in groups]
        for i, place in enumerate(places):
            assert is_in(place, around)
            assert not any(meet(place, other) for other in places[:i]), "no two boxes of a level overlap"
        lines = element.findall(f"{SVG}text")
        for line in lines:
            x, y = float(line.attrib["x"]), float(line.attrib["y"])
            wide = 6.62 * sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in line.text or "")
            assert is_in((x, y - 10, x + wide, y + 3), around), line.text
            assert not any(meet((x, y - 10, x + wide, y + 3), place) for place in places), "text lies on no box"
        for path in element.findall(f"{SVG}path"):
            for x, y in points(path.attrib["d"]):
                assert around[0] <= x <= around[2] and around[1] <= y <= around[3]
                inside_of = [p for p in places if p[0] < x < p[2] and p[1] + 0.2 < y < p[3] - 0.2]
                assert not inside_of, "an edge runs through no box"
        count += len(groups)
        todo += list(zip(groups, places, strict=True))
        if element is root:
            todo += [(group, whole) for group in root.findall(f"{SVG}g") if group.find(f"{SVG}rect") is None]
    return count


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.__name__)
def graph(request: pytest.FixtureRequest) -> ComputationGraph:
    return request.param()


@pytest.mark.parametrize("options", [{}, {"init": True}, {"depth": 0}, {"depth": 9}], ids=str)
def test_C6_svg_has_every_box_in_a_place_of_its_own(graph, options):
    text = graph.to_svg(**options)
    shown = [box for box in pre_order(boxes(graph, **options))[1:] if all(up.open for up in box.above())]
    assert check(text) == len(shown)
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_C6_svg_of_several_graphs_has_every_box_of_each():
    graphs = [(program.__name__, program()) for program in PROGRAMS]
    (title, first), *others = graphs
    assert check(first.to_svg(title=title, beside=others)) == len(graphs) + sum(
        check(graph.to_svg()) for _, graph in graphs
    )


def test_C6_svg_of_126_layers_is_one_layer():
    from test_boxes import Transformer

    model, x = Transformer(126), torch.zeros(2, 5, 16)
    with capture() as graph, torch.no_grad():
        model(x)
    text = graph.to_svg()
    assert check(text) == check(transformer().to_svg()) < 20
    assert "h.0 … h.125  126 × Block" in text and "attention 126 ×" in text and "feed-forward 126 ×" in text


def test_C6_svg_of_many_ops_in_a_row_has_them_in_parts():
    assert "part 1 of 4" in unequal().to_svg()


def test_C6_svg_draws_what_goes_around_a_block():
    root = ET.fromstring(transformer().to_svg())
    (layer,) = [group for group in root.iter(f"{SVG}g") if (line := group.find(f"{SVG}text")) is not None
                and (line.text or "").startswith("h.0 … h.11")]  # fmt: skip
    assert len(layer.findall(f"{SVG}path")) == 8 and len(layer.findall(f"{SVG}circle")) == 2
    assert sum(path.attrib["d"].count("C") == 2 for path in layer.findall(f"{SVG}path")) == 2, "two residual ones"


def test_C6_svg_of_a_part_says_what_is_left_out():
    graph = transformer().reduced(["h.3"])
    text = graph.to_svg()
    check(text)
    assert "left out: " in text and "h.3  Block" in text


# ---- names that are markup, or no text -------------------------------------------------------------------------------
EVIL = ["</script><b>", "<!-- <script>", "{{data}}{{script}}", "\\u003c'\"&amp;\u2028", "é\ud800\x00\x1b[1m", "層" * 30]


class Evil(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in EVIL:
            self._modules[name] = nn.Linear(2, 2)

    def forward(self, x):
        for module in self._modules.values():
            x = module(x).relu()
        return x


class Markup(HTMLParser):
    """The tags of a page, with their attributes, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {}
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag):
        self._within = ""

    def handle_data(self, data):
        self.raw.setdefault(self._within, []).append(data)


def test_C6_pictures_make_no_markup_of_what_the_program_calls_things():
    model = Evil()
    with capture() as graph:
        model(torch.ones(1, 2))
    assert check(graph.to_svg(depth=9)) == len(pre_order(boxes(graph))) - 1
    markup = Markup(graph.to_html(title=" ".join(EVIL)))
    assert [tag for tag, _ in markup.tags if tag in ("script", "b", "title", "style")] == [
        "title", "style", "script", "script",
    ]  # fmt: skip
    names = [line for box in json.loads(markup.raw["script"][0])["boxes"] for line in box["lines"]]
    assert any("</script><b>" in name for name in names)


def test_C6_page_has_every_box_and_asks_nobody_for_anything(graph):
    text = graph.to_html(title="model.py")
    assert "http:" not in text and "https:" not in text
    markup = Markup(text)
    for tag, attributes in markup.tags:
        assert not set(attributes) & {"src", "srcset", "data", "action", "poster", "background"}, tag
        assert (attributes.get("href") or "#").startswith("#") and tag not in ("link", "iframe", "object", "base"), tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
    data, script = markup.raw["script"]
    assert not re.search(r"url\(|@import|import[ (]|fetch|XMLHttp|WebSocket|EventSource|sendBeacon|Worker", script)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", script)
    (policy,) = [tags["content"] for tag, tags in markup.tags if tag == "meta" and "http-equiv" in tags]
    assert policy is not None and policy.startswith("default-src 'none'; ")
    found, order = json.loads(data), pre_order(boxes(graph))
    assert len(found["boxes"]) == len(order) and found["title"] == "model.py"
    for entry, box in zip(found["boxes"], order, strict=True):
        assert [order[child] for child in entry.get("children", [])] == box.children
        assert entry["kind"] == box.kind and entry.get("open", False) == box.open
        for source, target in entry.get("edges", []):
            assert {source, target} <= {number for number, _, _ in entry["cells"]}
