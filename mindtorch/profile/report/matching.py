"""Which modules and lines of one report are those of another, through renames, inserted layers and edited files.

Modules are compared level by level, below modules that are each other's: a name that says something decides, then
class, parameters, ops and FLOPs, in the order of the run. What finds nobody there may be wrapped, unwrapped or moved.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_INDEXED = re.compile(r"\d+|.* #\d+")  # names that say a place, not a purpose
_TABLE = 250_000  # pairs of siblings that are weighed
_ALIKE = 0.5  # of the features of a module or of the characters of a line
_DEEP = 3  # levels below which nobody looks for what was wrapped
_SIBLINGS = 12  # lines between two known ones that are compared by their text


@dataclass(eq=False)
class Module:
    """A row of a report's table of modules. content: the same number for the same figures, here and below."""

    path: str
    label: str
    cls: str
    figures: dict[str, Any]
    children: list[Module] = field(default_factory=list)
    content: int = 0
    shape: int = 0

    def below(self, levels: int) -> Iterable[Module]:
        """Those below it, the nearest first."""
        row = self.children
        for _ in range(levels):
            yield from row
            row = [child for module in row for child in module.children]

    def features(self) -> tuple[Any, ...]:
        """What two modules may have in common; the shape is that of the tree below."""
        return self.figures.get("params"), self.figures.get("flops"), self.figures.get("ops"), self.shape


def tree(rows: Sequence[dict[str, Any]], contents: dict[Any, int]) -> Module:
    """The rows of a report, in pre-order, below a root; contents: numbers of what was seen, of both reports."""
    root = Module("", "", "", {})
    trail: list[tuple[int, Module]] = [(-1, root)]
    order = []
    for row in rows:
        if not row["path"]:  # what is outside every module
            continue
        while trail[-1][0] >= row["depth"]:
            trail.pop()
        above = trail[-1][1]
        label = row["path"].removeprefix(f"{above.path}.") if above.path else row["path"]
        module = Module(row["path"], label, row["class"], row)
        above.children.append(module)
        trail.append((row["depth"], module))
        order.append(module)
    for module in reversed(order):
        own = tuple(module.figures[name] for name in ("calls", "ops", "flops", "params"))
        for name, of, figures in (("content", "content", own), ("shape", "shape", ())):
            key = (name, module.cls, figures, tuple(getattr(child, of) for child in module.children))
            setattr(module, name, contents.setdefault(key, len(contents)))
    return root


def modules(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> dict[str, str]:
    """{path: path of the same module in the other report}, of those that have one; outside modules is the same."""
    contents: dict[Any, int] = {}
    old, new = tree(before, contents), tree(after, contents)
    found: dict[str, str] = {"": ""}
    _below([(old, new)], found)
    taken = set(found.values())
    waiting: dict[int, list[list[Module]]] = defaultdict(list)
    for module in _all(new):
        whole = _all(module, itself=True)
        if module.figures["ops"] and taken.isdisjoint(each.path for each in whole):
            waiting[module.content].append(whole)
    for module in _all(old):  # the outermost first
        whole = _all(module, itself=True)
        if not any(each.path in found for each in whole):
            for moved in waiting[module.content]:
                if taken.isdisjoint(each.path for each in moved):
                    found.update((a.path, b.path) for a, b in zip(whole, moved, strict=True))
                    taken.update(each.path for each in moved)
                    break
    return found


def _all(root: Module, itself: bool = False) -> list[Module]:
    """In pre-order."""
    order = []
    todo = [root]
    while todo:
        module = todo.pop()
        order.append(module)
        todo.extend(reversed(module.children))
    return order if itself else order[1:]


def _below(pairs: list[tuple[Module, Module]], found: dict[str, str]) -> None:
    """Match what is below these modules, which are each other's."""
    while pairs:
        old, new = pairs.pop()
        same = _siblings(old.children, new.children)
        rest_old, rest_new = _left(old.children, new.children, same)
        same += _wrapped(rest_old, rest_new)
        rest_old, _ = _left(rest_old, rest_new, same)
        same += [(a, b) for b, a in _wrapped(rest_new, rest_old)]
        found.update((a.path, b.path) for a, b in same)
        pairs += same


def _siblings(old: list[Module], new: list[Module]) -> list[tuple[Module, Module]]:
    """First by names that say something, then in the order of the run; by all names where that alone is another."""
    named = {each.label: each for each in new if not _INDEXED.fullmatch(each.label)}
    same = [(a, b) for a in old if (b := named.get(a.label)) is not None and a.cls == b.cls]
    old, new = _left(old, new, same)
    named = {each.label: each for each in new}
    if len(old) == len(new) and all(a.label in named and _as_large(a, named[a.label]) for a in old):
        return same + [(a, named[a.label]) for a in old]
    return same + _in_order(old, new)


def _as_large(a: Module, b: Module) -> bool:
    """Figures of what runs may differ: the first layer's input needs no gradient."""
    return (a.cls, a.shape, a.figures["params"]) == (b.cls, b.shape, b.figures["params"])


def _left(old: list[Module], new: list[Module], same: list[tuple[Module, Module]]) -> tuple[list[Module], list[Module]]:
    """Those that are in no pair."""
    taken = {each.path for each, _ in same}, {each.path for _, each in same}
    return [each for each in old if each.path not in taken[0]], [each for each in new if each.path not in taken[1]]


def _in_order(old: list[Module], new: list[Module]) -> list[tuple[Module, Module]]:
    """The pairs that weigh most together, none crossing another."""
    same = []
    while old and new and old[0].content == new[0].content:
        same.append((old[0], new[0]))
        old, new = old[1:], new[1:]
    while old and new and old[-1].content == new[-1].content:
        same.append((old[-1], new[-1]))
        old, new = old[:-1], new[:-1]
    if len(old) * len(new) > _TABLE:
        at = {(each.label, each.cls): each for each in new}
        return same + [(a, at[a.label, a.cls]) for a in old if (a.label, a.cls) in at]
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    weights = [[_weight(a, b) for b in new] for a in old]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], best[i + 1][j + 1] + weights[i][j])
    i = j = 0
    while i < len(old) and j < len(new):
        if weights[i][j] and best[i][j] == best[i + 1][j + 1] + weights[i][j]:
            same.append((old[i], new[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return same


def _weight(a: Module, b: Module) -> float:
    """How much speaks for two siblings being the same module; 0: they are not."""
    alike = _likeness(a, b)
    speaks = a.label == b.label and not _INDEXED.fullmatch(a.label)
    if a.cls != b.cls and (_holds(a, b.cls) or _holds(b, a.cls) or not (speaks or alike >= _ALIKE)):
        return 0.0
    return 1 + 2 * (a.cls == b.cls) + 2 * alike + (1.5 if speaks else 0.1 * (a.label == b.label))


def _likeness(a: Module, b: Module) -> float:
    if a.content == b.content:
        return 1.0
    pairs = list(zip(a.features(), b.features(), strict=True))
    return sum(one == other for one, other in pairs) / len(pairs)


def _holds(module: Module, cls: str) -> bool:
    """Whether it may be a wrapper of one of that class."""
    return any(each.cls == cls for each in module.below(_DEEP))


def _wrapped(old: list[Module], new: list[Module]) -> list[tuple[Module, Module]]:
    """Of modules without a counterpart beside them: those that are within one now, which is new."""
    same: list[tuple[Module, Module]] = []
    taken: set[str] = set()
    for a in old:
        inside = [each for b in new for each in b.below(_DEEP) if each.cls == a.cls and each.path not in taken]
        b = max(inside, key=lambda each: (each.label == a.label) + 2 * _likeness(a, each), default=None)
        if b is not None:
            same.append((a, b))
            taken.update(each.path for each in _all(b, itself=True))
    return same


# -------------------------------------------------------------------------------------------------------------- lines

Line = tuple[str, int]  # file, number


def lines(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> dict[Line, Line]:
    """{(file, line): the same in the other report}, of those that have one. Both: facts of lines, some twice."""
    old, new = _by_file(before), _by_file(after)
    found: dict[Line, Line] = {}
    for file, other in _files(old, new).items():
        for a, b in _edited(old[file], new[other]):
            found[file, a["line"]] = other, b["line"]
    return found


def _by_file(facts: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    files: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in facts:
        files[row["file"]][row["line"]] = row
    return {file: [rows[number] for number in sorted(rows)] for file, rows in files.items()}


def _files(old: dict[str, list[dict[str, Any]]], new: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """The same path, else the longest common end of it, else most lines in common."""
    found = {file: file for file in old if file in new}
    for weigh in (lambda a, b: _common_end(a, b), lambda a, b: _common_lines(old[a], new[b])):
        pairs = [(weigh(a, b), a, b) for a in old if a not in found for b in set(new) - set(found.values())]
        for weight, a, b in sorted(pairs, key=lambda pair: (-pair[0], *pair[1:])):
            if weight and a not in found and b not in found.values():
                found[a] = b
    return found


def _common_end(a: str, b: str) -> int:
    """Parts of the path."""
    count = 0
    for one, other in zip(reversed(a.split("/")), reversed(b.split("/"))):
        if one != other:
            break
        count += 1
    return count


def _common_lines(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> float:
    """A share, 0 below half of the shorter file: a script that was renamed."""
    if a[0]["package"] or b[0]["package"]:
        return 0.0
    one, other = ({row["source"] for row in rows} for rows in (a, b))
    share = len(one & other) / min(len(one), len(other))
    return share if share >= _ALIKE else 0.0


def _edited(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The lines of a file that stayed, and those that were changed where they were."""
    texts = [[row["source"] or f"{row['function']}:{row['line']}" for row in rows] for rows in (old, new)]
    same = []
    for what, i, i_end, j, j_end in difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes():
        if what == "equal":
            same += list(zip(old[i:i_end], new[j:j_end], strict=True))
        elif what == "replace":
            same += _changed(old[i:i_end], new[j:j_end])
    return same


def _changed(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Those of which half or more is the same text, the most alike first."""
    if max(len(old), len(new)) > _SIBLINGS:
        return []
    pairs = [(difflib.SequenceMatcher(None, a["source"], b["source"]).ratio(), i, j)
             for i, a in enumerate(old) for j, b in enumerate(new)]  # fmt: skip
    same: dict[int, int] = {}
    for ratio, i, j in sorted(pairs, key=lambda pair: (-pair[0], abs(pair[1] - pair[2]), pair[1])):
        if ratio >= _ALIKE and i not in same and j not in same.values():
            same[i] = j
    return [(old[i], new[j]) for i, j in same.items()]
