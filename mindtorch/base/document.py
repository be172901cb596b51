"""Pages for a browser, which ask nobody for anything: one file each, with its data and what shows them.

The frame, the style sheet and the scripts that all pages have are in the folder `viewer` beside this file, what a kind
of page has besides in one of its own. They are put together as they are. What comes from the program is in the page
twice: in its title, escaped, and as JSON, in which no tag can begin. The scripts make text of it, never markup, and the
page's policy lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindtorch.base.words import visible

_COMMON = Path(__file__).with_name("viewer")


def document(title: str, data: Any, folder: Path, files: Sequence[str], *, tool: str, noun: str, searched: str) -> str:
    """The text of a page.

    files: of its own `folder` or the common one, style sheets and scripts, each after those that it uses. tool: what
    made it. noun: what it shows. searched: what its search looks for.
    """
    style = "".join(_read(folder, name) for name in ("page.css", *files) if name.endswith(".css"))
    script = "".join(_read(folder, name) for name in files if name.endswith(".js"))
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    parts = {
        "title": html.escape(visible(title)).encode("ascii", "xmlcharrefreplace").decode(),
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "data": json.dumps(_visible(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "tool": tool,
        "noun": noun,
        "searched": searched,
    }
    # Once: nothing within the parts is replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read(_COMMON, "page.html"))


def _visible(data: Any) -> Any:
    """The same, with no text in it that the page could not show as it is."""
    if isinstance(data, str):
        return visible(data, "\n\t")
    if isinstance(data, dict):
        return {_visible(key): _visible(value) for key, value in data.items()}
    return [_visible(each) for each in data] if isinstance(data, (list, tuple)) else data


def _read(folder: Path, name: str) -> str:
    path = folder / name
    return (path if path.exists() else _COMMON / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a content security policy names what may be in a page."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
