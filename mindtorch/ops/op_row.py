"""The shape of one row of the op table, and how rows are written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .call import Call
from .flop_rules import zero
from .layout_rules import LayoutRule
from .product_rules import Product

#: A FLOP rule: ``rule(args, kwargs, out) -> FLOPs``. Pure; looks only at ``.shape`` of tensors and at plain values.
#: It may raise ``TypeError``/``IndexError``/``AttributeError``/``ValueError`` on arguments it does not understand:
#: `count_flops` reports that as "no formula".
FlopRule = Callable[[tuple[Any, ...], dict[str, Any], Any], int]
#: Of the same form: bytes that torch's CPU kernel takes for itself while it runs, above its results.
ScratchRule = FlopRule
#: Bytes read and written.
ByteRule = Callable[[Call], tuple[int, int]]
ProductRule = Callable[[Call], Product | None]
#: ``rule(args, kwargs)``: may the kernel refuse this call for its values?
RefusalRule = Callable[[tuple[Any, ...], dict[str, Any]], bool]

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
    as_seen: of `eager`: what it gives follows from the inputs' sizes, only the kernel knows how (a workspace). It is
        recorded once it has been seen.
    probe: torch's meta prediction is known to differ from the CPU kernel in strides or sizes that do not depend on
        values: the kernel itself is asked, once per distinct call.
    refuses: the calls that may be refused for what is in the inputs, which programs catch: they run at the call.
    whole: torch computes something else (another decomposition, other last bits) when handed a tensor subclass: where
        no gradient is needed it must run or be recorded as one call.
    values_backward: the same, of the op's gradient formula: its backward step runs on computed values.
    python: names in ``torch.nn.functional`` of Python functions that are one call of this op. Their argument order
        may differ from the op's (``batch_norm``, ``embedding``), so `writes` does not apply to their arguments.
    scratch: memory that the CPU's kernel takes while it runs and gives back, where that is much; None: next to none.
    bytes: what has to be read and written; None: as the tag has it (`byte_rules.by_tag`).
    product: sizes of the products that it is made of, where it is.
    cpu: what bounds it on a CPU, of the kinds that `profile.cost.cpu_measure` measures; "": what bounds its tag.

    Of calls that are recorded:

    never_whole: a composite function that fills tensors or mutates state in ways its schema does not show, or whose
        replay would depend on state that is not part of the call.
    layout: how the CPU's kernel lays out its results, where torch's meta function says otherwise (of convolutions see
        `ops.conv_layout`: torch is asked which kernel it takes).
    over_all: of `values_backward`: only reductions without a dimension have another formula for tensor subclasses.
    folds: a product whose choice of kernel depends on more than its operands' sizes (`record.predict._folds`).
    may_copy: copies its input, or views it, or gives it back, as the arguments and its strides have it.
    adopts: its schema says "view" although its storage was not made by an op: data given to ``torch.tensor``, ``load``.

    Of devices:

    anywhere: takes tensors of two devices on purpose, or looks at sizes and dtypes only.
    elsewhere: arguments, by position or name, that may be elsewhere: torch wants lengths and splits on the CPU.
    indexed: its indices may be on the CPU whatever they index.

    Of estimates:

    blind: does not look at the content of its first input.
    absorbing: what the elements of one input all have to be for the result to follow from that one alone.
    sizes_from_values: its result has as many elements as its input has true ones.
    """

    name: str
    tag: str
    flops: FlopRule | None = None
    writes: tuple[int, ...] = ()
    eager: bool = False
    as_seen: bool = False
    probe: bool = False
    refuses: RefusalRule | None = None
    whole: bool = False
    values_backward: bool = False
    python: tuple[str, ...] = ()
    scratch: ScratchRule | None = None
    bytes: ByteRule | None = None
    product: ProductRule | None = None
    cpu: str = ""
    never_whole: bool = False
    layout: LayoutRule | None = None
    over_all: bool = False
    folds: bool = False
    may_copy: bool = False
    adopts: bool = False
    anywhere: bool = False
    elsewhere: tuple[int | str, ...] = ()
    indexed: bool = False
    blind: bool = False
    absorbing: bool | None = None
    sizes_from_values: bool = False


def op(name: str, tag: str, flops: FlopRule | None = None, **fields: Any) -> OpRow:
    """Write one row; `name` without its namespace means ``aten::``; ops with a free tag get the `zero` rule.

    python=True: of the same name there.
    """
    if fields.get("python") is True:
        fields["python"] = (name,)
    if flops is None and tag in FREE_TAGS:
        flops = zero
    return OpRow(name if "::" in name else f"aten::{name}", tag, flops, **fields)


def ops(tag: str, flops: FlopRule | None, names: str, **fields: Any) -> Iterator[OpRow]:
    """Write rows that differ in their name only; `names` is separated by blanks."""
    for name in names.split():
        yield op(name, tag, flops, **fields)
