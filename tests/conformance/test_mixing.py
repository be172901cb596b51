"""SPEC D4: the operators of torch's own database refuse operands on two devices, as torch refuses CUDA with the CPU.

Of the operands with dimensions one is moved to the lazy device, or all but one. SPEC C9: where plain operands join
those on the device, what a call writes to any of them is there afterwards.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import opcases
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from mindtorch.devices import mode
from mindtorch.engine.record.plain_operands import bring_together

#: Entries that torch lets mix devices, too; a reason each.
ALLOWED = {
    "broadcast_tensors": "views",
    "expand_as": "asks the other operand for its shape only",
    "reshape_as": "asks the other operand for its shape only",
    "resize_as_": "asks the other operand for its shape only",
    "view_as": "asks the other operand for its shape only",
    "to": "moves",
    "__getitem__": "indices may be on the CPU",
    "index_put": "indices may be on the CPU",
    "nn.functional.ctc_loss": "targets may be on the CPU beside scores on CUDA",
    "tensor_split": "reads the indices on the CPU",
    "native_dropout_backward": "called as an overload, as torch's own code does with tensors of its own",
}


def _mixtures(op: Any, dtype: torch.dtype) -> Iterator[tuple[Any, tuple, dict]]:
    """Calls of the entry's first sample that has two operands with dimensions, each on another device."""
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        found = [
            i
            for i, a in enumerate(leaves)
            if isinstance(a, torch.Tensor)
            and a.dim()
            and a.numel()
            and a.layout is torch.strided
            and not a.is_quantized
        ]
        if len(found) < 2:
            continue
        for one in sorted({found[0], found[1], found[-1]}):
            for moved in ([one], [i for i in found if i != one]):
                copies = [a.detach().to(opcases.DEVICE) if i in moved else a for i, a in enumerate(leaves)]
                yield tree_unflatten(copies, spec)
        return


def _refused(call: Any, args: tuple, kwargs: dict) -> bool:
    try:
        call(*args, **kwargs)
    except RuntimeError as error:
        assert "same device" in str(error), error
        return True
    return False


def test_D4_operators_refuse_operands_on_two_devices() -> None:
    refusing: set[str] = set()
    mixing: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, op in opcases.ENTRIES.items():
            if name.startswith("jiterator"):
                continue  # needs a GPU
            for dtype in opcases.dtypes_of(op)[:1]:
                outcomes = [_refused(op.op, (first, *args), kwargs) for first, args, kwargs in _mixtures(op, dtype)]
                if outcomes:
                    (refusing if all(outcomes) else mixing).add(name)
    assert mixing == set(ALLOWED)
    assert len(refusing) > 250


def _writing(op: Any, dtype: torch.dtype) -> Iterator[tuple[Any, list[Any], list[Any], Any]]:
    """(call, operands, the same after torch ran it, how they are arranged) of samples whose operands it changes."""
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 12):
        leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [a for a in leaves if isinstance(a, torch.Tensor)]
        if len(tensors) < 2 or any(a.layout is not torch.strided or a.is_quantized for a in tensors):
            continue
        for call in filter(None, (op.op, op.inplace_variant)):
            after = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in leaves]
            try:
                _called(call, after, spec)
            except RuntimeError:
                continue  # many samples have no variant in place
            if any(isinstance(a, torch.Tensor) and not _same(a, b) for a, b in zip(leaves, after, strict=True)):
                yield call, leaves, after, spec


def _called(call: Any, leaves: list[Any], spec: Any) -> None:
    first, args, kwargs = tree_unflatten(leaves, spec)
    torch.manual_seed(0)
    call(first, *args, **kwargs)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.detach().cpu().nan_to_num())


def test_C9_what_operators_write_to_plain_operands_is_there() -> None:
    wrong: set[str] = set()
    writing: set[str] = set()
    with warnings.catch_warnings(), mode.enter(meets=bring_together):
        warnings.simplefilter("ignore")
        for name, op in opcases.ENTRIES.items():
            if name.startswith("jiterator") or torch.float32 not in opcases.dtypes_of(op):
                continue
            for call, leaves, after, spec in _writing(op, torch.float32):
                writing.add(name)
                found = [i for i, a in enumerate(leaves) if isinstance(a, torch.Tensor)]
                for moved in [*({i} for i in found), *({*found} - {i} for i in found)]:
                    mine = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in leaves]
                    mine = [a.to(opcases.DEVICE) if i in moved else a for i, a in enumerate(mine)]
                    _called(call, mine, spec)
                    wrong |= {f"{name}, operand {i}" for i in found if not _same(after[i], mine[i])}
    assert wrong == set()
    assert len(writing) > 60 and {"nn.functional.batch_norm", "nn.functional.embedding"} <= writing
