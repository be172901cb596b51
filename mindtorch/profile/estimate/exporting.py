"""``torch.export`` in an estimate: torch traces the program's module on FakeTensors, outside the estimate, which counts
nothing of it. What it gives holds the estimate's tensors again, and runs as any module does.

The FakeTensors are of the CPU: torch built without CUDA records no gradients for others. So a device that the module
asks for by ``x.device`` stands in the graph as the CPU, and becomes the tensors' one afterwards, as in torch's own
`torch.export.passes.move_to_device_pass`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from ...base.errors import UnsupportedOperationError
from ...base.patching import Patch
from ...devices import mode
from . import checkpoints, saved_objects
from .private_files import actual

__all__ = ["patches"]
_save, _load = torch.export.save, torch.export.load
_decompose = torch.export.ExportedProgram.run_decompositions
_EXPORTS = [name for name in ("export", "export_for_training") if hasattr(torch.export, name)]
_CPU = torch.device("cpu")
#: One holds tensors by name, of a module or an exported program.
_Held = MutableMapping[str, Any]


def patches() -> list[Patch]:
    """(owner, name, stand-in)"""
    return [
        *((torch.export, name, _exporting(getattr(torch.export, name))) for name in _EXPORTS),
        (torch.export, "draft_export", _draft),
        (torch.export.ExportedProgram, "run_decompositions", _decomposed),
        (torch.export, "save", _saved),
        (torch.export, "load", _loaded),
    ]


def _exporting(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def export(mod: Any, args: Any = (), kwargs: Any = None, *others: Any, **options: Any) -> Any:
        twins = _Twins(None)
        weights, plain = _tensors_of(mod)
        with twins.stand_in(weights), twins.stand_in(plain, fake=False), mode.enter(estimate=None):
            given = tree_map_only(torch.Tensor, twins.of, (args, kwargs))
            made = original(mod, *given, *others, **options)
        return twins.replaced(made)

    return export


def _draft(*args: Any, **options: Any) -> NoReturn:
    raise UnsupportedOperationError(
        "[torch.export.draft_export] expected torch.export.export: drafts are made by computing; estimates do not"
    )


@functools.wraps(_decompose)
def _decomposed(self: Any, *args: Any, **options: Any) -> Any:
    twins = _Twins(self)
    device = twins.device_of(tree_leaves((self._state_dict, self._constants, self._example_inputs)))
    inputs = self._example_inputs
    _move(self.graph_module, device, _CPU)
    try:
        with twins.stand_in([self._state_dict, self._constants]), mode.enter(estimate=None):
            self._example_inputs = tree_map_only(torch.Tensor, twins.of, inputs)
            made = _decompose(self, *args, **options)
    finally:
        self._example_inputs = inputs
        _move(self.graph_module, _CPU, device)
    return twins.replaced(made)


@functools.wraps(_save)
def _saved(ep: Any, f: Any, *args: Any, **options: Any) -> None:
    saved_objects.remember(f, ep)


@functools.wraps(_load)
def _loaded(f: Any, *args: Any, **options: Any) -> Any:
    found = saved_objects.found(f)
    if isinstance(found, torch.export.ExportedProgram):
        return copy.deepcopy(found)
    with mode.enter(estimate=None):
        made = _load(actual(f), *args, **options)
    checkpoints.without_data([made._state_dict, made._constants])
    made._example_inputs = checkpoints.without_data(made._example_inputs)
    return made


def _tensors_of(module: Any) -> tuple[list[_Held], list[_Held]]:
    """Where a module holds its parameters and buffers; where it holds other tensors."""
    modules = list(module.modules()) if isinstance(module, torch.nn.Module) else []
    return [there for each in modules for there in (each._parameters, each._buffers)], [m.__dict__ for m in modules]


class _Twins:
    """FakeTensors for tensors of an estimate. program: one that was exported before, whose FakeTensors these join."""

    def __init__(self, program: Any) -> None:
        from torch._guards import detect_fake_mode
        from torch._subclasses.fake_tensor import FakeTensorMode  # a second of imports, which torch.export needs anyway
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        nodes = () if program is None else program.graph.nodes
        known = detect_fake_mode([node.meta["val"] for node in nodes if node.op == "placeholder"])
        self._mode = known or FakeTensorMode(
            shape_env=ShapeEnv(tracked_fakes=[]), allow_non_fake_inputs=True, export=True
        )
        self._of: dict[int, torch.Tensor] = {}
        self._originals: dict[int, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor, fake: bool = True) -> torch.Tensor:
        """The FakeTensor for this one, or itself if it is one. fake: if not, zeros that are there: torch takes them for
        constants, of which it makes its own FakeTensors."""
        if id(tensor) in self._of or id(tensor) in self._originals:
            return self._of.get(id(tensor), tensor)
        with mode.enter(estimate=None):
            with self._mode if fake else nullcontext():
                twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_CPU).zero_()
            if isinstance(tensor, torch.nn.Parameter):
                twin = torch.nn.Parameter(twin, tensor.requires_grad)
            else:
                twin.requires_grad_(tensor.requires_grad)
        self._of[id(tensor)], self._originals[id(twin)] = twin, tensor
        return twin

    @contextmanager
    def stand_in(self, places: Iterable[_Held], fake: bool = True) -> Iterator[None]:
        """They are where the tensors were; fake: see `of`."""
        held = [(there, name, value) for there in places for name, value in there.items() if _is_tensor(value)]
        for there, name, value in held:
            there[name] = self.of(value, fake)
        try:
            yield
        finally:
            for there, name, value in held:
                there[name] = value

    def replaced(self, program: Any) -> Any:
        """A program that was exported with them has the tensors."""
        for there in (program._state_dict, program._constants):
            there.update({name: self._original(value) for name, value in there.items()})
        program._example_inputs = tree_map_only(torch.Tensor, self._original, program._example_inputs)
        _move(program.graph_module, _CPU, self.device_of(self._originals.values()))
        return program

    def _original(self, value: Any) -> Any:
        return self._originals.get(id(value), value)

    @staticmethod
    def device_of(held: Iterable[Any]) -> torch.device:
        """Where all of these are. UnsupportedOperationError if that is not one device."""
        devices = {value.device for value in held if _is_tensor(value)}
        if len(devices) > 1:
            raise UnsupportedOperationError(
                "[torch.export.export] expected a module and inputs on one device in an estimate, got "
                + " and ".join(sorted(map(str, devices)))
            )
        return next(iter(devices), _CPU)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _move(graph_module: Any, before: torch.device, device: torch.device) -> None:
    """What a graph makes on one device is made on another."""
    for module in graph_module.modules() if before != device else ():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.kwargs.get("device") == before:
                node.kwargs = {**node.kwargs, "device": device}
            if node.target is torch.ops.aten.to.device and node.args[1] == before:
                node.args = (node.args[0], device, *node.args[2:])
        module.recompile()
