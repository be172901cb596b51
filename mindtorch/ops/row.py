"""The shape of one row of the op table, and how rows are written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .rules import zero

#: A FLOP rule: ``rule(args, kwargs, out) -> FLOPs``. Pure; looks only at ``.shape`` of tensors and at plain values.
#: It may raise ``TypeError``/``IndexError``/``AttributeError``/``ValueError`` on arguments it does not understand:
#: `count_flops` reports that as "no formula".
FlopRule = Callable[[tuple[Any, ...], dict[str, Any], Any], int]
#: Of the same form: bytes that torch's CPU kernel takes for itself while it runs, above its results.
ScratchRule = FlopRule

TAGS = (
    "attention", "matmul", "conv", "norm", "elementwise", "reduction", "softmax", "data movement", "view", "creation",
    "random", "loss", "embedding", "rnn", "optimizer", "communication", "other",
)  # fmt: skip

#: Tags whose ops compute nothing: they have 0 FLOPs by definition, not for want of a formula.
FREE_TAGS = frozenset({"data movement", "view", "creation", "embedding", "communication"})

#: Tags whose FLOPs are all multiply-adds: MACs = FLOPs / 2. Everywhere else MACs are 0.
MATRIX_TAGS = frozenset({"attention", "matmul", "conv", "rnn"})


class OpRow(NamedTuple):
    """One operator.

    name: normalized name, overload stripped (``aten::mm``). An in-place op (``aten::add_``) shares the row of the
        functional one.
    tag: one of `TAGS`.
    flops: FLOP rule, or None where we have no formula (the profile lists such calls as uncounted).
    writes: positions, in the ATen schema, of arguments the kernel mutates although the schema does not say so.
    eager: must not be recorded from torch's meta prediction, which is known to differ from what the CPU kernel
        returns. Where ``_ext.shapes`` has an answer that may be used; otherwise the op has to run at the call.
    probe: torch's meta prediction is known to differ from the CPU kernel in strides or sizes that do not depend on
        values: the kernel itself is asked, once per distinct call.
    whole: torch computes something else (another decomposition, other last bits) when handed a tensor subclass: where
        no gradient is needed it must run or be recorded as one call.
    values_backward: the same, of the op's gradient formula: its backward step runs on computed values.
    python: names in ``torch.nn.functional`` of Python functions that are one call of this op. Their argument order
        may differ from the op's (``batch_norm``, ``embedding``), so `writes` does not apply to their arguments.
    scratch: memory that the CPU's kernel takes while it runs and gives back, where that is much; None: next to none.
    """

    name: str
    tag: str
    flops: FlopRule | None = None
    writes: tuple[int, ...] = ()
    eager: bool = False
    probe: bool = False
    whole: bool = False
    values_backward: bool = False
    python: tuple[str, ...] = ()
    scratch: ScratchRule | None = None


def op(name: str, tag: str, flops: FlopRule | None = None, **fields: Any) -> OpRow:
    """Write one row; `name` without its namespace means ``aten::``; ops with a free tag get the `zero` rule."""
    if flops is None and tag in FREE_TAGS:
        flops = zero
    return OpRow(name if "::" in name else f"aten::{name}", tag, flops, **fields)


def ops(tag: str, flops: FlopRule | None, names: str, **fields: Any) -> Iterator[OpRow]:
    """Write rows that differ in their name only; `names` is separated by blanks."""
    for name in names.split():
        yield op(name, tag, flops, **fields)
