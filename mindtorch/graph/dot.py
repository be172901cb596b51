"""The graph as Graphviz source. The layout is Graphviz's; nothing here needs it."""

from __future__ import annotations

from collections.abc import Iterator

from .graph import ComputationGraph, Node
from .text import element_type, sizes, title

_HEAD = """digraph computation {
  rankdir=TB; compound=true; fontname="Helvetica";
  node [shape=box, style="rounded", fontname="Helvetica", fontsize=10];
  edge [arrowsize=0.6, fontsize=8];
"""
_STYLE = {"op": "", "input": ", shape=ellipse, style=filled, fillcolor=lightgrey",
          "parameter": ', style="rounded,dashed"'}


def quote(text: str) -> str:
    """``text`` as a DOT string. A backslash means something to Graphviz, so it is doubled, like in C."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n")
    return f'"{text}"'


def to_dot(graph: ComputationGraph) -> str:
    """A node per op, input and parameter; a cluster per module; an edge per tensor read."""
    tree = _Cluster("")
    for node in graph.nodes:
        cluster = tree
        for name, cls in zip(node.module_info.names, node.module_info.classes):
            cluster = cluster.child(name, cls)
        cluster.nodes.append(node)
    lines = [_HEAD, *_clusters(tree)]
    for edge in graph.edges:
        label = f' [label="{edge.output}"]' if edge.output else ""
        lines.append(f"  n{edge.source} -> n{edge.target}{label};\n")
    lines.append("}\n")
    return "".join(lines)


class _Cluster:
    def __init__(self, label: str) -> None:
        self.label = label
        self.children: dict[str, _Cluster] = {}
        self.nodes: list[Node] = []

    def child(self, name: str, cls: str) -> _Cluster:
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = _Cluster(f"{name}: {cls}" if cls and cls != name else name)
        return found


def _clusters(tree: _Cluster) -> Iterator[str]:
    number = 0
    stack: list[tuple[_Cluster | None, int]] = [(tree, 0)]
    while stack:
        cluster, depth = stack.pop()
        indent = "  " * (depth + 1)
        if cluster is None:  # all of its children are written
            yield f"{indent}}}\n"
            continue
        if depth:
            yield f"{indent}subgraph cluster_{number} {{ label={quote(cluster.label)};\n"
            number += 1
            stack.append((None, depth))
        for node in cluster.nodes:
            label = title(node) + "".join(f"\n{sizes(o)} {element_type(o)}" for o in node.outputs[:2])
            more = f"\n… {len(node.outputs)} outputs" if len(node.outputs) > 2 else ""
            yield f"{indent}  n{node.id} [label={quote(label + more)}{_STYLE[node.kind]}];\n"
        stack.extend((child, depth + 1) for child in reversed(cluster.children.values()))
