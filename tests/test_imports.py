"""Imports go one way, and only to the packages the project allows (docs/ARCHITECTURE.md)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Lowest first. A unit is a package, or a package of `engine` or `profile`. It may import from its own row (without
# cycles) and from the rows before it.
LAYERS: list[set[str]] = [
    {"_ext"},
    {"base"},
    {"ops", "devices"},
    {"engine.tensor", "engine.record"},
    {"engine.passes"},
    {"engine.execute", "engine.semantics"},
    {"engine.remote"},
    {"engine.cache"},
    {"cluster"},
    {"npu"},
    {"patch", "graph"},
    {"npu.compat"},
    {"profile.cost", "profile.measure", "profile.report", "profile.estimate"},
    {"profile"},
    {"program"},
    {"__init__"},
    {"cli"},
    {"__main__", "profiling"},
]
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}

# Third-party packages: everywhere / in one unit only. networkx is imported where it is called for; tomli stands in for
# the standard library's tomllib before Python 3.11.
ANYWHERE = {"torch", "numpy", "mindtorch", "tomllib"}  # which Python 3.10 has not, and does without
ONLY_IN = {
    "click": {"cli"},
    "rich": {"cli"},
    "networkx": {"graph"},
    "ray": {"cluster"},
    "pandas": {"profiling"},
    "transformers": {"program"},
    "tomli": {"profile.cost"},
}

# Modules of one name: one subject, of which the package or folder says which part. All others have names of their own.
ONE_SUBJECT = {
    "calibrate": "measuring the machine, the command that does",
    "check": "what is asked beforehand: of a program by a command, of calls by an executor elsewhere",
    "product": "shapes of matrix products, how long they run",
    "stream": "an NPU's queues of work, how long runs what streams memory",
    "collect": "what the dispatch mode of a profile does, compiled, and the profiler around it",
    "convolution": "shape rules of convolutions, the pattern of blocks that compute one",
    "creation": "creation functions, by device",
    "export": "files made of a graph, of a report",
    "graph": "the graph, the command that shows it",
    "hook": "functions in torch's place, the list of them",
    "intercept": "the compiled recorder, what it asks Python",
    "tensor": "the classes of tensors by device",
    "worker": "what answers an executor's messages, the command that starts a machine for such",
}

Import = tuple[str, int]  # absolute dotted name, line


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every Python module of the package, as installed."""
    for folder, prefix in (("mindtorch", "mindtorch"), ("cli", "mindtorch.cli"), ("_ext", "mindtorch._ext")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [prefix, *path.relative_to(ROOT / folder).with_suffix("").parts]
            yield ".".join(parts), path


def type_checking_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_of(tree: ast.AST, module: str) -> Iterator[Import]:
    """Everything imported, inside functions too; what only a type checker sees does not count."""
    for node in ast.iter_child_nodes(tree):
        if type_checking_only(node):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: drop the module's own name, then one part per extra dot
                package = module.split(".")[: -node.level]
                base = ".".join(package + ([base] if base else []))
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        else:
            yield from imports_of(node, module)


def unit_of(dotted: str) -> str:
    """The row's name: ``mindtorch.graph.text`` -> ``graph``; names of the package itself -> ``__init__``."""
    parts = dotted.split(".")
    if ".".join(parts[1:3]) in RANK:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"


def violations(source: str, module: str) -> list[str]:
    """Imports in ``source`` that point up, or to a package that is not allowed."""
    unit = unit_of(module)
    found = []
    for name, line in imports_of(ast.parse(source), module):
        top = name.split(".")[0]
        if top == "mindtorch":
            target = unit_of(name)
            if RANK[target] > RANK[unit] or (unit == "_ext" and target != "_ext"):
                found.append(f"{module}:{line}: {unit} imports {name} from {target}, a higher layer")
        elif top in ONLY_IN:
            if unit not in ONLY_IN[top]:
                found.append(f"{module}:{line}: only {sorted(ONLY_IN[top])} may import {top}")
        elif top not in ANYWHERE and top not in sys.stdlib_module_names:
            found.append(f"{module}:{line}: imports {top}, which is not a dependency")
    return found


def test_layout_every_unit_has_a_place_in_the_import_order() -> None:
    found = {path.stem for path in (ROOT / "mindtorch").glob("*.py")}
    found |= {path.name for path in (ROOT / "mindtorch").iterdir() if any(path.glob("*.py"))}
    for parent in ("engine", "profile"):
        found |= {f"{parent}.{path.name}" for path in (ROOT / "mindtorch" / parent).iterdir() if any(path.glob("*.py"))}
    assert sorted(found - set(RANK) - {"engine"}) == [], "add the new unit to LAYERS"
    loose = [path.name for path in (ROOT / "mindtorch" / "engine").glob("*.py") if path.name != "__init__.py"]
    assert loose == [], "a module of the engine lies in one of its packages"


def test_layout_there_are_few_names_at_the_top() -> None:
    top = {path.name for path in (ROOT / "mindtorch").iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    assert len(top - {"__init__.py", "__main__.py"}) <= 11


def test_layout_modules_of_one_name_hold_one_subject() -> None:
    """Also where they differ in number only: ``mode`` beside ``modes``."""
    sources = [path for _, path in modules() if not path.stem.startswith("__")]
    names = [path.stem.rstrip("s") for path in [*sources, *(ROOT / "_ext").glob("*.pyx")]]
    assert sorted({name for name in names if names.count(name) > 1}) == sorted(ONE_SUBJECT)


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_layout_imports_go_one_way(module: str, path: Path) -> None:
    assert violations(path.read_text(), module) == []


def test_layout_no_import_cycle_between_units() -> None:
    edges: dict[str, set[str]] = {}
    for module, path in modules():
        unit = unit_of(module)
        for name, _ in imports_of(ast.parse(path.read_text()), module):
            if name.split(".")[0] == "mindtorch" and unit_of(name) != unit:
                edges.setdefault(unit, set()).add(unit_of(name))
    while edges:  # peel off the units that import nothing left; what never peels is a cycle
        free = [unit for unit, targets in edges.items() if not targets & set(edges)]
        assert free, f"import cycle among {sorted(edges)}"
        for unit in free:
            del edges[unit]


def test_layout_ext_imports_nothing_from_mindtorch() -> None:
    pattern = re.compile(
        r"^\s*(?:from\s+(mindtorch[\w.]*)\s+c?import\s+(\w+)|c?import\s+(mindtorch[\w.]*))", re.MULTILINE
    )
    found = []
    for path in sorted([*(ROOT / "_ext").glob("*.pyx"), *(ROOT / "_ext").glob("*.pxd")]):
        for match in pattern.finditer(path.read_text()):
            name = match[3] or f"{match[1]}.{match[2]}"
            if not name.startswith("mindtorch._ext"):
                found.append(f"{path.name}: {match[0].strip()}")
    assert found == []


def test_layout_ext_needs_no_torch_or_numpy_headers() -> None:
    pattern = re.compile(r"cimport\s+(?:numpy|torch)|from\s+(?:numpy|torch)[\w.]*\s+cimport|\"(?:numpy|torch|ATen)/")
    sources = [*(ROOT / "_ext").glob("*.pyx"), *(ROOT / "_ext").glob("*.pxd")]
    assert [path.name for path in sources if pattern.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from mindtorch.cli import main", "mindtorch.profile.report.build"),
        ("def f():\n    from ..profile import report", "mindtorch.graph.text"),
        ("import rich", "mindtorch.profile.report.build"),
        ("import requests", "mindtorch.cli.main"),
        ("from mindtorch.engine.execute import tensors", "mindtorch.devices.names"),
        ("import mindtorch", "mindtorch.graph.text"),
        ("from mindtorch.base.errors import UsageError", "mindtorch._ext.helper"),
    ],
)
def test_layout_the_check_itself_finds_a_wrong_import(source: str, module: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from mindtorch.base import errors, config", "mindtorch.graph.text"),
        (
            "from ..engine.execute.tensors import LazyTensor\nfrom . import export\nimport torch.fx, os.path",
            "mindtorch.graph.text",
        ),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mindtorch import cli", "mindtorch.base.config"),
        ("from mindtorch._ext.tape import Tape", "mindtorch.base.config"),
    ],
)
def test_layout_the_check_itself_lets_right_imports_pass(source: str, module: str) -> None:
    assert violations(source, module) == []
