"""Why a pattern is found where it is, and not where it is not."""

from __future__ import annotations

import difflib
from collections import Counter

from ...base.errors import UsageError
from ...base.words import counted
from ..graph import ComputationGraph
from .find import find_patterns, library

__all__ = ["check_name", "explain"]

_OFTEN = 3  # places named of each reason


def check_name(name: str) -> None:
    """Raises UsageError where no pattern has that name."""
    names = [pattern.name for pattern in library()]
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"[patterns] expected a pattern ({', '.join(names)}), got {name!r}{hint}")


def explain(graph: ComputationGraph, name: str) -> str:
    """Of a pattern's name, a line for each form that was found, and for each reason not to name a candidate so.

    Raises UsageError where no pattern has that name.
    """
    check_name(name)
    found = [each for each in find_patterns(graph) if each.pattern == name]
    said: Counter[str] = Counter()
    where: dict[str, list[str]] = {}
    for each in found:
        if each.refused:
            text = f"not one: {each.refused}"
        else:
            attributes = ", ".join(f"{key} {value}" for key, value in each.attributes.items())
            proof = "compared with a reference: same result" if each.verified else "not compared with a reference"
            text = f"{proof}{f' ({attributes})' if attributes else ''}"
        said[text] += 1
        where.setdefault(text, []).append(_place(graph, each.anchor))
    if not said:
        return f"{name}: no candidates\n"
    lines = [f"{name}: {counted(len(found), 'candidate')}"]
    for text, times in said.most_common():
        places = list(dict.fromkeys(where[text]))
        lines += [f"  {times} × {text}", *(f"      {place}" for place in places[:_OFTEN])]
        if len(places) > _OFTEN:
            lines.append(f"      and {len(places) - _OFTEN} more")
    return "\n".join(lines) + "\n"


def _place(graph: ComputationGraph, anchor: int) -> str:
    node = graph.nodes[anchor]
    return f"{node.op}, {node.module or 'outside modules'}, {node.source or 'an unknown line'}"
