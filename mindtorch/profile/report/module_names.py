"""What a report calls modules: by path, and models of one class by a number, in the order of the run.

The number follows the class: ``Net.head``, ``Net #2.head``. Paths themselves (of errors, of graphs) have no numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from mindtorch._ext import context


class Names(dict[int, str]):
    """{path id: name}. `order`: of the modules that were called, how many were called before each for the first time.

    A model of which no module was called, as its backward pass alone is in the profile, comes after those.
    """

    def __init__(self, order: Mapping[int, int]) -> None:
        super().__init__({0: ""})
        self.order = order
        self._numbers: Counter[str] = Counter()
        for path in sorted(order, key=order.__getitem__):
            if (root := context.path_root(path)) not in self:
                self._number(root)

    def _number(self, path: int) -> str:
        name = context.path_name(path)
        self._numbers[name] += 1
        number = self._numbers[name]
        self[path] = name if number == 1 else f"{name} #{number}"
        return self[path]

    def __missing__(self, path: int) -> str:
        parent = context.path_parent(path)
        if not parent:
            return self._number(path)
        above = [path]  # a path may be deeper than Python's recursion limit
        while parent and parent not in self:
            above.append(parent)
            parent = context.path_parent(parent)
        for path in reversed(above):
            parent = context.path_parent(path)
            if parent:
                self[path] = f"{self[parent]}.{context.path_name(path)}"
            else:
                self._number(path)
        return self[above[0]]

    def place(self, path: int) -> tuple[int, int]:
        """Sorts siblings as the program calls them."""
        return self.order.get(path, 1 << 62), path


def alike(models: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of one class and size together, as one of them with `times`, how many there are.

    `name`: the class; where others of that class have another size, a single one has its number, as in the tree.
    """
    groups: dict[tuple[str, int, Any], list[str]] = {}
    for model in models:
        kind = (_class(model), model.get("params") or 0, model.get("param_bytes"))
        groups.setdefault(kind, []).append(model.get("name") or "model")
    sizes = Counter(name for name, *_ in groups)
    return [
        {
            "name": names[0] if len(names) == 1 and sizes[name] > 1 else name,
            "params": params,
            "param_bytes": size,
            "times": len(names),
        }
        for (name, params, size), names in groups.items()
    ]


def _class(model: Mapping[str, Any]) -> str:
    """Its name without the number of a further one, which may be a copy."""
    return re.sub(r" #\d+$", "", model.get("name") or "model")
