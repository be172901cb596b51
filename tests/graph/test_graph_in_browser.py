"""SPEC C6: the page of a graph as a browser shows it. Without a Chromium these tests are left out, and say so."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_boxes import transformer

from mindtorch.graph.boxes import inside
from mindtorch.graph.picture import boxes

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
#: Every stage of a frame is run: the page draws its arrows when its boxes have got their sizes (a ResizeObserver).
OFFLINE = ("--headless", "--run-all-compositor-stages-before-draw", "--no-sandbox", "--disable-gpu", "--no-first-run",
           "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", "--disable-component-update",
           "--disable-sync")  # fmt: skip

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the page was shown to no browser")

#: What a person does, and what there is afterwards.
DOES = """
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
setTimeout(() => {
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
  document.body.append(Object.assign(document.createElement("pre"), { id: "out", textContent: JSON.stringify(found) }));
}, 300);
"""


def test_C6_page_opens_closes_and_finds_boxes(tmp_path: Path) -> None:
    graph = transformer()
    page = graph.to_html(title="model.py")
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    (tmp_path / "p.html").write_text(page.replace("</body>", f"<script>{DOES}</script></body>"))
    options = [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=20000"]
    command = [str(BROWSER), *OFFLINE, *options, "--window-size=1280,900", "--dump-dom", (tmp_path / "p.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    (out,) = re.findall(r'<pre id="out">(.*?)</pre>', done.stdout)
    found = json.loads(html.unescape(out))
    shown = [box.lines()[0] for box in inside(boxes(graph))[1:] if all(up.open for up in box.above())]
    assert found["first"] == shown
    assert found["closed"] == [name for name in shown if name not in ("norm  LayerNorm", "attn  Attention", "add",
                                                                     "feed-forward 12 ×")]  # fmt: skip
    assert found["within"] == "norm  LayerNorm" and found["next"] == "attn  Attention"
    assert found["about"].startswith("Transformer.h.0.attn\nattention, verified by running it; ")
    assert "qkv  Linear" in found["opened"] and found["back"] == "h.0 … h.11  12 × Block"
    assert found["searching"] and found["hits"].startswith("5 found") and found["shown"][0] == "out  Linear"
    assert not found["overlap"] and found["paths"] >= 2 * 8


def test_C6_page_runs_under_its_own_policy(tmp_path: Path) -> None:
    (tmp_path / "p.html").write_text(transformer().to_html())
    options = [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=20000"]
    command = [str(BROWSER), *OFFLINE, *options, "--dump-dom", (tmp_path / "p.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    assert 'class="box module named"' in done.stdout and "<path" in done.stdout
