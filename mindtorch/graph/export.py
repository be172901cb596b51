"""The graph as data: plain dict, JSON, networkx.

Schema 1::

    {"schema_version": 1, "counts": {"nodes", "ops", "inputs", "parameters", "edges", "segments"},
     "nodes": [{"id", "kind", "op", "inputs": [[node id, output index], …], "outputs": [{"shape", "dtype", "device"}, …]
                and, where there is one: "args", "kwargs", "overload", "readings", "writes", "number", "name", "module",
                "classes", "phase", "source"}, …],
     "edges": [[source, output index, target, input index], …],
     "segments": [{"start", "stop", "read_by"}, …], "outputs": [[node id, output index], …]
     and, where there are any: "parts": [{"name", "modules": [path, …], "nodes": ids of those outside of modules}, …]
     and, where a user's analyzer was asked: "patterns": [{"name", "anchor", "nodes", "verified", "attributes"}, …]}

``source`` is [file, line, function]. ``overload``: ``aten.add.Tensor``. ``readings``: of each input, null where it is
read as its node has it, else {"offset", "shape", "strides", "dtype"} in the storage of that, which was written since.
``writes``: numbers of the inputs that it writes to, in the order of the outputs that stand for them, the last ones.
``number``: what an input of no dimension held. In ``args`` and ``kwargs``, what JSON has no word for is an object of
one entry: ``{"input": 0}`` (the node's first input), ``{"dtype": "float32"}``, ``{"tuple": […]}``,
``{"float": "inf"}`` ….

A graph of a part (`ComputationGraph.reduced`) has "left_out" after "counts": what was asked for ("modules_but",
"deeper_than", "after_steps"), and how many "nodes", "ops" … the first two leave out. Nodes of kind "module" in it stand
for what one does in a stretch ("kwargs": {"ops", "parameters"} of its own), inputs with another "op" than
``genie::data`` for what that op makes elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .graph import KINDS, PHASES, ComputationGraph, Node
from .parts import Call, Hole, Opaque, Output, Reading
from .structure import parts_of

if TYPE_CHECKING:
    import networkx

SCHEMA_VERSION = 1


def to_dict(graph: ComputationGraph) -> dict[str, Any]:
    """See the module's docstring."""
    return {**_head(graph), "nodes": list(_nodes(graph)), "edges": [list(edge) for edge in graph.edges], **_tail(graph)}


def to_json(graph: ComputationGraph) -> str:
    """`to_dict` as text, one node per line."""
    return _text(
        {**_head(graph), "nodes": _nodes(graph), "edges": [list(edge) for edge in graph.edges], **_tail(graph)}
    )


def to_networkx_json(graph: ComputationGraph) -> str:
    """Text of which ``networkx.node_link_graph(json.loads(text), edges="edges")`` makes what `to_networkx` gives.

    Its ``graph`` has what is of no node: "segments" and "outputs".
    """
    edges = [
        {"source": edge.source, "target": edge.target, "key": edge.input, "output": edge.output, "input": edge.input}
        for edge in graph.edges
    ]
    kind = {"directed": True, "multigraph": True, "graph": _tail(graph)}
    return _text({**_head(graph), **kind, "nodes": _nodes(graph), "edges": edges})


def _text(data: Mapping[str, Any]) -> str:
    def dump(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def rows(value: Any) -> str:
        return "[\n" + ",\n".join(map(dump, value)) + "\n]"

    return "{" + ",\n".join(f'"{key}":{rows(v) if key == "nodes" else dump(v)}' for key, v in data.items()) + "}\n"


def to_networkx(graph: ComputationGraph) -> networkx.MultiDiGraph:
    """Nodes are ids; node attributes as in `to_dict`; an edge per tensor read, with ``output`` and ``input``."""
    try:
        import networkx
    except ImportError as error:
        raise ImportError("to_networkx needs the package networkx: pip install networkx") from error
    made = networkx.MultiDiGraph(**_tail(graph))
    for node in _nodes(graph):
        made.add_node(node.pop("id"), **node)
    for edge in graph.edges:
        made.add_edge(edge.source, edge.target, key=edge.input, output=edge.output, input=edge.input)
    return made


def _head(graph: ComputationGraph) -> dict[str, Any]:
    counts = {
        "nodes": len(graph),
        "ops": graph.count("op"),
        "inputs": graph.count("input"),
        "parameters": graph.count("parameter"),
        "edges": len(graph.edges),
        "segments": len(graph.segments),
    }
    left_out = {"left_out": graph.left_out} if graph.left_out else {}
    return {"schema_version": SCHEMA_VERSION, "counts": counts, **left_out}


def _tail(graph: ComputationGraph) -> dict[str, Any]:
    segments = [{"start": s.start, "stop": s.stop, "read_by": s.read_by} for s in graph.segments]
    found: dict[str, Any] = {"segments": segments, "outputs": [list(o) for o in graph.outputs]}
    if graph.patterns is not None:
        found["patterns"] = [
            {"name": each.pattern, "anchor": each.anchor, "nodes": sorted(each.nodes), "verified": each.verified,
             "attributes": {key: encode(value) for key, value in each.attributes.items()}}
            for each in graph.patterns if not each.refused
        ]  # fmt: skip
    if parts := parts_of(graph):
        found["parts"] = [{"name": name, "modules": modules, "nodes": nodes} for name, modules, nodes in parts]
    return found


def _nodes(graph: ComputationGraph) -> Iterator[dict[str, Any]]:
    calls = [_call(call) for call in graph._calls]
    for node in graph.nodes:
        yield _node(node, *calls[graph._call[node.id]])


def _call(call: Call) -> tuple[dict[str, Any], dict[str, Any]]:
    constants: dict[str, Any] = {}
    if call.args:
        constants["args"] = [encode(a) for a in call.args]
    if call.kwargs:
        constants["kwargs"] = {key: encode(value) for key, value in call.kwargs.items()}
    if call.overload:
        constants["overload"] = call.overload
    outputs = [{"shape": list(o.shape), "dtype": _short(o.dtype), "device": o.device} for o in call.outputs]
    return constants, {"outputs": outputs}


def _node(node: Node, constants: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"id": node.id, "kind": node.kind, "op": node.op}
    if node.name:
        data["name"] = node.name
    data["inputs"] = [list(source) for source in node.inputs]
    if node.number is not None:
        data["number"] = encode(node.number)
    if any(node.readings):
        data["readings"] = [reading and _reading(reading) for reading in node.readings]
    if node.writes:
        data["writes"] = list(node.writes)
    data.update(constants)
    data.update(outputs)
    where = node.module_info
    if where.names:
        data["module"] = where.path
        if any(where.classes):
            data["classes"] = list(where.classes)
    if node.phase != "other":
        data["phase"] = node.phase
    if node.location:
        data["source"] = list(node.location)
    return data


def _reading(reading: Reading) -> dict[str, Any]:
    return {"offset": reading.offset, "shape": list(reading.shape), "strides": list(reading.strides),
            "dtype": _short(reading.dtype)}  # fmt: skip


# ---- constants -------------------------------------------------------------------------------------------------------
def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def encode(value: Any) -> Any:
    """A constant argument as a JSON value."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, Hole):
        return {"input": value.index}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": {key: encode(item) for key, item in value.items()}}
    if isinstance(value, slice):
        return {"slice": [encode(value.start), encode(value.stop), encode(value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    for kind, name in ((torch.dtype, "dtype"), (torch.layout, "layout"), (torch.memory_format, "memory_format")):
        if isinstance(value, kind):
            return {name: _short(value)}
    return {"other": value.text if isinstance(value, Opaque) else str(value)}


def decode(value: Any) -> Any:
    """The constant behind `encode`'s value."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "input":
        return Hole(int(inner))
    if kind == "tuple":
        return tuple(decode(item) for item in inner)
    if kind == "dict":
        return {key: decode(item) for key, item in inner.items()}
    if kind == "slice":
        return slice(*(decode(item) for item in inner))
    if kind == "float":
        return float(inner)
    if kind == "complex":
        return complex(decode(inner[0]), decode(inner[1]))
    if kind == "ellipsis":
        return Ellipsis
    if kind in ("dtype", "layout", "memory_format"):
        return _torch_constant(inner, getattr(torch, kind))
    if kind == "other":
        return Opaque(str(inner))
    raise ValueError(f"[from_dict] unknown constant {value!r}")


def _torch_constant(name: str, kind: type) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise ValueError(f"[from_dict] expected the name of a {kind.__name__}, got {name!r}")
    return found


def _as_reading(data: Mapping[str, Any]) -> Reading:
    return Reading(
        data["offset"], tuple(data["shape"]), tuple(data["strides"]), _torch_constant(data["dtype"], torch.dtype)
    )


def from_dict(graph: ComputationGraph, data: Mapping[str, Any]) -> ComputationGraph:
    """Fill an empty graph from `to_dict`'s result."""
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"[from_dict] expected schema_version {SCHEMA_VERSION}, got {data.get('schema_version')!r}")
    for place, node in enumerate(data["nodes"]):
        if node["id"] != place or any(not 0 <= source < place for source, _ in node["inputs"]):
            raise ValueError(f"[from_dict] expected node {place}, reading earlier ones only, got {node!r}")
        outputs = tuple(
            Output(tuple(o["shape"]), _torch_constant(o["dtype"], torch.dtype), o["device"]) for o in node["outputs"]
        )
        args = tuple(decode(a) for a in node.get("args", ()))
        kwargs = {key: decode(value) for key, value in node.get("kwargs", {}).items()}
        source = node.get("source")
        graph._append(
            graph._intern_call(Call(node["op"], args, kwargs, outputs, node.get("overload", ""))),
            [(source_id, output) for source_id, output in node["inputs"]],
            graph._intern_module(node.get("module", ""), tuple(node.get("classes", ()))),
            graph._intern_place((source[0], source[1], source[2]) if source else None),
            PHASES.index(phase if (phase := node.get("phase", "other")) in PHASES else "other"),
            KINDS.index(node["kind"]),
            [data and _as_reading(data) for data in node.get("readings", ())],
        )
        if phase not in PHASES:
            graph._said_phases[place] = phase
        if node.get("name"):
            graph._names[place] = node["name"]
        if node.get("writes"):
            graph._writes[place] = tuple(node["writes"])
        if "number" in node:
            graph._numbers[place] = decode(node["number"])
    if "patterns" in data:
        from .patterns import Instance

        graph.patterns = tuple(
            Instance(each["name"], each["anchor"], frozenset(each["nodes"]), (), each["verified"],
                     {key: decode(value) for key, value in each["attributes"].items()})
            for each in data["patterns"]
        )  # fmt: skip
    graph._reads.extend(s["stop"] - 1 for s in data.get("segments", ()) if s["read_by"])
    graph.left_out = dict(data.get("left_out", {}))
    graph.outputs = tuple((node, output) for node, output in data.get("outputs", ()))
    return graph
