"""SPEC C6: the page of a graph as a browser shows it. Without a Chromium these tests are left out, and say so."""

from __future__ import annotations

from pathlib import Path

from test_boxes import transformer

from mindtorch.graph.boxes import pre_order
from mindtorch.graph.picture import boxes
from tests.browsing import DRAWN, needs_browser, shown

pytestmark = needs_browser

#: What a person does, and what there is afterwards.
DOES = """(async () => {
const found = {}, heads = () => [...document.querySelectorAll(".box > button")].filter((head) => head.offsetParent);
const names = () => heads().map((head) => head.firstChild.textContent), key = (key) =>
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const layer = () => heads().find((head) => head.firstChild.textContent.startsWith("h.0"));
found.first = names();
layer().click();
found.closed = names();
layer().focus();
key("ArrowRight"); key("ArrowRight");
found.within = document.activeElement.firstChild.textContent;
key("ArrowDown");
found.next = document.activeElement.firstChild.textContent;
found.about = document.getElementById("about").textContent;
key("ArrowRight");
found.opened = names();
key("ArrowLeft"); key("ArrowLeft");
found.back = document.activeElement.firstChild.textContent;
const search = document.getElementById("search");
key("/");
found.searching = document.activeElement === search;
search.value = "h.7.attn.out";
search.dispatchEvent(new Event("input"));
await new Promise((then) => setTimeout(then, 300));
await drawn;
found.hits = document.getElementById("hits").textContent;
key("Enter");
found.shown = heads().filter((head) => head.parentNode.matches(".hit")).map((head) => head.firstChild.textContent);
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
found.overlap = [...document.querySelectorAll(".level")].filter((level) => level.offsetParent).some((level) => {
  const boxes = [...level.children].filter((child) => child.matches(".box"));
  const row = boxes.map((child) => child.getBoundingClientRect());
  return row.some((a, i) => row.some((b, j) => i < j && meet(a, b)));
});
found.paths = document.querySelectorAll(".level > svg > path").length;
return found;
})()""".replace("drawn", DRAWN)


def test_C6_page_opens_closes_and_finds_boxes(tmp_path: Path) -> None:
    graph = transformer()
    (tmp_path / "p.html").write_text(graph.to_html(title="model.py"))
    found, complaints = shown(tmp_path / "p.html", DOES)
    assert complaints == []
    at_first = [box.lines()[0] for box in pre_order(boxes(graph))[1:] if all(up.open for up in box.above())]
    assert found["first"] == at_first
    assert found["closed"] == [name for name in at_first if name not in ("norm  LayerNorm", "attn  Attention", "add",
                                                                     "feed-forward 12 ×")]  # fmt: skip
    assert found["within"] == "norm  LayerNorm" and found["next"] == "attn  Attention"
    assert found["about"].startswith("Transformer.h.0.attn\nattention, verified by running it; ")
    assert "qkv  Linear" in found["opened"] and found["back"] == "h.0 … h.11  12 × Block"
    assert found["searching"] and found["hits"].startswith("5 found") and found["shown"][0] == "out  Linear"
    assert not found["overlap"] and found["paths"] >= 2 * 8
