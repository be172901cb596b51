"""What a program would do if something of it were otherwise: changes that an estimate makes to it (SPEC C4).

Each stands for a line or two that its author could write, and makes that change where the program runs, so that memory
and time are those of the changed program, computed as always. Their names and words are in `cli/advice.py`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from mindtorch.base.patching import replaced
from mindtorch.base.words import counted
from mindtorch.engine.execute import ambient
from mindtorch.engine.semantics import modules, owners

__all__ = ["AROUND", "changed"]

#: Those that are to be there before and after the estimate; all others within it, which replaces some functions itself.
AROUND = ("expandable-segments", "tf32")
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the first one that is set counts


@contextmanager
def changed(names: Sequence[str]) -> Iterator[list[str]]:
    """Within the block, programs do what they do with these changes. Gives what was changed, in words: it grows."""
    notes: list[str] = []
    with ExitStack() as stack:
        for name in names:
            make = _MAKERS.get(name)
            if make is not None:
                stack.enter_context(make(notes))
        yield notes


@contextmanager
def _met(change: Callable[[nn.Module], None]) -> Iterator[None]:
    """Do this to each outermost module that has parameters, before its first call."""

    def saw(root: nn.Module, _path: int) -> None:
        if owners.first_parameter(root) is not None:
            change(root)

    modules.add_listener(saw)
    try:
        yield
    finally:
        modules.remove_listener(saw)


@contextmanager
def _half_batch(notes: list[str]) -> Iterator[None]:
    init = DataLoader.__init__

    @functools.wraps(init)
    def smaller(self: Any, dataset: Any, batch_size: int | None = 1, *args: Any, **kwargs: Any) -> None:
        if isinstance(batch_size, int) and batch_size > 1:
            notes.append(f"a DataLoader's batch_size is {batch_size // 2}, not {batch_size}")
            batch_size //= 2
        init(self, dataset, batch_size, *args, **kwargs)

    with replaced([(DataLoader, "__init__", smaller)]):
        yield


def _under(root: nn.Module, context: Callable[[], Any]) -> None:
    """Let the module's forward run within a context."""
    forward = root.forward

    @functools.wraps(forward)
    def within(*args: Any, **kwargs: Any) -> Any:
        with context():
            return forward(*args, **kwargs)

    root.forward = within  # type: ignore[method-assign]


def _bf16(notes: list[str]) -> Any:
    def cast(root: nn.Module) -> None:
        parameter = owners.first_parameter(root)
        if parameter is not None and parameter.dtype is torch.float32:
            kind = parameter.device.type
            _under(root, lambda: torch.autocast(kind, torch.bfloat16))
            notes.append(f"{type(root).__name__} runs under torch.autocast in bfloat16")

    return _met(cast)


def _no_grad(notes: list[str]) -> Any:
    def still(root: nn.Module) -> None:
        _under(root, torch.no_grad)
        notes.append(f"{type(root).__name__} runs under torch.no_grad")

    return _met(still)


def _checkpointing(notes: list[str]) -> Any:
    def recompute(root: nn.Module) -> None:
        found = _layers(root)
        for layer in found:
            layer.forward = _checkpointed(layer, layer.forward)  # type: ignore[method-assign]
        if found:
            of = f"{counted(len(found), type(found[0]).__name__)} of {type(root).__name__}"
            notes.append(f"{of} recomputed in the backward pass")

    return _met(recompute)


def _layers(root: nn.Module) -> list[nn.Module]:
    """The repeated layers: of the lists of modules of one class, the outermost ones with the most parameters."""
    best: tuple[int, list[nn.Module]] = (0, [])
    for holder in owners.modules(root):
        if isinstance(holder, (nn.ModuleList, nn.Sequential)):
            layers = list(holder)
            if len(layers) > 1 and len({type(layer) for layer in layers}) == 1 and layers[0]._modules:
                size = sum(p.numel() for p in owners.held(holder)[0])
                if size > best[0]:
                    best = size, layers
    return best[1]


def _checkpointed(layer: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def again(*args: Any, **kwargs: Any) -> Any:
        if not (layer.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return again


@contextmanager
def _fused(notes: list[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
            init = kind.__init__

            def fused(self: Any, params: Any, *args: Any, __init: Any = init, **kwargs: Any) -> None:
                params = params if isinstance(params, torch.Tensor) else list(params)  # that alone is refused
                complex_ones = any(isinstance(t, torch.Tensor) and t.is_complex() for t in tree_leaves(params))
                if kwargs.get("foreach") is None and kwargs.get("fused") is None and not complex_ones:
                    kwargs["fused"] = True
                    notes.append(f"{type(self).__name__} is fused")
                __init(self, params, *args, **kwargs)

            stack.enter_context(replaced([(kind, "__init__", functools.wraps(init)(fused))]))
        yield


@contextmanager
def _adafactor(notes: list[str]) -> Iterator[None]:
    def made(name: str) -> Callable[..., torch.optim.Optimizer]:
        def make(params: Any, lr: Any = 1e-3, *_args: Any, **kwargs: Any) -> torch.optim.Optimizer:
            notes.append(f"Adafactor instead of {name}")
            return torch.optim.Adafactor(params, lr=lr, weight_decay=kwargs.get("weight_decay", 0.0))

        return make

    with replaced((torch.optim, name, made(name)) for name in ("Adam", "AdamW")):
        yield


@contextmanager
def _tf32(notes: list[str]) -> Iterator[None]:
    with ambient.put_back():  # torch may have no one word for what they were
        torch.set_float32_matmul_precision("high")
        notes.append("products in float32 run in TF32")
        yield


@contextmanager
def _expandable(notes: list[str]) -> Iterator[None]:
    name = _ALLOCATOR[0] if os.environ.get(_ALLOCATOR[0]) else _ALLOCATOR[1]
    before = os.environ.get(name)
    others = [part for part in (before or "").split(",") if part and not part.startswith("expandable_segments")]
    os.environ[name] = ",".join([*others, "expandable_segments:True"])
    notes.append("the allocator uses expandable segments")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


_MAKERS: dict[str, Callable[[list[str]], Any]] = {
    "half-batch": _half_batch,
    "bf16": _bf16,
    "checkpointing": _checkpointing,
    "fused-optimizer": _fused,
    "adafactor": _adafactor,
    "no-grad": _no_grad,
    "tf32": _tf32,
    "expandable-segments": _expandable,
}
